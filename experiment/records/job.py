"""What the driver and its worker processes tell each other."""

from __future__ import annotations

from typing import Literal

from experiment.records.base import Count, Digest, Name, Positive, Record
from experiment.records.entry import FamilyRates, StepFacts, WorkerEnvironment
from experiment.records.recipe import Recipe
from experiment.records.verdict import EvaluationKey, ItemOutcome, MergeFacts


class TrainJob(Record):
    """Train one arm, from the start or from a sealed checkpoint, up to a step."""

    kind: Literal["train"] = "train"
    plan_path: str
    arm: Name
    evidence_dir: str
    checkpoint_dir: str
    recovery_dir: str
    """Where a rollout is kept that may not train."""
    work_dir: str
    resume_from: str | None
    stop_at: Positive
    """Last step to do; the learning-rate horizon stays the plan's."""


class EvaluatedPolicy(Record):
    """A policy and what it has to play."""

    checkpoint: str | None
    """Folder of the adapter; None for the baseline."""
    tree: Digest | None
    keys: tuple[EvaluationKey, ...]


class EvaluateJob(Record):
    """Play sets with some policies, one after the other."""

    kind: Literal["evaluate"] = "evaluate"
    plan_path: str
    policies: tuple[EvaluatedPolicy, ...]
    evidence_dir: str
    recovery_dir: str
    """Where a rollout is kept that may not count."""


class StarterJob(Record):
    """Make a starting policy from nothing."""

    kind: Literal["starter"] = "starter"
    recipe: Recipe
    output_dir: str


class Job(Record):
    """What one worker process does, one task after the other."""

    tasks: tuple[TrainJob | EvaluateJob | StarterJob, ...]


class TaskStarted(Record):
    """The events that follow belong to this task of the job."""

    number: Count


class WorkerReady(Record):
    """The worker has made its settings and tells what it found."""

    environment: WorkerEnvironment


class ServiceAsked(Record):
    """The worker needs its world's service; the driver answers with one line on the worker's standard input."""

    renew: bool
    """The service has grown too much and shall be replaced; nothing is open on it."""


class Progressed(Record):
    """Work was done; for progress bars only."""

    label: str
    done: Count
    total: Positive


class StepDone(Record):
    """An optimizer step is done and its evidence is on disk."""

    facts: StepFacts
    families: tuple[FamilyRates, ...]
    ends: tuple[tuple[str, Count], ...]
    divergences: tuple[tuple[str, Count], ...]
    seconds: float
    rollout_seconds: float
    evidence_path: str
    evidence_bytes: Count


class CheckpointDone(Record):
    """A checkpoint folder is sealed."""

    step: Positive
    path: str
    tree: Digest
    state: tuple[tuple[str, Digest], ...]
    """(part, digest) of adapter, optimizer, scheduler and random state."""


class TrainingDone(Record):
    """The trainer stopped in good order after `step`."""

    step: Positive
    state: tuple[tuple[str, Digest], ...]
    """(tensor or value, digest), every single one."""
    reference: Digest


class MergeDone(Record):
    """A checkpoint's policy is ready to be evaluated."""

    arm: Name
    step: Positive
    facts: MergeFacts


class EvaluationDone(Record):
    """One key of an evaluation is done and its evidence is on disk."""

    key: EvaluationKey
    evidence: Digest
    evidence_path: str
    evidence_bytes: Count
    outcomes: tuple[ItemOutcome, ...]
    seconds: float


class FamilyScore(Record):
    """pass@1 of one family."""

    family: str
    episodes: Positive
    successes: Count


class StarterDone(Record):
    """The starting policy is on disk."""

    families: tuple[FamilyScore, ...]
    retention: FamilyScore


class Failed(Record):
    """The worker gives up; the driver raises the same error."""

    error: str
    """Name of a class of `experiment.errors`."""
    message: str


EVENTS: dict[str, type[Record]] = {
    cls.__name__: cls
    for cls in (
        TaskStarted,
        WorkerReady,
        ServiceAsked,
        Progressed,
        StepDone,
        CheckpointDone,
        TrainingDone,
        MergeDone,
        EvaluationDone,
        StarterDone,
        Failed,
    )
}
