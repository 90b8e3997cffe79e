"""The head file: how far the journal is known to have got, kept outside of it (rule J12)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from experiment.errors import JournalError
from experiment.journal.chain import MAX_LINE, damage, frame, unframe
from experiment.records.base import Count, Digest, Name, Positive, Record
from experiment.sealing import canonical
from experiment.sealing.digests import CONTEXT_HEAD
from experiment.sealing.files import FILES, open_regular, write_atomic

if TYPE_CHECKING:
    from pathlib import Path

    from experiment.sealing.files import Files

HEAD_NAME = "head.json"


class Head(Record):
    """A durable watermark: a journal shorter than this has lost records."""

    v: Literal[1]
    run: Name
    size: Positive
    """How many records the journal had."""
    h: Digest
    """Hash of the last of them."""
    seg: Count
    """Its segment."""
    bytes: Positive
    """Where its line ends in that segment."""


def head_line(head: Head) -> str:
    """Return the one line that is worth keeping outside the machine."""
    return f"{head.run} {head.size} b3:{head.h}"


def write_head(run_dir: Path, head: Head, *, files: Files = FILES) -> None:
    """Afterwards `head.json` durably holds `head`.

    Raises:
        StorageError: The file system refused.
    """
    write_atomic(run_dir / HEAD_NAME, frame(canonical.encode_record(head), CONTEXT_HEAD), files=files)


def read_head(run_dir: Path) -> Head | None:
    """Return the watermark of a run, or None where there is no head file.

    Raises:
        JournalError: J-WATERMARK: the file is not a whole, true head.
    """
    path = run_dir / HEAD_NAME
    try:
        with open_regular(path) as stream:
            data = stream.read(MAX_LINE + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise damage("J-WATERMARK", HEAD_NAME, f"cannot be read ({error.strerror})") from error
    return parse_head(data)


def parse_head(data: bytes) -> Head:
    """Return the head whose file contents are exactly `data`.

    Raises:
        JournalError: J-WATERMARK: they are not a whole, true head.
    """
    try:
        _, raw = unframe(data, HEAD_NAME, CONTEXT_HEAD)
        return canonical.decode_record(Head, raw)
    except (JournalError, ValueError) as error:
        raise damage("J-WATERMARK", HEAD_NAME, f"is not a whole, true head ({error})") from error
