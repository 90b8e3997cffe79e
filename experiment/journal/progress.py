"""What is done, folded from a journal's records; pure, and therefore the same after any number of restarts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from experiment.records.entry import (
    BranchFinished,
    CheckpointSealed,
    EvaluationFinished,
    PolicyMerged,
    QualificationResult,
    SelectionMade,
    TrainFinished,
    TrainStep,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from experiment.journal.chain import Entry
    from experiment.records.verdict import EvaluationKey


@dataclass(frozen=True, slots=True)
class Progress:
    """The facts that decide what comes next."""

    branches: dict[tuple[str, str], BranchFinished]
    """By (arm, branch)."""
    qualified: dict[str, QualificationResult]
    steps: dict[tuple[str, int], TrainStep]
    """By (arm, step)."""
    checkpoints: dict[tuple[str, int], CheckpointSealed]
    """By (arm, step)."""
    trained: frozenset[str]
    """Arms that have done all steps."""
    merges: dict[tuple[str, int], PolicyMerged]
    """By (arm, step)."""
    evaluations: dict[EvaluationKey, EvaluationFinished]
    selections: dict[str, SelectionMade]

    def last_checkpoint(self, arm: str) -> CheckpointSealed | None:
        """The newest sealed state of an arm."""
        steps = [step for name, step in self.checkpoints if name == arm]
        return self.checkpoints[arm, max(steps)] if steps else None

    def history(self, arm: str) -> list[TrainStep]:
        """An arm's steps in order."""
        return [self.steps[key] for key in sorted(self.steps) if key[0] == arm]


def fold_progress(entries: Iterable[Entry]) -> Progress:  # noqa: C901 - one branch per kind of fact
    """Fold records into what is done; a fact recorded later replaces nothing, it only adds."""
    progress = Progress({}, {}, {}, {}, frozenset(), {}, {}, {})
    trained = set()
    for entry in entries:
        body = entry.body
        if isinstance(body, BranchFinished):
            progress.branches.setdefault((body.arm, body.branch), body)
        elif isinstance(body, QualificationResult):
            progress.qualified.setdefault(body.arm, body)
        elif isinstance(body, TrainStep):
            progress.steps.setdefault((body.arm, body.facts.step), body)
        elif isinstance(body, CheckpointSealed):
            progress.checkpoints.setdefault((body.arm, body.step), body)
        elif isinstance(body, TrainFinished):
            trained.add(body.arm)
        elif isinstance(body, PolicyMerged):
            progress.merges.setdefault((body.arm, body.step), body)
        elif isinstance(body, EvaluationFinished):
            progress.evaluations.setdefault(body.key, body)
        elif isinstance(body, SelectionMade):
            progress.selections.setdefault(body.verdict.arm, body)
    return Progress(
        progress.branches,
        progress.qualified,
        progress.steps,
        progress.checkpoints,
        frozenset(trained),
        progress.merges,
        progress.evaluations,
        progress.selections,
    )


def active_seconds(entries: Sequence[Entry]) -> float:
    """Seconds that sessions were at work: within each segment, from its first record to its last.

    The monotonic clock is used, so a changed wall clock neither grants nor costs budget, and the dead time between
    sessions does not count.
    """
    spans: dict[int, tuple[int, int]] = {}
    for entry in entries:
        first, _ = spans.get(entry.segment, (entry.mono_us, entry.mono_us))
        spans[entry.segment] = (first, entry.mono_us)
    return sum(last - first for first, last in spans.values()) / 1e6
