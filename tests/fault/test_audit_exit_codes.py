"""What an audit ends with: every exit code, on runs that the real driver made, from what would be done to them."""

from __future__ import annotations

import math
import os
import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from experiment.audit import audit_run
from experiment.journal.reader import read_journal
from experiment.records.entry import Warned
from experiment.records.plan import FrozenInput
from experiment.sealing.seeds import derive_seed
from experiment.sealing.sources import scan_sources
from experiment.sealing.trees import scan_tree
from tests.doubles.damage import add, append, cut_records, one, remove
from tests.doubles.forging import Story, edited, made_to_win, replace_in_last_record, rewrite_chain
from tests.doubles.small_run import SmallRun
from tests.doubles.stand_in_run import (
    ROOT,
    Workspace,
    draft_script,
    drive,
    end,
    exit_code,
    finish,
    interrupt,
    one_arm_recipe,
    small_workspace,
)

SECOND = "journal/000001.jsonl"
SAMPLES = {"changed": 48, "cut": 12, "added to": 12}
"""How many places are drawn in files of each kind, by what is done there."""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> SmallRun:
    return draft_script(tmp_path_factory.mktemp("script"), one_arm_recipe())


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory, script: SmallRun) -> dict[str, Workspace]:
    """Workspaces with all that their plans froze; their runs were stopped, finished, or did not qualify."""
    folder = tmp_path_factory.mktemp("originals")
    made = {name: _workspace(folder / name, script) for name in ("stopped", "unqualified")}
    interrupt(made["stopped"])
    made["finished"] = made["stopped"].copy_to(folder / "finished")
    finish(made["finished"])
    assert exit_code(made["unqualified"].fork(drive, fault="lie@qualify/echo/resumed")) == 5
    return made


def _workspace(folder: Path, script: SmallRun) -> Workspace:
    shutil.copytree(ROOT / "experiment", folder / "experiment", ignore=shutil.ignore_patterns("__pycache__"))
    model = folder / "models/small"
    model.mkdir(parents=True)
    (model / "weights.bin").write_bytes(bytes(range(256)))
    sources, baseline = scan_sources(), scan_tree(model)
    inputs = (
        FrozenInput(
            role="sources", path="experiment", kind="tree", digest=sources.digest, size_bytes=sources.size_bytes
        ),
        FrozenInput(role="baseline", path="models/small", kind="tree", digest=baseline.tree, size_bytes=256),
    )
    return small_workspace(folder, script, inputs=inputs)


class Situation(NamedTuple):
    """Something that is done to a copy of a run's workspace before it is audited."""

    code: int
    findings: set[str]
    """Exactly these, at the deepest level; with code 8 at least these, because one lie shows in several places."""
    run: str
    change: Callable[[Workspace], None] = lambda _: None
    known: int = 0
    """Number of records at which a head was kept elsewhere; from the end where negative."""
    may: frozenset[str] = frozenset()
    """Findings that depend on how far a killed worker had come."""


def to_run(damage: Callable[[Path], None]) -> Callable[[Workspace], None]:
    return lambda workspace: damage(workspace.run_dir)


def to_folder(damage: Callable[[Path], None]) -> Callable[[Workspace], None]:
    return lambda workspace: damage(workspace.folder)


def forged(*arguments: Any) -> Callable[[Workspace], None]:
    return to_run(partial(rewrite_chain, edit=edited(*arguments)))


def forge_a_victory(workspace: Workspace) -> None:
    rewrite_chain(workspace.run_dir, made_to_win(workspace.plan, "echo"))


def another_byte(path: Path, draw: int) -> None:
    """Change one byte to any other, both drawn."""
    data = bytearray(path.read_bytes())
    data[derive_seed(1, path.name, draw) % len(data)] ^= 1 + derive_seed(2, path.name, draw) % 255
    path.write_bytes(data)


def another_byte_in(pattern: str, draw: int = 0) -> Callable[[Path], None]:
    return lambda folder: another_byte(one(folder, pattern), draw)


def one_ulp_up(body: Any) -> None:
    body["comparisons"][0]["difference"] = math.nextafter(body["comparisons"][0]["difference"], 2.0)


def select_another(body: Any) -> None:
    verdict = body["verdict"]
    verdict["selected_step"] = verdict["assessed_step"] = 2 if verdict["assessed_step"] == 4 else 4


def pass_all_the_same(body: Any) -> None:
    body["verdict"] |= {"passed": True, "divergences": []}


def flip_an_outcome(body: Any) -> None:
    body["outcomes"][0]["success"] = not body["outcomes"][0]["success"]


