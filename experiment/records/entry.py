"""Bodies of the journal's records; `BODIES` maps each record type to its body."""

from __future__ import annotations

from typing import Literal

from experiment.records.base import Count, Digest, Name, Positive, Record
from experiment.records.verdict import (
    Comparison,
    EqualityVerdict,
    EvaluationKey,
    ItemOutcome,
    MergeFacts,
    SelectionVerdict,
)


class SegmentEnd(Record):
    """How a predecessor segment was found when the run was resumed."""

    seg: Count
    good: Count
    """Bytes of complete records."""
    torn: Count
    """Bytes of an incomplete last record; they stay where they are."""
    b3: Digest
    """BLAKE3 of the torn bytes."""


class Genesis(Record):
    """First record: binds the chain to one plan and one run."""

    plan: Digest
    plan_schema: str
    sources: Digest
    claim: str
    """Path of the claim file that makes this the only run of the plan."""
    journal_code: Digest
    host: str


class Resume(Record):
    """First record of every later segment."""

    closes: tuple[SegmentEnd, ...]
    moved: tuple[str, ...]
    """What was moved to `recovery/`, paths relative to the run."""
    pid: Count
    host: str
    reason: str


class InputsVerified(Record):
    """Every frozen input was found as the plan says."""

    inputs: Count
    size_bytes: Count


class WorkerEnvironment(Record):
    """What arithmetic depends on beside the frozen inputs, as a worker process finds it when its settings are made."""

    threads: Positive
    interop_threads: Positive
    device: str
    """Name of the accelerator, or of the processor."""
    capability: str
    """Instruction set that kernels are chosen by, or compute capability of the accelerator."""
    torch: str
    """Version with its build suffix."""
    deterministic: bool
    """Whether kernels without a deterministic implementation are refused."""


class EnvironmentObserved(Record):
    """The first worker's environment; every later worker has to find the same."""

    environment: WorkerEnvironment


class BranchFinished(Record):
    """One branch of the qualification of one arm has run."""

    arm: Name
    branch: Literal["straight", "repeated", "resumed"]
    steps: tuple[StepFacts, ...]
    state: tuple[tuple[str, Digest], ...]
    """(state part, digest) at the last step, sorted."""
    reference: Digest


class QualificationResult(Record):
    """The verdict on one arm's branches."""

    arm: Name
    verdict: EqualityVerdict


class StepFacts(Record):
    """What is exact about one optimizer step; equal for equal executions, free of clocks."""

    step: Positive
    evidence: Digest
    """BLAKE3 of the step's evidence file."""
    learning_rate: float
    loss: float | None
    """None where it was not finite; `not_finite` then names it."""
    grad_norm: float | None
    not_finite: tuple[str, ...] = ()
    metrics: tuple[tuple[str, float], ...]
    """(name, value), sorted: KL, entropy, reward, observation cross-entropy, gaps and so on."""


class TrainStarted(Record):
    """An arm's training begins, or goes on after a restart."""

    arm: Name
    from_step: Count
    checkpoint: Digest | None
    """Tree id of the checkpoint it goes on from."""


class FamilyRates(Record):
    """What one family's rollouts did in one step."""

    family: str
    rollouts: Positive
    successes: Count
    groups: Positive
    all_fail: Count
    all_pass: Count


class TrainStep(Record):
    """One optimizer step of one arm."""

    arm: Name
    facts: StepFacts
    families: tuple[FamilyRates, ...]
    ends: tuple[tuple[str, Count], ...]
    """(how rollouts ended, count), sorted."""
    divergences: tuple[tuple[str, Count], ...]
    """(class of harmless divergence between sampled text and parsed calls, turns), sorted."""
    seconds: float
    rollout_seconds: float


class StepRedone(Record):
    """A step after the last checkpoint was executed again and came out the same."""

    arm: Name
    step: Positive
    evidence: Digest


class CheckpointSealed(Record):
    """A sealed state of the trainer; this record is the commit point."""

    arm: Name
    step: Positive
    path: str
    tree: Digest
    state: tuple[tuple[str, Digest], ...]
    is_candidate: bool


class TrainFinished(Record):
    """An arm has done all of its steps."""

    arm: Name
    steps: Positive


class PolicyMerged(Record):
    """A checkpoint's weights, as they were made for its first evaluation; later ones have to make the same."""

    arm: Name
    step: Positive
    facts: MergeFacts


class EvaluationFinished(Record):
    """One policy played one set at one generation seed."""

    key: EvaluationKey
    evidence: Digest
    outcomes: tuple[ItemOutcome, ...]
    seconds: float


class SelectionMade(Record):
    """The frozen rule was applied to the DEV results of one arm."""

    verdict: SelectionVerdict


class AssessmentMade(Record):
    """The final comparisons."""

    comparisons: tuple[Comparison, ...]


class SamplesExported(Record):
    """Preselected final episodes were written out for a reviewer, as the artifacts of this record."""

    agent: tuple[str, ...]
    """Episodes, the first of the final set."""
    retention: tuple[str, ...]
    samples: Digest
    """BLAKE3 of the samples' file."""


class Warned(Record):
    """Something that does not stop the run but has to be seen."""

    kind: str
    message: str


class Aborted(Record):
    """The run stopped without finishing; `--resume` may go on where `resumable`."""

    kind: str
    message: str
    exit_code: Count
    resumable: bool


class Closed(Record):
    """The last record of a finished run; nothing may follow."""

    records: Count
    outcome: Literal["assessed", "qualification_failed"]
    active_seconds: float


BODIES: dict[str, type[Record]] = {
    "genesis": Genesis,
    "resume": Resume,
    "inputs.verified": InputsVerified,
    "env.observed": EnvironmentObserved,
    "qual.branch": BranchFinished,
    "qual.result": QualificationResult,
    "train.start": TrainStarted,
    "train.step": TrainStep,
    "train.redone": StepRedone,
    "ckpt.sealed": CheckpointSealed,
    "train.stop": TrainFinished,
    "merge.result": PolicyMerged,
    "dev.result": EvaluationFinished,
    "select.decision": SelectionMade,
    "final.result": EvaluationFinished,
    "stats.result": AssessmentMade,
    "samples.exported": SamplesExported,
    "warn": Warned,
    "abort": Aborted,
    "close": Closed,
}
