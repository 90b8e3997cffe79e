"""Inspections of a finished run: a small chain of its own that begins at the closed journal's last hash.

Nothing may follow a journal's close record, and people read samples after the run has ended. Each inspection is one
framed line (rule J2, with a context of its own) in `inspections/NNNNNN.json`, and continues the one before it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pydantic import ValidationError

from experiment.errors import JournalError, StorageError
from experiment.journal.chain import damage, frame, unframe
from experiment.records.inspection import Inspection
from experiment.sealing.canonical import decode_record, encode_record
from experiment.sealing.digests import CONTEXT_INSPECTION
from experiment.sealing.files import FILES, open_regular, refused, write_atomic

if TYPE_CHECKING:
    from pathlib import Path

    from experiment.sealing.files import Files

INSPECTIONS_NAME = "inspections"
_FILE = re.compile(r"(\d{6})\.json")


def read_inspections(run_dir: Path, *, run: str, head: str) -> tuple[tuple[Inspection, ...], str]:
    """Return a run's inspections in order, and the hash that the next one has to continue.

    Args:
        run_dir: The run's folder.
        run: Name of the run.
        head: Hash of the closed journal's last record.

    Raises:
        JournalError: J-INSPECTION: something in the folder is not the next inspection of this run.
    """
    folder = run_dir / INSPECTIONS_NAME
    if not folder.is_dir():
        return (), head
    found: list[Inspection] = []
    for path in sorted(each for each in folder.iterdir() if not each.name.startswith(".")):
        place = f"{INSPECTIONS_NAME}/{path.name}"
        match = _FILE.fullmatch(path.name)
        if match is None or int(match[1]) != len(found):
            raise damage("J-INSPECTION", place, f"stands where inspection {len(found)} belongs")
        inspection, head = _read(path, place, run=run, prev=head, number=len(found))
        found.append(inspection)
    return tuple(found), head


def append_inspection(run_dir: Path, inspection: Inspection, files: Files = FILES) -> str:
    """Make an inspection durable and return its line, to be kept like a head.

    Raises:
        JournalError: Somebody else recorded one of this number meanwhile.
        StorageError: The file system refused.
    """
    folder = run_dir / INSPECTIONS_NAME
    line = frame(encode_record(inspection), CONTEXT_INSPECTION)
    draft = folder / f".{inspection.number:06d}.{inspection.prev[:8]}.tmp"
    with refused(run_dir):
        folder.mkdir(exist_ok=True)
        write_atomic(draft, line)
        try:
            files.rename(draft, folder / f"{inspection.number:06d}.json")
        except FileExistsError:
            files.unlink(draft)
            message = f"{folder}: inspection {inspection.number} was recorded by somebody else meanwhile"
            raise JournalError(message, remedy="Type the same command again.") from None
        files.fsync_path(folder)
        files.fsync_path(run_dir)
    return (
        f"{inspection.run}/inspections {inspection.number + 1} b3:{unframe(line, 'inspection', CONTEXT_INSPECTION)[0]}"
    )


def _read(path: Path, place: str, *, run: str, prev: str, number: int) -> tuple[Inspection, str]:
    try:
        with open_regular(path) as stream:
            line = stream.read()
    except (OSError, StorageError) as error:
        raise damage("J-INSPECTION", place, f"cannot be read ({error})") from None
    digest, raw = unframe(line, place, CONTEXT_INSPECTION)
    try:
        inspection = decode_record(Inspection, raw)
    except (ValidationError, ValueError) as error:
        raise damage("J-INSPECTION", place, " ".join(str(error).split())[:300]) from None
    if (inspection.run, inspection.number, inspection.prev) != (run, number, prev):
        raise damage("J-INSPECTION", place, "does not continue what is before it")
    return inspection, digest