def warn_twice(story: Story) -> None:
    """Make up for the resume record, so that the chain is as long as it was."""
    story += [("warn", Warned(kind="clock", message="nothing"), ())] * 2


SITUATIONS: dict[str, Situation] = {
    "a finished run": Situation(0, set(), "finished"),
    "a finished run whose last head was kept": Situation(0, set(), "finished", known=-1),
    "a run that failed its qualification": Situation(0, set(), "unqualified"),
    "a chain written anew that says the same": Situation(0, set(), "finished", to_run(rewrite_chain)),
    # 3: open
    "a run that was killed within a record": Situation(
        3, {"J-OPEN", "J-TORN"}, "stopped", may=frozenset({"T-LEFTOVER"})
    ),
    "evidence that was written before a kill": Situation(
        3,
        {"J-OPEN", "J-TORN", "T-LEFTOVER"},
        "stopped",
        to_run(add("evidence/train/echo/step-000004.jsonl")),
    ),
    # 4: not what was written; single bytes are sampled below
    "the last record cut off": Situation(4, {"J-WATERMARK"}, "finished", to_run(cut_records(1, SECOND))),
    "the assessment cut off": Situation(4, {"J-WATERMARK"}, "finished", to_run(cut_records(3, SECOND))),
    "bytes after the close record": Situation(4, {"J-CLOSED"}, "finished", to_run(append(b"{", SECOND))),
    "a file added to a checkpoint": Situation(
        4, {"T-SEAL"}, "finished", to_run(add("checkpoints/echo/step-000002/new.bin"))
    ),
    "evidence added": Situation(4, {"T-EXTRA"}, "finished", to_run(add("evidence/final/echo@9/agent-11.jsonl"))),
    # 5: not what was frozen
    **{
        f"a byte of the plan, draw {draw}": Situation(
            5, {"I-PLAN"}, "finished", to_run(another_byte_in("plan.json", draw))
        )
        for draw in range(5)
    },
    "another seal of the plan": Situation(5, {"I-SEAL"}, "finished", to_folder(append(b"0", "plans/small/plan.seal"))),
    "a byte of a source file": Situation(
        5, {"I-INPUT"}, "finished", to_folder(another_byte_in("experiment/decisions/bootstrap.py"))
    ),
    "a source file more": Situation(5, {"I-INPUT"}, "finished", to_folder(add("experiment/decisions/new.py"))),
    "a byte of the baseline": Situation(5, {"I-INPUT"}, "finished", to_folder(another_byte_in("models/small/*"))),
    "a byte of the lock": Situation(5, {"I-INPUT"}, "finished", to_folder(another_byte_in("lock.txt"))),
    # 6: not the history that was known
    "a chain written anew, and its last head": Situation(
        6, {"K-FORK"}, "finished", to_run(partial(rewrite_chain, edit=warn_twice)), known=-1
    ),
    "a chain written anew, and a middle head": Situation(6, {"K-FORK"}, "finished", to_run(rewrite_chain), known=9),
    "a shorter chain written anew, and the last head": Situation(
        6, {"K-ROLLBACK"}, "finished", to_run(rewrite_chain), known=-1
    ),
    "an open chain written anew, and the last head": Situation(
        6, {"K-ROLLBACK", "J-OPEN"}, "finished", to_run(partial(rewrite_chain, close=False)), known=-1
    ),
    # 7: cannot be verified
    **{
        f"removed: {pattern}": Situation(7, {"A-MISSING"}, "finished", to_run(remove(pattern)))
        for pattern in (
            "evidence/train/*/*.jsonl",
            "evidence/dev/*/*.jsonl",
            "evidence/final/*/*.jsonl",
            "qualification/*/straight/evidence/*.jsonl",
            "qualification/*/resumed/evidence/*.jsonl",
            "qualification/",
        )
    },
    "a checkpoint removed": Situation(7, {"T-MISSING"}, "finished", to_run(remove("checkpoints/*/step-000002"))),
    "the plan removed": Situation(7, {"I-SCHEMA"}, "finished", to_run(remove("plan.json"))),
    "a type of record that is not known": Situation(
        7, {"J-RECORD"}, "finished", to_run(replace_in_last_record(b'"type":"close"', b'"type":"closed"'))
    ),
    "a version of records that is not known": Situation(
        7, {"J-RECORD"}, "finished", to_run(replace_in_last_record(b'"v":1}', b'"v":2}'))
    ),
    # 8: the claim does not stand; each chain is written anew around it
    "another checkpoint selected": Situation(
        8, {"R-SELECT", "P-EVALUATION", "P-COMPARE", "R-COMPARE"}, "finished", forged("select.decision", select_another)
    ),
    "a difference that is one ulp off": Situation(8, {"R-COMPARE"}, "finished", forged("stats.result", one_ulp_up)),
    "a failed qualification made to pass": Situation(
        8, {"R-QUALIFY", "P-CLOSE"}, "unqualified", forged("qual.result", pass_all_the_same)
    ),
    "a DEV outcome flipped": Situation(8, {"R-OUTCOME", "R-SELECT"}, "finished", forged("dev.result", flip_an_outcome)),
    "a final outcome flipped": Situation(
        8, {"R-OUTCOME", "R-COMPARE"}, "finished", forged("final.result", flip_an_outcome)
    ),
    "all final outcomes of an arm made to win, and compared again": Situation(
        8, {"R-OUTCOME"}, "finished", forge_a_victory
    ),
}


