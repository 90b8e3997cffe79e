"""The command line from recipe to report, on the real training stack and a policy that learned next to nothing."""

from __future__ import annotations

import html
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.doubles.fresh_clone import Done, FreshClone

RECIPE = "recipes/quickstart.toml"
SMALLER = (
    'arms=[{name="echo", algorithm="echo", observation_weight=0.005}]',
    "episodes.train.count=24",
    "episodes.dev.count=12",
    "episodes.final.count=24",
    "retention.dev.count=8",
    "retention.final.count=12",
    "sampling.batch_size=24",
    "training.steps=6",
    "checkpoints.candidates=[3, 6]",
    "checkpoints.diagnostic=6",
    "checkpoints.recovery_every=3",
    "assessment.seeds=[42, 1729]",
    "assessment.retention_seeds=[42]",
    "assessment.resamples=500",
    "starter.per_family=4",
    "starter.probe_episodes=16",
    "starter.skill.episodes=200",
    "starter.skill.steps=20",
    "starter.habits.episodes=60",
    "starter.habits.steps=6",
    "starter.final_steps=2",
)
SETTINGS = [word for setting in SMALLER for word in ("--set", setting)]
RUN = "runs/small"
ATTEMPTS = 24 * 2
"""Final episodes times generation seeds."""
BLOCKED = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "transformers", "trl", "peft", "accelerate", "datasets", "jinja2"}:
            raise ImportError(f"{name} is not to be loaded")
