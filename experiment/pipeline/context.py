"""What every stage of a run gets: plan, paths, journal, workers and a watcher; passed in, never global."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from experiment.errors import BudgetExhaustedError, PlanError
from experiment.journal.chain import Artifact, Entry
from experiment.journal.clock import CLOCK
from experiment.journal.progress import active_seconds
from experiment.journal.recovery import RECOVERY_NAME
from experiment.journal.writer import JournalWriter
from experiment.pipeline.workers import Chain, WorkerPool
from experiment.records.base import Record
from experiment.records.entry import EnvironmentObserved, WorkerEnvironment
from experiment.records.job import WorkerReady
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
            PlanError: A worker runs in another environment than the plan froze or the run began in.
            StoppedError: A stop was requested; the workers have ended in good order.
            ExperimentError: What a worker or `on_event` reported.
        """

        def take(key: str, event: Record) -> None:
            if isinstance(event, WorkerReady):
                self._check_environment(event.environment)
            else:
                on_event(key, event)

        self.pool.run(chains, take, self.check_budget)

    def _check_environment(self, found: WorkerEnvironment) -> None:
        """Return only where a worker computes like the plan says and like all workers of this run before it.

        Raises:
            PlanError: Names what is different.
        """
        planned = self.plan.recipe.compute.threads
        if found.threads != planned:
            message = f"a worker computes with {found.threads} threads, the plan froze {planned}"
            raise PlanError(message, remedy="Find what sets the number of threads, then continue with --resume.")
        first = next((each.body for each in self.journal.entries if isinstance(each.body, EnvironmentObserved)), None)
        if first is None:
            self.append("env.observed", EnvironmentObserved(environment=found))
            return
        for name in WorkerEnvironment.model_fields:
            was, now = getattr(first.environment, name), getattr(found, name)
            if was != now:
                message = f"a worker's {name} is {now!r}, the run began with {was!r}"
                raise PlanError(message, remedy="Continue on the machine where the run began, or prepare a fresh plan.")

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

    @property
    def recovery_dir(self) -> str:
        """Where what may not be used is kept for people to look at."""
        return str(self.run_dir / RECOVERY_NAME)

    def artifact(self, path: str, digest: str, size: int, role: str) -> Artifact:
        """An artifact of this run, from a path relative to the workspace."""
        return Artifact(path=Path(path).relative_to(self.run_dir).as_posix(), b3=digest, size=size, role=role)
