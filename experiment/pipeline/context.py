"""What every stage of a run gets: plan, paths, journal, workers and a watcher; passed in, never global."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from experiment.journal.chain import Artifact, Entry
from experiment.journal.writer import JournalWriter
from experiment.pipeline.workers import WorkerPool
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

    def bodies(self, cls: type[Record], type_: str | None = None) -> list[Record]:
        """Bodies of one class recorded so far, in order."""
        return [
            entry.body for entry in self.journal.entries if isinstance(entry.body, cls) and type_ in (None, entry.type)
        ]

    def artifact(self, path: str, digest: str, size: int, role: str) -> Artifact:
        """An artifact of this run, from a path relative to the workspace."""
        return Artifact(path=Path(path).relative_to(self.run_dir).as_posix(), b3=digest, size=size, role=role)
