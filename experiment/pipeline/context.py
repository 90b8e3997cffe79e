"""What every stage of a run gets: plan, paths, journal, workers and a watcher; passed in, never global."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from experiment.errors import BudgetExhaustedError
from experiment.journal.chain import Artifact, Entry
from experiment.journal.clock import CLOCK
from experiment.journal.progress import active_seconds
from experiment.journal.writer import JournalWriter
from experiment.pipeline.workers import Chain, WorkerPool
from experiment.records.base import Record
from experiment.records.plan import Plan


class Watcher(Protocol):
    """Someone who is told how far the work is; has no influence on it."""

    def stage(self, name: str, detail: str) -> None:
        """A stage begins."""
        ...

    def progress(self, key: str, label: str, done: int, total: int) -> None:
        """A piece of work is `done` of `total`."""
        ...

    def note(self, text: str) -> None:
        """Something worth a line."""
        ...


@dataclass(frozen=True, slots=True)
class RunContext:
    """A run while it is worked on."""

    plan: Plan
    plan_path: Path
    run_dir: Path
    journal: JournalWriter
    pool: WorkerPool
    watcher: Watcher

    def append(self, type_: str, body: Record, artifacts: Sequence[Artifact] = ()) -> Entry:
        """Append a fact to the journal; it is durable when this returns."""
        return self.journal.append(type_, body, artifacts)

    def work(self, chains: Sequence[Chain], on_event: Callable[[str, Record], None]) -> None:
        """Let workers do all jobs, within the budget.

        Raises:
            BudgetExhaustedError: The budget was spent meanwhile; the workers have sealed what they had.
            StoppedError: A stop was requested; the workers have ended in good order.
            ExperimentError: What a worker or `on_event` reported.
        """
        self.pool.run(chains, on_event, self.check_budget)

    def check_budget(self) -> None:
        """Return only while the plan's wall budget lasts.

        Raises:
            BudgetExhaustedError: All sessions together, this one up to now, have spent it.
        """
        entries = self.journal.entries
        since_last_us = CLOCK.now().mono_us - entries[-1].mono_us
        spent, hours = active_seconds(entries) + since_last_us / 1e6, self.plan.recipe.budget_hours
        if spent >= hours * 3600:
            message = f"{self.run_dir}: {spent / 3600:.4f} of {hours:.4f} hours are spent"
            raise BudgetExhaustedError(message)

    def artifact(self, path: str, digest: str, size: int, role: str) -> Artifact:
        """An artifact of this run, from a path relative to the workspace."""
        return Artifact(path=Path(path).relative_to(self.run_dir).as_posix(), b3=digest, size=size, role=role)
