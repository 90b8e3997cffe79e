"""What every check of the upper levels works on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from experiment.audit.findings import Notes
from experiment.journal.chain import Entry
from experiment.journal.reader import JournalView
from experiment.records.plan import Plan


@dataclass(frozen=True, slots=True)
class Case:
    """A run whose chain is sound and whose plan is the frozen one."""

    run_dir: Path
    view: JournalView
    plan: Plan
    notes: Notes

    @property
    def arms(self) -> tuple[str, ...]:
        """Names of the plan's arms."""
        return tuple(arm.name for arm in self.plan.recipe.arms)

    def evidence(self, entry: Entry, digest: str) -> Path | None:
        """The readable file that a record names as its evidence; None where there is none, which is a finding."""
        path = next((each.path for each in entry.artifacts if each.b3 == digest), None)
        place = f"record {entry.seq}"
        if path is None:
            self.notes.find("R-EVIDENCE", place, f"names b3:{digest} as evidence, but no artifact with it")
            return None
        # B7 has already reported a file that is missing or changed; its contents then prove nothing.
        return self.run_dir / path if path not in self.notes.bad_places() else None
