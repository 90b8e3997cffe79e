"""The evaluation job of a worker: policies play sets of episodes at given generation seeds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from experiment.environments.base import Environment
from experiment.errors import FaultError, StoppedError
from experiment.policies.hf import HFPolicy
from experiment.records.base import Record
from experiment.records.episode import Episode
from experiment.records.job import EvaluatedPolicy, EvaluateJob, EvaluationDone, MergeDone, Progressed, WorkerReady
from experiment.records.plan import Plan
from experiment.records.rollout import Rollout
from experiment.records.verdict import EvaluationKey, Suite
from experiment.rollout.alignment import require_aligned
from experiment.rollout.chat import ChatFormat
from experiment.rollout.episode import Attempt, PlayedRollout, RolloutLoop
from experiment.rollout.evidence import item_outcomes, write_evidence
from experiment.sealing.seeds import derive_seed
from experiment.sealing.trees import verify_tree
from experiment.training.determinism import configure, observe
from experiment.training.merging import load_policy
from experiment.training.models import load_baseline, load_tokenizer

Emit = Callable[[Record], None]


def evaluate(
    job: EvaluateJob,
    plan: Plan,
    worlds: Mapping[Suite, Environment],
    emit: Emit,
    stop_requested: Callable[[], bool],
) -> None:
    """Play every key of the job; each is reported as soon as its evidence is on disk.

    Raises:
        JournalError: The checkpoint is unsealed or changed.
        AlignmentError: A rollout's records disagree.
        FaultError: An episode has no verdict; a missing verdict never counts as a failure.
        StoppedError: A stop was requested; finished keys are kept.
    """
    recipe = plan.recipe
    configure(recipe.compute, recipe.seed)
    emit(WorkerReady(environment=observe(recipe.compute)))
    tokenizer = load_tokenizer(recipe)
    total = sum(len(episodes_of(plan, key)) for policy in job.policies for key in policy.keys)
    done = 0
    emit(Progressed(label="", done=0, total=total))
    for policy in job.policies:
        model = _load(policy, plan, emit)
        for key in policy.keys:
            started = time.perf_counter()
            environment = worlds[key.suite]
            chat = ChatFormat(tokenizer, environment.tools)
            sampler = HFPolicy(
                model, end_id=chat.end_id, pad_id=tokenizer.pad_token_id, temperature=recipe.sampling.temperature
            )
            loop = RolloutLoop(sampler, chat, environment, recipe.sampling)
            keep = Path(job.recovery_dir) / f"{key.stage}-{key.arm}@{key.step}-{key.suite}-{key.seed}"
            aligned = partial(require_aligned, chat=chat, tools=environment.tools, keep=keep)
            rollouts: list[Rollout] = []
            for batch in _batches(episodes_of(plan, key), recipe.sampling.batch_size):
                if stop_requested():
                    message = f"evaluation of {key.arm}@{key.step} was asked to stop"
                    raise StoppedError(message)
                rollouts += [each.record for each in _play(loop, batch, recipe.seed, key, aligned)]
                done += len(batch)
                emit(Progressed(label=f"{key.arm}@{key.step}", done=done, total=total))
            _report(job, key, rollouts, emit, time.perf_counter() - started)


def _load(policy: EvaluatedPolicy, plan: Plan, emit: Emit) -> Any:
    model = load_baseline(plan.recipe).eval()
    if policy.checkpoint is None:
        return model
    verify_tree(Path(policy.checkpoint), policy.tree)
    model, facts = load_policy(model, Path(policy.checkpoint))
    key = policy.keys[0]
    emit(MergeDone(arm=key.arm, step=key.step, facts=facts))
    return model


def episodes_of(plan: Plan, key: EvaluationKey) -> tuple[Episode, ...]:
    """The frozen episodes that a key plays."""
    if key.suite == "retention":
        return plan.retention_dev if key.stage == "dev" else plan.retention_final
    return plan.dev if key.stage == "dev" else plan.final


def _batches(episodes: Sequence[Episode], size: int) -> Iterator[Sequence[Episode]]:
    return (episodes[start : start + size] for start in range(0, len(episodes), size))


def _play(
    loop: RolloutLoop, batch: Sequence[Episode], root: int, key: EvaluationKey, require: Callable[..., None]
) -> list[PlayedRollout]:
    played = loop.play(
        [Attempt(episode, 0) for episode in batch],
        lambda attempt, turn: derive_seed(root, key.stage, key.suite, key.seed, attempt.episode.id, turn),
    )
    require(played)
    return played


def _report(job: EvaluateJob, key: EvaluationKey, rollouts: list[Rollout], emit: Emit, seconds: float) -> None:
    path = Path(job.evidence_dir) / f"{key.arm}@{key.step}" / f"{key.suite}-{key.seed}.jsonl"
    digest = write_evidence(path, rollouts)
    missing = [each.episode for each in rollouts if each.score is None]
    if missing:
        message = f"{path}: {len(missing)} episodes have no verdict, the first is {missing[0]}"
        raise FaultError(message)
    emit(
        EvaluationDone(
            key=key,
            evidence=digest,
            evidence_path=str(path),
            evidence_bytes=path.stat().st_size,
            outcomes=item_outcomes(rollouts),
            seconds=seconds,
        )
    )
