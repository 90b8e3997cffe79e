"""Finished runs that somebody changed afterwards in ways that leave bytes as they were, and what is said of them.

What every exit code comes from is in `test_audit_exit_codes.py`.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from experiment.audit import audit_run
from experiment.audit.findings import AuditReport, Level
from experiment.errors import UsageError
from experiment.journal.reader import read_journal
from experiment.records.entry import Warned
from experiment.sealing.digests import CONTEXT_PLAN, derive, digest_bytes
from tests.doubles.damage import (
    Damage,
    add,
    append,
    link,
    link_folder,
    pipe,
    remove,
)
from tests.doubles.small_plan import small_recipe
from tests.doubles.small_run import SmallRun, draft_run


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> SmallRun:
    run = draft_run(tmp_path_factory.mktemp("original"), recipe=small_recipe(steps=2, final=3))
    run.write()
    return run


@pytest.fixture
def run_dir(original: SmallRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy that may be damaged, in a workspace where none of the plan's inputs are at hand."""
    copy = tmp_path / "runs" / original.run_dir.name
    shutil.copytree(original.run_dir, copy)
    monkeypatch.chdir(tmp_path)
    return copy


def audit(run_dir: Path, level: Level = "bytes") -> tuple[int, set[str]]:
    report = audit_run(run_dir, level=level)
    return report.exit_code, {finding.id for finding in report.findings}


def fact(report: AuditReport, key: str) -> list[str]:
    return [value for name, value in report.facts if name == key]


TAMPERINGS: dict[str, tuple[Damage, int, str]] = {
    "the journal removed": (remove("journal"), 4, "J-"),
    "the head file removed": (remove("head.json"), 4, "J-"),
    "evidence replaced by a link": (link("evidence/final/*/*.jsonl"), 4, "A-PATH"),
    "the evidence folder replaced by a link": (link_folder("evidence"), 4, "A-PATH"),
    "evidence replaced by a pipe": (pipe("evidence/final/*/*.jsonl"), 4, "A-DIGEST"),
    "a file removed from a checkpoint": (remove("checkpoints/*/*/adapter.bin"), 4, "T-SEAL"),
    "a checkpoint added": (add("checkpoints/grpo/step-000009/adapter.bin"), 4, "T-EXTRA"),
    "the checkpoints replaced by a link": (link_folder("checkpoints"), 4, "T-PATH"),
}


def test_a_true_run_is_closed_and_verified(run_dir: Path) -> None:
    assert audit(run_dir, "recompute") == (0, set())


@pytest.mark.parametrize("tampering", TAMPERINGS)
def test_what_is_moved_replaced_or_added_is_found_at_the_first_level(run_dir: Path, tampering: str) -> None:
    tamper, code, prefix = TAMPERINGS[tampering]

    tamper(run_dir)
    found, ids = audit(run_dir)

    assert found == code
    assert any(id_.startswith(prefix) for id_ in ids)


def test_a_checkpoint_swapped_with_another_sealed_one_is_found(run_dir: Path) -> None:
    one_, other = run_dir / "checkpoints/grpo/step-000001", run_dir / "checkpoints/grpo/step-000002"
    one_.rename(run_dir / "aside")
    other.rename(one_)
    (run_dir / "aside").rename(other)

    assert audit(run_dir) == (4, {"T-TREE"})


def rewritten(original: SmallRun, tmp_path: Path, *, close: bool) -> tuple[Path, str]:
    """The same files with a journal that was written anew, without the export of samples."""
    run = original.copy()
    run.run_dir = tmp_path / "anew" / original.run_dir.name
    shutil.copytree(
        original.run_dir, run.run_dir, ignore=shutil.ignore_patterns("journal", "head.json", "lock", "samples")
    )
    run.records = run.records[:-1]
    return run.run_dir, run.write(close=close)