sys.meta_path.insert(0, Refuse())
from experiment.cli.app import main
sys.exit(main())
"""


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> FreshClone:
    return FreshClone.make(tmp_path_factory.mktemp("workspace"))


@pytest.fixture(scope="module")
def finished(workspace: FreshClone) -> Done:
    """The whole path; returns how its last session ended."""
    baseline = workspace.experiment("baseline", RECIPE, *SETTINGS)
    assert baseline.code == 0, baseline.err
    assert "runs/baselines/quickstart (made now)" in baseline.out
    prepared = workspace.experiment("prepare", RECIPE, "--output", "plans/small", *SETTINGS)
    assert prepared.code == 0, prepared.err
    assert prepared.out.splitlines()[-1] == "plan: plans/small/plan.json"
    qualified = workspace.experiment("run", "--qualification-only")
    assert qualified.code == 0, qualified.err
    assert "qualified: stop and resume equal an uninterrupted run bit for bit" in qualified.out
    resumed = workspace.experiment("run", "--resume")
    assert resumed.code == 0, resumed.err
    return resumed


def _sentence(done: Done) -> str:
    return next(line for line in done.out.splitlines() if line.startswith("echo@"))


def _head(done: Done) -> str:
    return next(line for line in done.out.splitlines() if line.startswith("head: ")).removeprefix("head: ")


@pytest.mark.timeout(1800)
def test_a_run_ends_with_a_verdict_a_head_and_its_folder(finished: Done) -> None:
    lines = finished.out.splitlines()
    assert "the baseline is retained" in _sentence(finished) or "than the baseline" in _sentence(finished)
    assert _head(finished).startswith("small ")
    assert lines[-1] == f"run: {RUN}"


def test_a_policy_that_is_there_is_used_again(finished: Done, workspace: FreshClone) -> None:
    again = workspace.experiment("baseline", RECIPE, *SETTINGS)
    assert again.code == 0
    assert "runs/baselines/quickstart (already there)" in again.out


def test_the_run_audits_clean_against_its_plan_and_its_head(finished: Done, workspace: FreshClone) -> None:
    audit = workspace.experiment("audit", RUN, "--plan", "plans/small/plan.json", "--known-head", _head(finished))
    assert audit.code == 0, audit.out
    assert audit.out.splitlines()[-1] == "VERDICT: closed and verified"
    assert "finding:" not in audit.out


def test_a_copy_audits_without_workspace_and_training_stack(
    finished: Done, workspace: FreshClone, tmp_path: Path
) -> None:
    shutil.copytree(workspace.folder / RUN, tmp_path / "small")
    audit = workspace.python("-c", BLOCKED, "audit", "small", "--known-head", _head(finished), folder=tmp_path)
    assert audit.code == 0, audit.out + audit.err
    assert audit.out.splitlines()[-1] == "VERDICT: closed and verified"


@pytest.mark.skipif(shutil.which("b3sum") is None, reason="docs/verify.sh needs b3sum (Debian: apt install b3sum)")
def test_a_verifier_without_our_code_agrees(finished: Done, workspace: FreshClone, repository: Path) -> None:
    command = ["bash", str(repository / "docs/verify.sh"), str(workspace.folder / RUN)]
    verified = subprocess.run(command, capture_output=True, text=True, check=False)
    assert verified.stdout.startswith(f"ok: {_head(finished).split()[1]} records, "), verified.stdout


def test_the_report_says_what_the_run_said(finished: Done, workspace: FreshClone) -> None:
    report = workspace.experiment("report", RUN, "--output", "page")
    assert report.code == 0, report.err
    page = Path(workspace.folder / report.out.removeprefix("report: ").strip())
    assert page.parent == workspace.folder / "page"
    text = html.unescape(page.read_text(encoding="utf-8"))
    assert _head(finished).rpartition("b3:")[2] in text
    label, _, rest = _sentence(finished).partition(": ")
    before, _, after = rest.partition(", ")[2].partition(" -> ")
    solved = [f"{100 * round(float(rate[:5]) * ATTEMPTS) / ATTEMPTS:.1f}\u00a0%" for rate in (after, before)]
    assert f"{label} solved {solved[0]} of the 24 final episodes where the baseline solved {solved[1]}" in text


def test_the_status_says_that_the_run_is_finished(finished: Done, workspace: FreshClone) -> None:
    status = workspace.experiment("status", RUN)
    assert status.code == 0, status.err
    assert "finished" in status.out


def test_a_finished_run_is_neither_resumed_nor_begun_again(finished: Done, workspace: FreshClone) -> None:
    for words in ((), ("--resume",)):
        again = workspace.experiment("run", "--plan", "plans/small/plan.json", *words)
        assert again.code == 2
        assert "Traceback" not in again.err


def _pick(pattern: str) -> Callable[[Path], Path]:
    return lambda run_dir: min(run_dir.glob(pattern))


@pytest.mark.parametrize(
    ("choose", "codes"),
    [
        (_pick("journal/000000.jsonl"), {4}),
        (_pick("plan.json"), {5}),
        (_pick("evidence/train/echo/step-000002.jsonl"), {4}),
        (_pick("evidence/final/baseline@0/agent-42.jsonl"), {4}),
        (_pick("checkpoints/echo/step-000003/adapter_model.safetensors"), {4}),
        (_pick("checkpoints/echo/step-000003/seal.json"), {4}),
        (_pick("qualification/echo/resumed/state.json"), {4}),
    ],
)
def test_one_changed_byte_is_found_and_named(
    finished: Done, workspace: FreshClone, tmp_path: Path, choose: Callable[[Path], Path], codes: set[int]
) -> None:
    run_dir = tmp_path / "small"
    shutil.copytree(workspace.folder / RUN, run_dir)
    path = choose(run_dir)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    audit = workspace.experiment("audit", str(run_dir))
    assert audit.code in codes, audit.out
    findings = [line for line in audit.out.splitlines() if line.startswith("finding:")]
    named = path.relative_to(run_dir).as_posix()
    assert any(named in line or path.parent.relative_to(run_dir).as_posix() in line for line in findings), findings


def test_a_changed_input_is_refused_by_name(finished: Done, workspace: FreshClone, tmp_path: Path) -> None:
    shutil.copytree(workspace.folder, tmp_path / "other")
    other = tmp_path / "other"
    shutil.rmtree(other / RUN)
    (other / "plans/small/claim").unlink()
    weights = other / "runs/baselines/quickstart/model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    refused = workspace.experiment("run", "--plan", "plans/small/plan.json", folder=other)
    assert refused.code == 3
    assert "runs/baselines/quickstart: the baseline changed since the plan was prepared" in refused.err
    assert not (other / RUN).exists()
