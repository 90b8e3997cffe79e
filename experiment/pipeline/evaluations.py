"""Playing evaluations and recording them, for selection and assessment alike."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final, Literal

from experiment.decisions.assessment import check_planned
from experiment.decisions.merging import has_no_effect, merge_problems
from experiment.errors import FaultError, JournalError
from experiment.journal.progress import fold_progress
from experiment.pipeline.context import RunContext
from experiment.pipeline.workers import Chain
from experiment.records.base import Record
from experiment.records.entry import EvaluationFinished, PolicyMerged
from experiment.records.job import EvaluatedPolicy, EvaluateJob, EvaluationDone, MergeDone, Progressed
from experiment.records.plan import Plan
from experiment.records.verdict import EvaluationKey

BASELINE = "baseline"
_REMEDY: Final = (
    "Look at the newest files in the run's `logs/`, then continue with `python -m experiment run --resume`."
)


@dataclass(frozen=True, slots=True)
class PolicyRef:
    """A policy that can be evaluated: the baseline, or an arm at a step."""

    arm: str
    step: int

    @property
    def label(self) -> str:
        """For people and file names."""
        return f"{self.arm}@{self.step}" if self.step else self.arm


def play_keys(
    context: RunContext,
    stage: Literal["dev", "final"],
    keys: Mapping[PolicyRef, Sequence[EvaluationKey]],
) -> dict[EvaluationKey, EvaluationFinished]:
    """Play what is not yet recorded, and return the results of all keys.

    Raises:
        FaultError: A worker broke, or an episode has no verdict.
        StoppedError: A stop was requested; finished keys are recorded.
    """
    done = fold_progress(context.journal.entries).evaluations
    missing = [key for wanted in keys.values() for key in wanted if key not in done]
    shares = split_evenly(missing, context.pool.workers)
    chains = [_chain(context, stage, f"{stage} {number + 1}", share) for number, share in enumerate(shares) if share]

    def on_event(label: str, event: Record) -> None:
        if isinstance(event, Progressed):
            context.watcher.progress(label, f"{label}  {event.label}", event.done, event.total)
        elif isinstance(event, EvaluationDone):
            body = EvaluationFinished(
                key=event.key, evidence=event.evidence, outcomes=event.outcomes, seconds=event.seconds
            )
            _check_whole(context.plan, body, missing)
            artifact = context.artifact(event.evidence_path, event.evidence, event.evidence_bytes, "evidence")
            context.append(f"{stage}.result", body, [artifact])
        elif isinstance(event, MergeDone):
            _check_merge(context, stage, PolicyMerged(arm=event.arm, step=event.step, facts=event.facts))

    if chains:
        context.work(chains, on_event)
    results = fold_progress(context.journal.entries).evaluations
    for key in missing:
        if key not in results:
            # A library, or a tool, that calls `sys.exit` ends a worker like one that has done its job.
            message = f"{stage} {key.suite} of {key.arm}@{key.step}, seed {key.seed}: its worker ended without a result"
            raise FaultError(message, remedy=_REMEDY)
    return {key: results[key] for wanted in keys.values() for key in wanted}


def _check_merge(context: RunContext, stage: Literal["dev", "final"], body: PolicyMerged) -> None:
    """Record how a policy's weights were made, before anything that it plays counts.

    Raises:
        FaultError: They are not the baseline's with the sealed adapter, or differ from an earlier evaluation's, or
            are to be assessed in the end and are the baseline's in every element.
    """
    progress = fold_progress(context.journal.entries)
    label = f"{body.arm}@{body.step}"
    if (body.arm, body.step) not in progress.checkpoints:
        message = f"a worker loaded {label}, which was not sealed"
        raise FaultError(message, remedy=_REMEDY)
    problems = list(
        merge_problems(
            body.facts,
            reference=progress.branches[body.arm, "straight"].reference,
            state=dict(progress.checkpoints[body.arm, body.step].state),
        )
    )
    if stage == "final" and has_no_effect(body.facts):
        problems.append("the adapter changes no weight, so this is the baseline again")
    before = progress.merges.get((body.arm, body.step))
    if before is not None and before != body:
        problems.append("the weights differ from those of an earlier evaluation")
    if problems:
        message = f"{label}: {problems[0]}"
        raise FaultError(message, remedy="Audit the run, and find what changed the weights before resuming.")
    if before is None:
        context.append("merge.result", body)
        facts = body.facts
        share = f"{facts.vanishing / facts.changed:.1%}" if facts.changed else "none"
        context.watcher.note(
            f"{label}: {facts.changed} of {facts.elements} targeted weights changed; rounded to bfloat16 {share} of "
            "the changes would vanish"
        )


def _check_whole(plan: Plan, body: EvaluationFinished, missing: Sequence[EvaluationKey]) -> None:
    """Return only where a result was asked for and judges each planned item; a record could not be taken back.

    Raises:
        FaultError: Names the result, and the first item that is missing, doubled or foreign.
    """
    sets = {
        ("agent", "dev"): plan.dev,
        ("agent", "final"): plan.final,
        ("retention", "dev"): plan.retention_dev,
        ("retention", "final"): plan.retention_final,
    }
    if body.key not in missing:
        message = f"a worker played {body.key.arm}@{body.key.step}, which it was not asked for"
        raise FaultError(message, remedy=_REMEDY)
    try:
        check_planned([body], [episode.id for episode in sets[body.key.suite, body.key.stage]])
    except JournalError as error:
        raise FaultError(str(error), remedy=_REMEDY) from error


def split_evenly(keys: Sequence[EvaluationKey], workers: int) -> list[list[EvaluationKey]]:
    """Cut keys, in their order, into shares with equally many agent keys; retention keys cost next to nothing."""
    share = max(1, math.ceil(sum(key.suite == "agent" for key in keys) / workers))
    shares: list[list[EvaluationKey]] = [[] for _ in range(workers)]
    agent_keys = 0
    for key in keys:
        agent_keys += key.suite == "agent"
        shares[max(0, agent_keys - 1) // share].append(key)
    return shares


def _chain(context: RunContext, stage: str, label: str, share: Sequence[EvaluationKey]) -> Chain:
    def make() -> EvaluateJob:
        by_policy = groupby(share, key=lambda key: PolicyRef(key.arm, key.step))
        return EvaluateJob(
            plan_path=str(context.run_dir / "plan.json"),
            policies=tuple(_evaluated(context, policy, tuple(keys)) for policy, keys in by_policy),
            evidence_dir=str(context.run_dir / "evidence" / stage),
            recovery_dir=context.recovery_dir,
        )

    return Chain((label,), [lambda: [make()]])


def _evaluated(context: RunContext, policy: PolicyRef, keys: tuple[EvaluationKey, ...]) -> EvaluatedPolicy:
    if not policy.step:
        return EvaluatedPolicy(checkpoint=None, tree=None, keys=keys)
    checkpoint = fold_progress(context.journal.entries).checkpoints.get((policy.arm, policy.step))
    if checkpoint is None:
        message = f"{policy.label}: no sealed checkpoint of this step"
        raise FaultError(message)
    return EvaluatedPolicy(checkpoint=str(context.run_dir / checkpoint.path), tree=checkpoint.tree, keys=keys)