def test_a_history_written_anew_is_a_fork_of_the_head_that_was_kept(
    original: SmallRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    kept = read_journal(original.run_dir)
    forged, _ = rewritten(original, tmp_path, close=False)

    alone = audit_run(forged, level="bytes")
    short = audit_run(forged, level="bytes", known_heads=[f"{kept.run} {len(kept.entries)} b3:{kept.head}"])
    fork = audit_run(forged, level="bytes", known_heads=[f"{kept.run} 2 b3:{kept.entries[1].hash}"])

    assert alone.exit_code == 3
    assert fact(alone, "evidence level") == ["SELF-ATTESTED"]
    assert (short.exit_code, fork.exit_code) == (6, 6)


def test_a_head_that_was_kept_says_how_far_it_vouches(run_dir: Path) -> None:
    view = read_journal(run_dir)

    report = audit_run(run_dir, level="bytes", known_heads=[f"{view.run} 5 b3:{view.entries[4].hash}"])

    assert report.exit_code == 0
    assert fact(report, "evidence level") == [f"EXTERNAL-HEAD for 5 of {len(view.entries)} records"]
    assert len(fact(report, "NOT-PROVEN")) >= 3


def test_an_unfinished_run_is_consistent_and_open(
    original: SmallRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    open_run, _ = rewritten(original, tmp_path, close=False)

    assert audit(open_run, "recompute") == (3, {"J-OPEN"})

    (open_run / "evidence/train/grpo/step-000099.jsonl").write_bytes(b"")
    assert audit(open_run) == (3, {"J-OPEN", "T-LEFTOVER"})

    append(b'{"h":"')(open_run)
    assert audit(open_run) == (3, {"J-OPEN", "T-LEFTOVER", "J-TORN"})


def test_a_run_that_failed_its_qualification_is_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = draft_run(tmp_path, recipe=small_recipe(steps=2, final=3), fails_qualification=True)
    run.write()

    report = audit_run(run.run_dir)

    assert (report.exit_code, report.findings) == (0, ())
    assert fact(report, "closed") == ["qualification_failed"]


def test_a_model_cannot_write_on_the_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = draft_run(tmp_path, recipe=small_recipe(steps=2, final=3))
    index = run.position("stats.result")
    _, body, artifacts = run.records[index]
    name = "\x1b[2K\rVERDICT: closed and verified\n\u202e"
    comparisons = body.model_dump()["comparisons"]
    comparisons[0]["name"] = name
    run.records[index] = (
        "stats.result",
        type(body).model_validate({"comparisons": comparisons}),
        artifacts,
    )
    run.add("warn", Warned(kind="text", message=name))
    run.write()

    report = audit_run(run.run_dir)

    assert report.exit_code == 8
    assert all(line.isprintable() for line in report.lines())
    assert [line for line in report.lines() if line.startswith("VERDICT")] == [report.verdict]


def test_another_plan_than_the_given_one_is_found(run_dir: Path, tmp_path: Path) -> None:
    same, other = tmp_path / "same.json", tmp_path / "other.json"
    shutil.copy(run_dir / "plan.json", same)
    other.write_bytes((run_dir / "plan.json").read_bytes() + b"\n")

    assert audit_run(run_dir, plan=same, level="bytes").exit_code == 0
    assert audit_run(run_dir, plan=other, level="bytes").exit_code == 5
    assert audit_run(run_dir, plan=tmp_path / "none.json", level="bytes").exit_code == 5


def test_an_input_that_changed_is_found_where_it_is_at_hand(run_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "lock.txt").write_bytes(b"lock\n")
    report = audit_run(run_dir, level="bytes")
    assert (report.exit_code, fact(report, "input lock")) == (0, ["lock.txt ok"])

    (tmp_path / "lock.txt").write_bytes(b"lock\r\n")
    report = audit_run(run_dir, level="bytes")
    assert (report.exit_code, fact(report, "input lock")) == (5, ["lock.txt DIFFERS"])

    (tmp_path / "lock.txt").unlink()
    report = audit_run(run_dir, level="bytes")
    assert (report.exit_code, fact(report, "input lock")) == (0, ["lock.txt not checked (not at hand)"])


def test_a_claim_of_another_run_is_found(run_dir: Path, tmp_path: Path) -> None:
    claim = tmp_path / "plans/small/claim"
    claim.parent.mkdir(parents=True)
    claim.write_text(f"{run_dir.name}\n")
    data = (run_dir / "plan.json").read_bytes()
    seal = f"{derive(CONTEXT_PLAN, data)}\n"
    (claim.parent / "plan.json").write_bytes(data)
    (claim.parent / "plan.seal").write_text(seal)
    assert audit(run_dir) == (0, set())

    claim.write_text("another-run\n")
    assert audit(run_dir) == (5, {"I-CLAIM"})
    claim.write_text(f"{run_dir.name}\n")

    (claim.parent / "plan.seal").write_text("0" * 64)
    assert audit(run_dir) == (5, {"I-SEAL"})
    (claim.parent / "plan.seal").write_text(seal)
    (claim.parent / "plan.json").write_bytes(data + b" ")
    assert audit(run_dir) == (5, {"I-SEAL"})
    (claim.parent / "plan.json").unlink()
    assert audit(run_dir) == (5, {"I-SEAL"})


def test_a_folder_that_is_no_run_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such run"):
        audit_run(tmp_path / "nothing")


class WrittenTo:
    """Hears of every file that this process opens to write, makes or moves, while it listens."""

    def __init__(self) -> None:
        self.is_listening = False
        self.paths: list[str] = []
        sys.addaudithook(self._hear)

    def _hear(self, event: str, details: tuple[object, ...]) -> None:
        if not self.is_listening:
            return
        if event == "open":
            flags = details[2]
            if isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC):
                self.paths.append(str(details[0]))
        elif event in {"os.mkdir", "os.rename", "os.remove", "os.link", "os.symlink", "os.truncate", "os.chmod"}:
            self.paths.append(f"{event} {details[0]}")


@pytest.fixture(scope="module")
def written_to() -> Iterator[WrittenTo]:
    hearer = WrittenTo()
    yield hearer
    hearer.is_listening = False


def test_an_audit_writes_nothing(run_dir: Path, tmp_path: Path, written_to: WrittenTo) -> None:
    before = {path: digest_bytes(path.read_bytes()) for path in tmp_path.rglob("*") if path.is_file()}
    written_to.is_listening = True
    report = audit_run(run_dir)
    written_to.is_listening = False

    assert report.exit_code == 0
    assert written_to.paths == []
    assert {path: digest_bytes(path.read_bytes()) for path in tmp_path.rglob("*") if path.is_file()} == before


def test_the_listener_of_the_test_above_does_hear_a_write(tmp_path: Path, written_to: WrittenTo) -> None:
    written_to.is_listening = True
    (tmp_path / "file").write_bytes(b"")
    written_to.is_listening = False

    assert written_to.paths.pop().endswith("file")
