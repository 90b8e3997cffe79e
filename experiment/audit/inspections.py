"""B10: what reviewers said about the exported samples continues the closed journal."""

from __future__ import annotations

from pathlib import Path

from experiment.audit.findings import Notes
from experiment.errors import JournalError
from experiment.journal.inspections import INSPECTIONS_NAME, read_inspections
from experiment.journal.reader import JournalView
from experiment.records.entry import SamplesExported


def check_inspections(run_dir: Path, view: JournalView, notes: Notes) -> None:
    """B10: every inspection is the next one of this run, and of the samples that the run exported."""
    exported = next((entry.body.samples for entry in view.entries if isinstance(entry.body, SamplesExported)), None)
    try:
        found, _ = read_inspections(run_dir, run=view.run, head=view.head)
    except JournalError as error:
        id_, _, message = str(error).partition(": ")
        notes.find(id_, INSPECTIONS_NAME, message)
        return
    for inspection in found:
        place = f"{INSPECTIONS_NAME}, number {inspection.number}"
        notes.require(view.is_closed, "J-INSPECTION", place, "was recorded before the run was closed")
        notes.require(inspection.samples == exported, "J-INSPECTION", place, "is of other samples than were exported")
    said = [
        f"{each.reviewer} ({each.kind}), {sum('not ok' in (one.language, one.format) for one in each.findings)} of "
        f"{len(each.findings)} not ok"
        for each in found
    ]
    notes.fact("inspected by", "; ".join(said) or "nobody")
