"""Writing a journal: a record is durable when `append` returns, and after one failed write nothing is appended."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from experiment.errors import LockedError, PlanError, StorageError, UsageError
from experiment.journal.chain import (
    ArtifactRow,
    Tip,
    envelope_type,
    genesis_prev,
    read_entry,
    unframe,
    write_entry,
)
from experiment.journal.clock import CLOCK, clock_problem
from experiment.journal.head import Head, head_line, write_head
from experiment.journal.lock import RunLock
from experiment.journal.reader import JOURNAL_NAME, read_journal, segment_path
from experiment.journal.recovery import PARTIAL_PREFIX, move_leftovers, settle, verify_checkpoints
from experiment.records.entry import BODIES, Resume, Warned
from experiment.sealing.files import FILES, refused

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from experiment.journal.chain import (
        Artifact,
        Entry,
        Envelope,
    )
    from experiment.journal.clock import Clock, Moment
    from experiment.journal.reader import JournalView
    from experiment.records.base import Record
    from experiment.records.entry import Closed, Genesis
    from experiment.sealing.files import Files


@dataclass(frozen=True, slots=True)
class _Session:
    """What stays the same while one process writes."""

    run_dir: Path
    run: str
    plan: str
    segment: int
    lock: RunLock
    files: Files
    clock: Clock


class JournalWriter:
    """The one writer of a run's journal; made by `create` or `resume`, ended by `close` or `release`."""

    def __init__(self, session: _Session, entries: Sequence[Entry]) -> None:
        self._session = session
        self._entries = list(entries)
        self._fd = -1
        self._size = 0
        self._broken: str | None = None

    @classmethod
    def create(cls, run_dir: Path, *, run: str, genesis: Genesis, files: Files = FILES, clock: Clock = CLOCK) -> Self:
        """Start the journal of a run with its genesis record; both are durable afterwards.

        Args:
            run_dir: The run's directory; made where it is missing.
            run: Name of the run.
            genesis: Body of record 0; binds the chain to the plan.
            files: The file system.
            clock: The clocks.

        Raises:
            UsageError: The run has a journal already.
            LockedError: Another process works on the run.
            StorageError: The file system refused; there is no journal, or one with its genesis record.
        """
        with refused(run_dir):
            run_dir.mkdir(parents=True, exist_ok=True)
        lock = RunLock.acquire(run_dir, run)
        writer = cls(_Session(run_dir, run, genesis.plan, 0, lock, files, clock), ())
        with _released_on_error(lock):
            if (run_dir / JOURNAL_NAME).exists():
                msg = f"{run_dir}: has a journal already"
                raise UsageError(msg, remedy="Continue it with `python -m experiment run --resume`.")
            # A journal directory appears with its genesis record in it, or not at all.
            partial = run_dir / f"{PARTIAL_PREFIX}journal-{secrets.token_hex(8)}"
            with writer._poisoned_on_error():
                files.mkdir(partial)
                writer._fd = files.create(partial / segment_path(run_dir, 0).name)
            writer.append("genesis", genesis)
            with writer._poisoned_on_error():
                files.fsync_path(partial)
                files.rename(partial, run_dir / JOURNAL_NAME)
                files.fsync_path(run_dir)
                files.anchor(run_dir)
            writer.mark()
        return writer

    @classmethod
    def resume(cls, run_dir: Path, *, plan: str, reason: str, files: Files = FILES, clock: Clock = CLOCK) -> Self:
        """Go on with a run in a new segment, whose `resume` record names what the last process left behind.

        Every segment and every sealed checkpoint is verified first. Checkpoints and evidence that no record
        names are moved to `recovery/`.

        Args:
            run_dir: The run's directory.
            plan: Digest of the plan that the caller holds.
            reason: Why the run goes on, for readers.
            files: The file system.
            clock: The clocks.

        Raises:
            JournalError: The journal or a sealed checkpoint is damaged.
            PlanError: The journal belongs to another plan.
            UsageError: The journal is closed.
            LockedError: Another process works on the run.
            StorageError: The file system refused; resuming again is safe.
        """
        if not (run_dir / JOURNAL_NAME).is_dir():
            msg = f"{run_dir}: has no journal to resume"
            raise UsageError(msg, remedy="Start the run without `--resume`, or name the right run directory.")
        lock = RunLock.acquire(run_dir, run_dir.name)
        with _released_on_error(lock):
            view = _checked(run_dir, plan)
            with refused(run_dir):
                settle(run_dir, view, files)
                moved = move_leftovers(run_dir, view, files)
            session = _Session(run_dir, view.run, plan, len(view.segments), lock, files, clock)
            writer = cls(session, view.entries)
            if view.watermark is None:
                # A head may be missing beside the genesis record only.
                writer._write_head(view.entries[-1], view.segments[0].good)
            writer._open_segment(_resume_body(view, moved, reason))
            writer.mark()
        return writer

    @property
    def run(self) -> str:
        """Name of the run."""
        return self._session.run

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All records so far, those of earlier segments included."""
        return tuple(self._entries)

    def append(self, type_: str, body: Record, artifacts: Sequence[Artifact] = ()) -> Entry:
        """Return the new record, which is durable.

        Where the wall clock went back since the last record, a `warn` record of kind `clock` comes first.

        Args:
            type_: A key of `BODIES`; `body` is of its class.
            body: What the record says.
            artifacts: Files it vouches for, durable already; in any order.

        Raises:
            ValueError: Type and body do not fit, or the record cannot be written in canonical form.
            JournalError: The journal is closed.
            LockedError: This process does not hold the run's lock (any more).
            StorageError: The file system refused, now or earlier; a new process has to resume the run.
        """
        moment = self._session.clock.now()
        problem = clock_problem(self._entries[-1], moment) if self._entries else None
        if problem is not None:
            self._record("warn", Warned(kind="clock", message=problem), (), moment)
        return self._record(type_, body, artifacts, moment)

    def mark(self) -> str:
        """Make the present end of the journal its durable watermark, and return it as one line.

        Raises:
            LockedError: This process does not hold the run's lock (any more).
            StorageError: The file system refused, now or earlier.
        """
        self._check_usable()
        return self._write_head(self._entries[-1], self._size)

    def close(self, body: Closed) -> str:
        """End the journal for good, release the lock, and return the final head as one line.

        Args:
            body: What the run came to; its `records` is set here.

        Raises:
            JournalError: The journal is closed already.
            StorageError: The file system refused.
        """
        moment = self._session.clock.now()
        problem = clock_problem(self._entries[-1], moment)
        if problem is not None:
            self._record("warn", Warned(kind="clock", message=problem), (), moment)
        self._record("close", body.model_copy(update={"records": len(self._entries) + 1}), (), moment)
        line = self.mark()
        self.release()
        return line

    def release(self) -> None:
        """Give the lock back without closing the journal; the writer is of no further use."""
        if self._fd >= 0 and self._session.lock.is_held:
            os.close(self._fd)
            self._fd = -1
        self._session.lock.release()

    def _open_segment(self, body: Resume) -> None:
        session = self._session
        with self._poisoned_on_error():
            self._fd = session.files.create(segment_path(session.run_dir, session.segment))
            session.files.fsync_path(session.run_dir / JOURNAL_NAME)
        moment = session.clock.now()
        problem = clock_problem(self._entries[-1], moment)
        self._record("resume", body, (), moment)
        if problem is not None:
            self._record("warn", Warned(kind="clock", message=problem), (), moment)

    def _record(self, type_: str, body: Record, artifacts: Sequence[Artifact], moment: Moment) -> Entry:
        self._check_usable()
        if BODIES.get(type_) is not type(body):
            msg = f"a record of type '{type_}' cannot have a body of {type(body).__name__}"
            raise ValueError(msg)
        session = self._session
        tip = Tip(session.run, self._entries[-1]) if self._entries else None
        line = write_entry(self._envelope(type_, body, artifacts, moment))
        # What a reader would refuse, or read as something else, must not reach the disk.
        entry = read_entry(unframe(line, type_), tip, session.segment, f"new record of type '{type_}'").last
        if entry.body != body:
            msg = f"record of type '{type_}' reads back as another value"
            raise ValueError(msg)
        with self._poisoned_on_error():
            session.files.write(self._fd, line)
            session.files.fsync(self._fd)
        self._entries.append(entry)
        self._size += len(line)
        return entry

    def _envelope(self, type_: str, body: Record, artifacts: Sequence[Artifact], moment: Moment) -> Envelope[Any]:
        session = self._session
        rows = (ArtifactRow(b3=item.b3, n=item.size, p=item.path, role=item.role) for item in artifacts)
        return envelope_type(type(body))(
            v=1,
            run=session.run,
            seq=len(self._entries),
            prev=self._entries[-1].hash if self._entries else genesis_prev(session.plan, session.run),
            seg=session.segment,
            t=moment.t,
            mono=moment.mono_us,
            boot=moment.boot,
            type=type_,
            body=body,
            art=tuple(sorted(rows, key=lambda row: row.p.encode())),
        )

    def _write_head(self, last: Entry, size: int) -> str:
        head = Head(v=1, run=self.run, size=last.seq + 1, h=last.hash, seg=last.segment, bytes=size)
        with self._poisoned_on_error():
            write_head(self._session.run_dir, head, files=self._session.files)
        return head_line(head)

    def _check_usable(self) -> None:
        if self._broken is not None:
            msg = f"{self._session.run_dir}: nothing is appended after a failed write ({self._broken})"
            raise StorageError(msg)
        if not self._session.lock.is_held:
            msg = f"{self._session.run_dir}: this process does not hold the run's lock"
            raise LockedError(msg)

    @contextlib.contextmanager
    def _poisoned_on_error(self) -> Iterator[None]:
        """Any end of the block but a clean one leaves the disk in a state that only a new process may judge."""
        try:
            with refused(self._session.run_dir):
                yield
        except BaseException as error:
            self._broken = str(error) or type(error).__name__
            raise


@contextlib.contextmanager
def _released_on_error(lock: RunLock) -> Iterator[None]:
    try:
        yield
    except BaseException:
        lock.release()
        raise


def _checked(run_dir: Path, plan: str) -> JournalView:
    view = read_journal(run_dir)
    if view.plan != plan:
        msg = f"{run_dir}: its journal belongs to plan {view.plan}, not to {plan}"
        raise PlanError(msg)
    if view.is_closed:
        msg = f"{run_dir}: its journal is closed, there is nothing to resume"
        raise UsageError(msg, remedy="Read the run with `python -m experiment report`.")
    verify_checkpoints(run_dir, view.entries)
    return view


def _resume_body(view: JournalView, moved: tuple[str, ...], reason: str) -> Resume:
    named = {end.seg for entry in view.entries if isinstance(entry.body, Resume) for end in entry.body.closes}
    return Resume(
        closes=tuple(end for end in view.segments if end.seg not in named),
        moved=moved,
        pid=os.getpid(),
        host=socket.gethostname(),
        reason=reason,
    )
