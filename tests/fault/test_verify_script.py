"""`docs/verify.sh`, thirty lines of shell that share nothing with the package, agrees with it about real runs."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from experiment.audit import audit_run
from experiment.journal.reader import read_journal
from experiment.sealing.seeds import derive_seed
from tests.doubles.damage import (
    FIRST_SEGMENT,
    Damage,
    add,
    append,
    cut_records,
    flip_bit,
    one,
    remove,
    rewrite_lines,
)
from tests.doubles.small_run import SmallRun
from tests.doubles.stand_in_run import (
    Workspace,
    draft_script,
    drive,
    exit_code,
    finish,
    interrupt,
    one_arm_recipe,
    small_workspace,
)

pytestmark = pytest.mark.skipif(
    shutil.which("b3sum") is None or shutil.which("bash") is None,
    reason="docs/verify.sh needs bash and b3sum (Debian: apt install b3sum)",
)

SECOND = "journal/000001.jsonl"


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> SmallRun:
    return draft_script(tmp_path_factory.mktemp("script"), one_arm_recipe())


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory, script: SmallRun) -> Workspace:
    """A run whose driver was killed in the middle of training, with half a record at its end."""
    workspace = small_workspace(tmp_path_factory.mktemp("killed"), script)
    interrupt(workspace)
    return workspace


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, killed: Workspace) -> Path:
    """The same run, resumed and brought to its end: two segments, of which the first has a torn end."""
    resumed = killed.copy_to(tmp_path_factory.mktemp("finished"))
    finish(resumed)
    return resumed.run_dir


@pytest.fixture
def run_dir(finished: Path, tmp_path: Path) -> Iterator[Path]:
    """A copy of the finished run that may be damaged."""
    copy = tmp_path / finished.name
    shutil.copytree(finished, copy)
    yield copy
    # What the script refuses was worth refusing.
    assert audit_run(copy, level="bytes").exit_code != 0


def verify(repository: Path, run_dir: Path) -> tuple[int, str]:
    done = subprocess.run(
        ["bash", str(repository / "docs/verify.sh"), str(run_dir)], capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout.strip()


def agreed(run_dir: Path) -> str:
    """What the script has to say of a run that the package finds sound."""
    entries = read_journal(run_dir).entries
    return f"ok: {len(entries)} records, {len({each.path for entry in entries for each in entry.artifacts})} artifacts"


def flip(pattern: str, draw: int = 0) -> Damage:
    """Change one bit at a place that is drawn from the file's length."""

    def damage(run_dir: Path) -> None:
        path = one(run_dir, pattern)
        flip_bit(path, derive_seed(7, pattern, draw) % path.stat().st_size, derive_seed(8, pattern, draw) % 8)

    return damage


DAMAGES: dict[str, tuple[Damage, str]] = {
    **{f"a bit of a record, {draw}": (flip(SECOND, draw), "J2 or J3") for draw in range(4)},
    "a bit of the first segment": (flip(FIRST_SEGMENT), "J"),
    "a bit of the head": (flip("head.json"), "head.json: J2 or J3"),
    **{f"a bit of the plan, {draw}": (flip("plan.json", draw), "plan.json") for draw in range(2)},
    "a bit of training evidence": (flip("evidence/train/*/*.jsonl"), "FAILED"),
    "a bit of final evidence": (flip("evidence/final/*/*.jsonl"), "FAILED"),
    "a bit of qualification evidence": (flip("qualification/*/*/evidence/*.jsonl"), "FAILED"),
    "a bit of a checkpoint": (flip("checkpoints/*/*/adapter.bin"), "FAILED"),
    "a bit of a seal": (flip("checkpoints/*/*/seal.json"), "T9"),
    "a middle record dropped": (rewrite_lines(lambda lines: lines[:4] + lines[5:], SECOND), "J6"),
    "two records swapped": (rewrite_lines(lambda lines: [*lines[:4], lines[5], lines[4], *lines[6:]], SECOND), "J6"),
    "a record said twice": (rewrite_lines(lambda lines: [*lines[:5], *lines[4:]], SECOND), "J6"),
    "a zero byte in a record": (rewrite_lines(lambda lines: [lines[0][:90] + b"\0" + lines[0][90:]], SECOND), "J2"),
    "the last record cut off": (cut_records(1, SECOND), "J12"),
    "the torn end cut off": (cut_records(1), "J11"),
    "a byte after the end": (append(b"x", SECOND), "J13"),
    "a segment after the end": (add("journal/000002.jsonl"), "J13"),
    "the first segment removed": (remove(FIRST_SEGMENT), "record 0"),
    "evidence removed": (remove("evidence/dev/*/*.jsonl"), "No such file"),
    "a file removed from a checkpoint": (remove("checkpoints/*/*/adapter.bin"), "No such file"),
    "a file added to a checkpoint": (add("checkpoints/echo/step-000002/new.bin"), "T7"),
    "evidence added": (add("evidence/final/echo@9/agent-11.jsonl"), "T7"),
}


def test_a_true_run_is_counted_as_the_package_counts_it(repository: Path, finished: Path) -> None:
    assert audit_run(finished).exit_code == 0
    assert verify(repository, finished) == (0, agreed(finished))


def test_a_run_that_goes_on_is_sound_as_far_as_it_goes(repository: Path, killed: Workspace) -> None:
    assert audit_run(killed.run_dir).exit_code == 3
    assert verify(repository, killed.run_dir) == (0, agreed(killed.run_dir))


def test_a_run_that_failed_its_qualification_is_sound(repository: Path, tmp_path: Path, script: SmallRun) -> None:
    workspace = small_workspace(tmp_path, script)
    assert exit_code(workspace.fork(drive, fault="lie@qualify/echo/resumed")) == 5
    assert verify(repository, workspace.run_dir) == (0, agreed(workspace.run_dir))


@pytest.mark.parametrize("damage", DAMAGES)
def test_every_damage_is_refused_and_named(repository: Path, run_dir: Path, damage: str) -> None:
    inflict, named = DAMAGES[damage]

    inflict(run_dir)
    code, said = verify(repository, run_dir)

    assert code == 1
    assert said.startswith("fault: ") and named in said


def test_the_script_has_thirty_lines_and_needs_no_interpreter_but_bash(repository: Path) -> None:
    text = (repository / "docs/verify.sh").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 30
    assert "python" not in text
