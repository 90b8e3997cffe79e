"""The journal's bytes: framing, canonical form and hash chain; bytes in, entries out, no file system.

The rules (J1 to J13) are those of `docs/journal-format.md`, and each finding carries the identifier that
the document gives it. A line's hash is checked on its raw bytes before anything parses them.
"""

from __future__ import annotations

import datetime
import re
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import Field, StringConstraints, ValidationError

from experiment.errors import JournalError
from experiment.records.base import Count, Digest, Name, Record
from experiment.records.entry import BODIES, Closed, Genesis, Resume
from experiment.sealing import canonical
from experiment.sealing.digests import CONTEXT_GENESIS, CONTEXT_RECORD, derive
from experiment.sealing.trees import name_problem

MAX_LINE = 1 << 20
"""Longest line in bytes, its line feed included; what is larger belongs into an artifact."""

SECTOR = 512
"""Bytes that a disk writes whole or not at all."""

_OPENING = b'{"h":"'
_MIDDLE = b'","r":'
_CLOSING = b"}\n"
_RAW_START = len(_OPENING) + 64 + len(_MIDDLE)
_HEX = re.compile(rb"[0-9a-f]{64}")

Body = TypeVar("Body", bound=Record)


@dataclass(frozen=True, slots=True)
class Artifact:
    """A file that a record vouches for."""

    path: str
    """Relative to the run directory, parts joined by `/`."""
    b3: str
    """Plain BLAKE3 of its bytes."""
    size: int
    """Bytes."""
    role: str


@dataclass(frozen=True, slots=True)
class Entry:
    """One record of the journal, as it was read back from its bytes."""

    seq: int
    type: str
    body: Record
    artifacts: tuple[Artifact, ...]
    hash: str
    """Derived BLAKE3 of the record's canonical bytes; the next record's `prev`."""
    segment: int
    t: str
    """Wall clock, RFC 3339 UTC with microseconds; orders nothing."""
    mono_us: int
    """Clock that only goes forward while the machine is up, microseconds."""
    boot: str
    """Which start of the machine `mono_us` belongs to."""


@dataclass(frozen=True, slots=True)
class Tip:
    """Where a chain stands: what the next record has to continue."""

    run: str
    last: Entry


class ArtifactRow(Record):
    """An artifact on disk."""

    b3: Digest
    n: Count
    p: str
    role: str