def _head(workspace: Workspace, number: int) -> tuple[str, ...]:
    if not number:
        return ()
    view = read_journal(workspace.run_dir)
    size = number % (len(view.entries) + 1)
    return (f"{view.run} {size} b3:{view.entries[size - 1].hash}",)


@pytest.mark.parametrize("name", SITUATIONS)
def test_a_situation_has_its_exit_code(
    originals: dict[str, Workspace], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    situation = SITUATIONS[name]
    workspace = originals[situation.run].copy_to(tmp_path)
    monkeypatch.chdir(tmp_path)
    known = _head(workspace, situation.known)

    situation.change(workspace)
    report = audit_run(workspace.run_dir.relative_to(tmp_path), known_heads=known)

    found = {finding.id for finding in report.findings} - situation.may
    assert report.exit_code == situation.code
    assert found >= situation.findings if situation.code == 8 else found == situation.findings


def test_a_run_that_goes_on_is_open(script: SmallRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace = small_workspace(tmp_path, script)
    monkeypatch.chdir(tmp_path)
    driver = workspace.fork(drive, pace_s=0.3)
    try:
        deadline = time.monotonic() + 60
        while not list(workspace.run_dir.glob("evidence/train/echo/*")) and time.monotonic() < deadline:
            time.sleep(0.01)
        report = audit_run(workspace.run_dir)
        assert os.waitpid(driver, os.WNOHANG) == (0, 0)
    finally:
        end(driver)

    assert report.exit_code == 3
    assert {finding.id for finding in report.findings} <= {"J-OPEN", "J-TORN", "T-LEFTOVER"}


KINDS = {
    "journal": (("journal/*.jsonl", "head.json"), "J-"),
    "evidence": (("evidence/*/*/*.jsonl", "qualification/*/*/evidence/*.jsonl"), "A-DIGEST"),
    "checkpoints": (("checkpoints/*/*/*",), "T-SEAL"),
}
"""The files that records vouch for, and how findings about them begin."""


def _changed(path: Path, draw: int, way: str) -> bytes:
    """A file's bytes with one changed, cut at a drawn place, or with some after their end."""
    data = bytearray(path.read_bytes())
    place = derive_seed(3, way, path.as_posix(), draw) % len(data)
    value = derive_seed(4, way, path.as_posix(), draw)
    if way == "changed":
        data[place] ^= 1 + value % 255
        return bytes(data)
    if way == "cut":
        return bytes(data[:place])
    return bytes(data) + value.to_bytes(8, "big")[: 1 + draw % 8]


@pytest.mark.parametrize("way", SAMPLES)
@pytest.mark.parametrize("kind", KINDS)
def test_wherever_a_byte_is_not_what_was_written_the_run_is_corrupt(
    originals: dict[str, Workspace], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, way: str
) -> None:
    run_dir = Path("small")
    shutil.copytree(originals["finished"].run_dir, tmp_path / run_dir)
    monkeypatch.chdir(tmp_path)
    patterns, finding = KINDS[kind]
    files = sorted(path for pattern in patterns for path in run_dir.glob(pattern))
    unseen = []
    for draw in range(SAMPLES[way]):
        path = files[derive_seed(5, kind, way, draw) % len(files)]
        before = path.read_bytes()
        path.write_bytes(_changed(path, draw, way))
        report = audit_run(run_dir, level="bytes")
        if report.exit_code != 4 or not all(found.id.startswith(finding) for found in report.findings):
            unseen.append((path.as_posix(), draw, report.exit_code, report.findings))
        path.write_bytes(before)

    assert unseen == []
    assert audit_run(run_dir).exit_code == 0
