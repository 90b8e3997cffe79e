"""Reading a journal: every byte of every segment is checked, nothing is changed, no lock is taken."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

from experiment.errors import JournalError
from experiment.journal.chain import MAX_LINE, damage, is_torn, read_entry, unframe
from experiment.journal.head import HEAD_NAME, read_head
from experiment.records.entry import Closed, Genesis, Resume, SegmentEnd
from experiment.sealing.digests import digest_bytes
from experiment.sealing.files import open_regular, refused

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from experiment.journal.chain import Entry, Tip
    from experiment.journal.head import Head

JOURNAL_NAME = "journal"
_SEGMENT = re.compile(r"\d{6}\.jsonl")


@dataclass(frozen=True, slots=True)
class JournalView:
    """A journal that was found to be whole."""

    run: str
    plan: str
    """Digest of the plan that the run executes."""
    entries: tuple[Entry, ...]
    head: str
    """Hash of the last record."""
    is_closed: bool
    torn_bytes: int
    """Bytes of incomplete records that no resume record names yet."""
    segments: tuple[SegmentEnd, ...]
    """How each segment ends."""
    watermark: Head | None
    """The head file; None only for a journal that holds nothing but its genesis."""


def segment_path(run_dir: Path, number: int) -> Path:
    """Return where segment `number` of a run is kept."""
    return run_dir / JOURNAL_NAME / f"{number:06d}.jsonl"


def read_journal(run_dir: Path) -> JournalView:
    """Return the journal of a run, every byte of which was checked.

    A journal that another process is writing to may be read at any time: what it is just appending shows up
    as torn bytes.

    Raises:
        JournalError: The journal is damaged; the message starts with a finding such as `J-CHAIN` or
            `J-WATERMARK` and names segment, byte and record.
        StorageError: The file system cannot read it.
    """
    # The head is read first: a writer may append between the two, but never the other way round.
    head = read_head(run_dir)
    with refused(run_dir / JOURNAL_NAME):
        return read_segments(_open_segments(run_dir), head)


def read_segments(segments: Iterable[BinaryIO], head: Head | None) -> JournalView:
    """Return the journal whose segments, from 0 on, are `segments`.

    Raises:
        JournalError: As for `read_journal`.
    """
    scan = _Scan(head)
    for stream in segments:
        with stream:
            scan.read(stream)
    return scan.finish()


def segment_count(run_dir: Path) -> int:
    """Return how many segments a run's journal has.

    Raises:
        JournalError: J-LAYOUT: a file is missing, or does not belong there.
    """
    journal = run_dir / JOURNAL_NAME
    try:
        names = sorted(path.name for path in journal.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        raise damage("J-LAYOUT", str(journal), "there is no journal") from None
    if not names or journal.is_symlink():
        raise damage("J-LAYOUT", str(journal), "is empty or a link")
    # J1: consecutive numbers from 000000, and nothing else.
    for number, name in enumerate(names):
        if _SEGMENT.fullmatch(name) is None or name != segment_path(run_dir, number).name:
            raise damage("J-LAYOUT", f"{JOURNAL_NAME}/{name}", f"stands where segment {number:06d} belongs")
    return len(names)


def _open_segments(run_dir: Path) -> Iterable[BinaryIO]:
    for number in range(segment_count(run_dir)):
        path = segment_path(run_dir, number)
        try:
            yield open_regular(path)
        except OSError as error:
            raise damage("J-LAYOUT", f"{JOURNAL_NAME}/{path.name}", f"cannot be opened ({error.strerror})") from error


class _Scan:
    """One pass over a journal; memory for the entries and one line."""

    def __init__(self, head: Head | None) -> None:
        self._head = head
        self._tip: Tip | None = None
        self._entries: list[Entry] = []
        self._ends: list[SegmentEnd] = []
        self._named = 0

    def read(self, stream: BinaryIO) -> None:
        number = len(self._ends)
        offset = 0
        tail = b""
        while line := stream.readline(MAX_LINE + 1):
            place = f"{JOURNAL_NAME}/{number:06d}.jsonl at byte {offset}, record {len(self._entries)}"
            try:
                framed = unframe(line, place)
            except JournalError:
                tail = line + stream.read(MAX_LINE + 1)
                # J10: only what a crash can leave, and only at the end of a segment.
                if not is_torn(tail, offset):
                    raise
                break
            self._tip = read_entry(framed, self._tip, number, place)
            self._check_closes(self._tip.last, place)
            self._entries.append(self._tip.last)
            offset += len(line)
            self._check_head(offset)
        self._end(SegmentEnd(seg=number, good=offset, torn=len(tail), b3=digest_bytes(tail)))

    def finish(self) -> JournalView:
        genesis = self._entries[0].body if self._entries else None
        if self._tip is None or not isinstance(genesis, Genesis):
            raise damage("J-SEGMENT", JOURNAL_NAME, "there is no complete genesis record")
        head = self._head
        # J12: a journal is at least as long as its watermark, and has one as soon as it has a second record.
        if head is None and max(len(self._entries), len(self._ends)) > 1:
            raise damage("J-WATERMARK", HEAD_NAME, f"is missing beside a journal of {len(self._entries)} records")
        if head is not None and head.size > len(self._entries):
            found = f"the journal has {len(self._entries)} records, but had {head.size}; its end was cut off"
            raise damage("J-WATERMARK", HEAD_NAME, found)
        return JournalView(
            run=self._tip.run,
            plan=genesis.plan,
            entries=tuple(self._entries),
            head=self._tip.last.hash,
            is_closed=isinstance(self._tip.last.body, Closed),
            torn_bytes=sum(end.torn for end in self._ends[self._named :]),
            segments=tuple(self._ends),
            watermark=head,
        )

    def _check_closes(self, entry: Entry, place: str) -> None:
        if not isinstance(entry.body, Resume):
            return
        # J11: what earlier processes left behind is part of the chain from here on.
        if entry.body.closes != tuple(self._ends[self._named :]):
            raise damage("J-SEGMENT", place, "the segments before do not end as this resume record found them")
        self._named = len(self._ends)

    def _check_head(self, offset: int) -> None:
        head = self._head
        if head is None or self._tip is None or head.size != len(self._entries):
            return
        last = self._tip.last
        if (head.run, head.h, head.seg, head.bytes) != (self._tip.run, last.hash, last.segment, offset):
            raise damage("J-WATERMARK", HEAD_NAME, f"record {last.seq} is not the one that was marked")

    def _end(self, end: SegmentEnd) -> None:
        self._ends.append(end)
        if self._tip is None or not isinstance(self._tip.last.body, Closed):
            return
        # J13: after the close record there is nothing, not even a torn or an empty segment.
        if end.torn or end.seg != self._tip.last.segment:
            raise damage("J-CLOSED", f"{JOURNAL_NAME}/{end.seg:06d}.jsonl", "there are bytes after the close record")
