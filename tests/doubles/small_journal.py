"""A journal of a few records, with a clock that a test sets."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import rfc8785

from experiment.journal.chain import frame, genesis_prev
from experiment.journal.clock import Clock, Moment
from experiment.journal.head import Head, write_head
from experiment.journal.writer import JournalWriter
from experiment.records.entry import CheckpointSealed, Closed, Genesis, Warned
from experiment.sealing.files import Files
from experiment.sealing.trees import seal_tree

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class QuickFiles(Files):
    """The real file system for tests that lose no power."""

    def fsync(self, fd: int) -> None:
        pass

    def anchor(self, folder: Path) -> None:
        pass


QUICK = QuickFiles()
PLAN = "a1" * 32
RUN = "small-journal"
BOOT = "boot-one"


class SetClock(Clock):
    """Goes forward by one second per reading, from where a test puts it."""

    def __init__(self, seconds: int = 0, mono_us: int = 0, boot: str = BOOT) -> None:
        self.seconds = seconds
        self.mono_us = mono_us
        self.boot = boot

    def now(self) -> Moment:
        self.seconds += 1
        self.mono_us += 1_000_000
        hours, rest = divmod(self.seconds, 3600)
        minutes, seconds = divmod(rest, 60)
        return Moment(f"2026-11-29T{hours:02d}:{minutes:02d}:{seconds:02d}.000000Z", self.mono_us, self.boot)


def genesis(plan: str = PLAN) -> Genesis:
    return Genesis(
        plan=plan,
        plan_schema="experiment-plan/1",
        sources="b2" * 32,
        claim="plans/small/claim",
        journal_code="c3" * 32,
        host="host",
    )


def note(text: str) -> Warned:
    return Warned(kind="note", message=text)


CLOSED = Closed(records=0, outcome="assessed", active_seconds=1.5)


def start(run_dir: Path, files: Files = QUICK, clock: Clock | None = None) -> JournalWriter:
    return JournalWriter.create(run_dir, run=RUN, genesis=genesis(), files=files, clock=clock or SetClock())


def resume(run_dir: Path, files: Files = QUICK, clock: Clock | None = None) -> JournalWriter:
    later = 1000 * len(list(run_dir.glob("journal/*")))
    clock = clock or SetClock(seconds=later, mono_us=later * 1_000_000)
    return JournalWriter.resume(run_dir, plan=PLAN, reason="test", files=files, clock=clock)


def write_two_segments(run_dir: Path, *, close: bool = False) -> None:
    """Six records in two segments, or seven where the journal is closed; the watermark is at the last one."""
    writer = start(run_dir)
    writer.append("warn", note("first"))
    writer.append("warn", note("second, with ü and \x1b"))
    writer.release()
    writer = resume(run_dir)
    writer.append("warn", note("third"))
    writer.append("warn", note("fourth"))
    if close:
        writer.close(CLOSED)
    else:
        writer.mark()
        writer.release()


def seal_checkpoint(run_dir: Path, step: int, files: Files = QUICK) -> CheckpointSealed:
    """Seal a directory of two files as the checkpoint of a step, and return its record's body."""
    folder = run_dir / "checkpoints" / "grpo"
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / f".partial-{step}"
    (partial / "inner").mkdir(parents=True)
    (partial / "weights.bin").write_bytes(bytes([step]) * 700)
    (partial / "inner" / "state.json").write_bytes(b"{}")
    seal = seal_tree(partial, folder / f"step-{step:06d}", files=files)
    return CheckpointSealed(
        arm="grpo", step=step, path=f"checkpoints/grpo/step-{step:06d}", tree=seal.tree, state=(), is_candidate=True
    )


def forge(run_dir: Path, edit: Callable[[list[list[dict[str, Any]]]], object]) -> None:
    """Edit a journal's records, given by segment, and hash, chain and mark all of it anew."""
    paths = sorted((run_dir / "journal").iterdir())
    segments = [[json.loads(line[76:-1]) for line in path.read_bytes().splitlines()] for path in paths]
    edit(segments)
    prev, count, size = "", 0, 0
    last: dict[str, Any] = {}
    for path, segment in zip(paths, segments, strict=True):
        lines = []
        for record in segment:
            record["prev"] = genesis_prev(record["body"].get("plan", PLAN), record["run"]) if count == 0 else prev
            lines.append(frame(rfc8785.dumps(record)))
            prev, count, last = lines[-1][6:70].decode(), count + 1, record
        size = sum(map(len, lines))
        path.write_bytes(b"".join(lines))
    write_head(run_dir, Head(v=1, run=RUN, size=count, h=prev, seg=last["seg"], bytes=size))
