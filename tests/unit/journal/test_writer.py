"""Writing: what is durable, what is refused before it reaches the disk, and what ends a writer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from experiment.errors import JournalError, LockedError, PlanError, StorageError, UsageError
from experiment.journal.chain import MAX_LINE, Artifact
from experiment.journal.reader import read_journal
from experiment.journal.writer import JournalWriter
from experiment.records.entry import Closed, StepFacts, TrainStep, Warned
from tests.doubles.crashing_files import CrashingFiles
from tests.doubles.small_journal import (
    CLOSED,
    PLAN,
    RUN,
    SetClock,
    genesis,
    note,
    resume,
    seal_checkpoint,
    start,
    write_two_segments,
)

if TYPE_CHECKING:
    from pathlib import Path


def test_what_append_returns_is_what_a_reader_finds(tmp_path: Path) -> None:
    writer = start(tmp_path)
    entries = [writer.append("warn", note(text)) for text in ("one", "two", "ü\x1b\U0001f600\n")]
    assert read_journal(tmp_path).entries[1:] == tuple(entries)
    assert writer.entries == read_journal(tmp_path).entries
    writer.release()


def test_floats_come_back_as_the_same_floats(tmp_path: Path) -> None:
    facts = StepFacts(step=1, evidence="a" * 64, learning_rate=1e-7, loss=1.0, grad_norm=1e22, metrics=(("kl", 0.1),))
    body = TrainStep(arm="grpo", facts=facts, families=(), ends=(), divergences=(), seconds=1e6, rollout_seconds=-0.0)
    writer = start(tmp_path)
    writer.append("train.step", body)
    writer.release()
    found = read_journal(tmp_path).entries[1].body
    assert found == body
    assert isinstance(found, TrainStep)
    assert isinstance(found.facts.loss, float)


def test_a_record_is_durable_when_append_returns(tmp_path: Path) -> None:
    files = CrashingFiles()
    writer = start(tmp_path, files)
    files.names.clear()
    writer.append("warn", note("one"))
    assert files.names == ["write", "fsync"]
    writer.release()


def test_the_head_line_says_run_size_and_hash(tmp_path: Path) -> None:
    writer = start(tmp_path)
    entry = writer.append("warn", note("one"))
    assert writer.mark() == f"{RUN} 2 b3:{entry.hash}"
    writer.release()
    watermark = read_journal(tmp_path).watermark
    assert watermark is not None
    assert (watermark.size, watermark.h) == (2, entry.hash)


def test_artifacts_are_stored_sorted(tmp_path: Path) -> None:
    writer = start(tmp_path)
    rows = [Artifact(path, "a" * 64, 1, "evidence") for path in ("b/\uff5e", "b/\U0001f600", "a-b", "a/b")]
    entry = writer.append("warn", note("one"), rows)
    writer.release()
    assert [row.path for row in entry.artifacts] == ["a-b", "a/b", "b/\uff5e", "b/\U0001f600"]


def test_a_closed_journal_counts_its_records_and_takes_no_more(tmp_path: Path) -> None:
    writer = start(tmp_path)
    writer.append("warn", note("one"))
    assert writer.close(CLOSED).startswith(f"{RUN} 3 b3:")
    view = read_journal(tmp_path)
    assert view.is_closed
    assert view.entries[-1].body == Closed(records=3, outcome="assessed", active_seconds=1.5)
    with pytest.raises(LockedError):
        writer.append("warn", note("two"))
    with pytest.raises(UsageError, match="closed"):
        resume(tmp_path)
    assert read_journal(tmp_path) == view


def test_nothing_can_be_appended_after_a_close_record(tmp_path: Path) -> None:
    writer = start(tmp_path)
    writer.append("close", Closed(records=2, outcome="assessed", active_seconds=0.0))
    with pytest.raises(JournalError, match="J-CLOSED"):
        writer.append("warn", note("two"))
    writer.release()
    assert read_journal(tmp_path).is_closed


@pytest.mark.parametrize(
    ("type_", "body", "error"),
    [
        ("warn", CLOSED, ValueError),
        ("mystery", note("one"), ValueError),
        ("warn", note("\ud800"), ValueError),
        ("warn", note("x" * MAX_LINE), ValueError),
        ("genesis", genesis(), JournalError),
        ("close", Closed(records=7, outcome="assessed", active_seconds=0.0), JournalError),
        ("close", Closed(records=2, outcome="assessed", active_seconds=float(2**53)), ValueError),
    ],
)
def test_what_a_reader_would_refuse_never_reaches_the_disk(
    tmp_path: Path, type_: str, body: Warned, error: type[Exception]
) -> None:
    writer = start(tmp_path)
    before = (tmp_path / "journal" / "000000.jsonl").read_bytes()
    with pytest.raises(error):
        writer.append(type_, body)
    assert (tmp_path / "journal" / "000000.jsonl").read_bytes() == before
    writer.append("warn", note("the writer is still good"))
    writer.release()
    assert len(read_journal(tmp_path).entries) == 2


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
def test_a_body_that_would_read_back_as_another_value_is_refused(tmp_path: Path) -> None:
    writer = start(tmp_path)
    with pytest.raises(ValueError, match="reads back as another value"):
        writer.append("warn", note("one").model_copy(update={"message": b"bytes"}))
    writer.release()
    assert len(read_journal(tmp_path).entries) == 1


@pytest.mark.parametrize("path", ["", "/a", "a//b", "../a", "a/.", "a\\b", "a\nb", "u\u0308"])
def test_artifact_paths_that_could_leave_the_run_are_refused(tmp_path: Path, path: str) -> None:
    writer = start(tmp_path)
    with pytest.raises(JournalError, match="J-ARTIFACT"):
        writer.append("warn", note("one"), [Artifact(path, "a" * 64, 1, "evidence")])
    writer.release()


@pytest.mark.parametrize("how", ["EIO", "ENOSPC", "short"])
@pytest.mark.parametrize("operation", ["write", "fsync"])
def test_one_failed_write_poisons_the_writer_for_good(tmp_path: Path, how: str, operation: str) -> None:
    files = CrashingFiles(how=how)
    writer = start(tmp_path, files)
    writer.append("warn", note("safe"))
    files.at = files.count + ["write", "fsync"].index(operation)
    with pytest.raises(StorageError):
        writer.append("warn", note("lost"))
    with pytest.raises(StorageError, match="nothing is appended after a failed write"):
        writer.append("warn", note("after"))
    with pytest.raises(StorageError, match="nothing is appended after a failed write"):
        writer.mark()
    writer.release()
    writer = resume(tmp_path)
    writer.release()
    assert [entry.body for entry in read_journal(tmp_path).entries][1] == note("safe")


def test_an_interrupt_during_a_write_poisons_too(tmp_path: Path) -> None:
    class Interrupted(CrashingFiles):
        def write(self, fd: int, data: bytes) -> None:
            if self.at is not None:
                raise KeyboardInterrupt
            super().write(fd, data)

    files = Interrupted()
    writer = start(tmp_path, files)
    files.at = 10_000
    with pytest.raises(KeyboardInterrupt):
        writer.append("warn", note("lost"))
    with pytest.raises(StorageError, match="KeyboardInterrupt"):
        writer.append("warn", note("after"))
    writer.release()


def test_a_run_has_one_journal(tmp_path: Path) -> None:
    write_two_segments(tmp_path)
    before = read_journal(tmp_path)
    with pytest.raises(UsageError, match="has a journal already"):
        start(tmp_path)
    assert read_journal(tmp_path) == before


def test_only_a_run_with_a_journal_is_resumed(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no journal to resume"):
        resume(tmp_path)
    assert not any(tmp_path.iterdir())


def test_another_plan_cannot_resume(tmp_path: Path) -> None:
    write_two_segments(tmp_path)
    before = read_journal(tmp_path)
    with pytest.raises(PlanError, match=PLAN):
        JournalWriter.resume(tmp_path, plan="e5" * 32, reason="test")
    assert read_journal(tmp_path) == before


def test_a_damaged_checkpoint_stops_a_resume(tmp_path: Path) -> None:
    writer = start(tmp_path)
    writer.append("ckpt.sealed", seal_checkpoint(tmp_path, 1))
    writer.release()
    (tmp_path / "checkpoints" / "grpo" / "step-000001" / "weights.bin").write_bytes(b"")
    with pytest.raises(JournalError, match=r"step-000001: 'weights.bin' is not what was sealed"):
        resume(tmp_path)


def test_a_failed_resume_gives_the_lock_back(tmp_path: Path) -> None:
    write_two_segments(tmp_path)
    with pytest.raises(PlanError):
        JournalWriter.resume(tmp_path, plan="e5" * 32, reason="test")
    resume(tmp_path).release()


def test_segments_of_the_past_are_never_changed(tmp_path: Path) -> None:
    write_two_segments(tmp_path)
    with (tmp_path / "journal" / "000001.jsonl").open("ab") as stream:
        stream.write(b"torn")
    before = [path.read_bytes() for path in sorted((tmp_path / "journal").iterdir())]
    writer = resume(tmp_path)
    writer.append("warn", note("more"))
    writer.close(CLOSED)
    assert [path.read_bytes() for path in sorted((tmp_path / "journal").iterdir())][:2] == before


def test_a_wall_clock_that_goes_back_is_recorded_and_not_hidden(tmp_path: Path) -> None:
    clock = SetClock(seconds=7200)
    writer = start(tmp_path, clock=clock)
    clock.seconds -= 3600
    writer.append("warn", note("one"))
    writer.append("warn", note("two"))
    writer.release()
    entries = read_journal(tmp_path).entries
    assert [entry.body for entry in entries[2:]] == [note("one"), note("two")]
    assert entries[1].body == Warned(
        kind="clock",
        message="wall clock went back from 2026-11-29T02:00:01.000000Z (record 0) to 2026-11-29T01:00:02.000000Z",
    )
    assert entries[2].t == "2026-11-29T01:00:02.000000Z"


def test_clocks_that_go_back_between_two_processes_are_recorded(tmp_path: Path) -> None:
    start(tmp_path, clock=SetClock(seconds=10, mono_us=50_000_000)).release()
    resume(tmp_path, clock=SetClock(seconds=20, mono_us=0)).release()
    resume(tmp_path, clock=SetClock(seconds=5, mono_us=0, boot="boot-two")).release()
    resume(tmp_path, clock=SetClock(seconds=30, mono_us=0, boot="boot-three")).release()
    entries = read_journal(tmp_path).entries
    assert [entry.type for entry in entries] == ["genesis", "resume", "warn", "resume", "warn", "resume"]
    assert [entry.body.message[:5] for entry in entries if isinstance(entry.body, Warned)] == ["machi", "wall "]


def test_closing_after_a_clock_step_warns_first(tmp_path: Path) -> None:
    clock = SetClock(seconds=7200)
    writer = start(tmp_path, clock=clock)
    clock.seconds = 0
    writer.close(CLOSED)
    assert [entry.type for entry in read_journal(tmp_path).entries] == ["genesis", "warn", "close"]


def test_the_real_clocks_fit(tmp_path: Path) -> None:
    writer = JournalWriter.create(tmp_path / "runs" / "new", run=RUN, genesis=genesis())
    writer.append("warn", note("one"))
    writer.release()
    first, second = read_journal(tmp_path / "runs" / "new").entries
    assert first.boot == second.boot != ""
    assert 0 < first.mono_us <= second.mono_us < 2**53