class Envelope(Record, Generic[Body]):
    """A record on disk: what every type shares, around its body."""

    v: Literal[1]
    run: Name
    seq: Count
    prev: Digest
    seg: Count
    t: Annotated[str, StringConstraints(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z$")]
    mono: Count
    boot: Annotated[str, StringConstraints(pattern=r"^[0-9a-z-]{1,64}$")]
    type: str
    body: Body
    art: Annotated[tuple[ArtifactRow, ...], Field(max_length=4096)]


def envelope_type(body: type[Record]) -> type[Envelope[Any]]:
    """Return the schema of a record around bodies of class `body`."""
    schema: type[Envelope[Any]] = Envelope.__class_getitem__(body)  # type: ignore[assignment]
    return schema


def damage(finding: str, place: str, found: str) -> JournalError:
    """Return the error for damage at `place`; its message starts with the finding's identifier."""
    return JournalError(f"{finding}: {place}: {found}")


def genesis_prev(plan: str, run: str) -> str:
    """Return the `prev` of record 0, which ties the chain to one plan and one run (rule J6)."""
    return derive(CONTEXT_GENESIS, f"{plan}{run}".encode())


def frame(raw: bytes, context: str = CONTEXT_RECORD) -> bytes:
    """Return the line that carries canonical bytes together with their hash (rule J2)."""
    return _OPENING + derive(context, raw).encode("ascii") + _MIDDLE + raw + _CLOSING


def unframe(line: bytes, place: str, context: str = CONTEXT_RECORD) -> tuple[str, bytes]:
    """Return (hash, canonical bytes) of a line whose hash is right; nothing is parsed before that.

    Raises:
        JournalError: J-FRAME (not a line of the form of rule J2) or J-HASH (the bytes are not those hashed).
    """
    digest = line[len(_OPENING) : len(_OPENING) + 64]
    is_framed = (
        len(line) <= MAX_LINE
        and line.startswith(_OPENING)
        and _HEX.fullmatch(digest) is not None
        and line[_RAW_START - len(_MIDDLE) : _RAW_START] == _MIDDLE
        and line.endswith(_CLOSING)
        and line.find(b"\n") == len(line) - 1
    )
    if not is_framed:
        raise damage("J-FRAME", place, "the bytes are not one framed record")
    raw = line[_RAW_START : -len(_CLOSING)]
    # J3: bytes of unknown origin are hashed, never parsed.
    if derive(context, raw).encode("ascii") != digest:
        raise damage("J-HASH", place, "the record is not the one that was hashed")
    return digest.decode("ascii"), raw


def read_entry(framed: tuple[str, bytes], tip: Tip | None, segment: int, place: str) -> Tip:
    """Return where the chain stands after the record that `unframe` gave.

    Args:
        framed: Hash and canonical bytes of the record.
        tip: What it continues; None stands for the start of the chain.
        segment: Number of the segment that holds it.
        place: Where that is, for messages.

    Raises:
        JournalError: The record breaks one of the rules J4 to J9.
    """
    digest, raw = framed
    envelope = _parse(raw, place)
    _check_artifacts(envelope, place)
    entry = Entry(
        seq=envelope.seq,
        type=envelope.type,
        body=envelope.body,
        artifacts=tuple(Artifact(row.p, row.b3, row.n, row.role) for row in envelope.art),
        hash=digest,
        segment=envelope.seg,
        t=envelope.t,
        mono_us=envelope.mono,
        boot=envelope.boot,
    )
    _check_link(envelope, tip, place)
    _check_segment(entry, tip, segment, place)
    return Tip(envelope.run, entry)


def write_entry(envelope: Envelope[Any]) -> bytes:
    """Return the line of a record.

    Raises:
        ValueError: A value has no canonical form, or the line would be longer than `MAX_LINE`.
    """
    line = frame(canonical.encode_record(envelope))
    if len(line) > MAX_LINE:
        msg = f"record of type {envelope.type} is {len(line)} bytes long, more than {MAX_LINE}; store it as an artifact"
        raise ValueError(msg)
    return line


def is_torn(tail: bytes, offset: int) -> bool:
    """Return whether a crash during one append explains `tail`, the bytes from `offset` to a segment's end.

    A write that was cut short has no line feed. One whose sectors reached the disk out of order may have its
    line feed, but then one of the sectors it touches is still all zero (rule J10).
    """
    if len(tail) > MAX_LINE:
        return False
    feed = tail.find(b"\n")
    if feed < 0:
        return True
    if feed != len(tail) - 1:
        return False
    first = SECTOR - offset % SECTOR
    starts = [0, *range(first, len(tail), SECTOR)]
    ends = [*starts[1:], len(tail)]
    return any(not any(tail[start:end]) for start, end in zip(starts, ends, strict=True))


def _parse(raw: bytes, place: str) -> Envelope[Any]:
    # J4: one value has one spelling, so that two readers cannot read two things.
    try:
        value = canonical.decode(raw)
    except ValueError as error:
        raise damage("J-CANON", place, str(error)) from None
    # J5: keys, types and version are closed; what is unknown is refused.
    kind = value.get("type") if isinstance(value, dict) else None
    if not isinstance(kind, str) or kind not in BODIES:
        raise damage("J-RECORD", place, f"unknown record type {kind!r}")
    try:
        envelope = envelope_type(BODIES[kind]).model_validate_json(raw)
        datetime.datetime.fromisoformat(envelope.t)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise damage("J-RECORD", place, f"{kind}, {where}: {first['msg']}") from None
    except ValueError as error:
        raise damage("J-RECORD", place, f"{kind}, t: {error}") from None
    return envelope


def _check_artifacts(envelope: Envelope[Any], place: str) -> None:
    paths = [row.p for row in envelope.art]
    # J8: bytes decide the order, and each path appears once.
    if any(first.encode() >= second.encode() for first, second in pairwise(paths)):
        raise damage("J-ARTIFACT", place, "artifacts are not sorted by path, or one is named twice")
    for path in paths:
        problem = path_problem(path)
        if problem is not None:
            raise damage("J-ARTIFACT", place, f"artifact path {path!r} {problem}")


def path_problem(path: str) -> str | None:
    """Return why `path` may not name a file below the run directory, or None where it may."""
    return next((problem for part in path.split("/") if (problem := name_problem(part)) is not None), None)


def _check_link(envelope: Envelope[Any], tip: Tip | None, place: str) -> None:
    # J6: number, run and link continue the record before; the first is tied to the plan.
    if tip is None:
        is_genesis = isinstance(envelope.body, Genesis)
        run, seq = envelope.run, 0
        prev = genesis_prev(envelope.body.plan, envelope.run) if is_genesis else ""
    else:
        run, seq, prev = tip.run, tip.last.seq + 1, tip.last.hash
        if isinstance(tip.last.body, Closed):
            raise damage("J-CLOSED", place, f"a record follows the close record {tip.last.seq}")
    if envelope.seq != seq:
        raise damage("J-CHAIN", place, f"record {envelope.seq} stands where record {seq} belongs")
    if envelope.run != run:
        raise damage("J-CHAIN", place, f"record of run '{envelope.run}' in the journal of run '{run}'")
    if envelope.prev != prev:
        raise damage("J-CHAIN", place, f"record {seq} does not continue what is before it")


def _check_segment(entry: Entry, tip: Tip | None, segment: int, place: str) -> None:
    opens = tip is None or tip.last.segment != segment
    expected = "genesis" if tip is None else "resume" if opens else None
    # J7: each segment says its number, and starts with the one record that may start it.
    if entry.segment != segment:
        raise damage("J-SEGMENT", place, f"record of segment {entry.segment} in segment {segment}")
    if expected is not None and entry.type != expected:
        raise damage("J-SEGMENT", place, f"segment {segment} starts with '{entry.type}' instead of '{expected}'")
    if expected is None and isinstance(entry.body, Genesis | Resume):
        raise damage("J-SEGMENT", place, f"'{entry.type}' in the middle of segment {segment}")
    # J9: a segment is one process, so neither the machine's start nor the direction of its clock can change.
    if tip is not None and not opens and (entry.boot != tip.last.boot or entry.mono_us < tip.last.mono_us):
        raise damage("J-CLOCK", place, "the machine's own clock is not the one of the record before, or went backwards")
    # J13, first half.
    if isinstance(entry.body, Closed) and entry.body.records != entry.seq + 1:
        raise damage("J-CLOSED", place, f"closes {entry.body.records} records, but is the {entry.seq + 1}th")
