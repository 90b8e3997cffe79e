"""The evaluation job of a worker: policies play sets of episodes at given generation seeds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from experiment.environments.base import Environment
from experiment.errors import FaultError, StoppedError
from experiment.policies.hf import HFPolicy
from experiment.records.base import Record
from experiment.records.episode import Episode
from experiment.records.job import EvaluateJob, EvaluationDone, Progressed
from experiment.records.plan import Plan
from experiment.records.rollout import Rollout
from experiment.records.verdict import EvaluationKey, Suite
from experiment.rollout.alignment import verify_alignment
from experiment.rollout.chat import ChatFormat
from experiment.rollout.episode import Attempt, RolloutLoop
from experiment.rollout.evidence import item_outcomes, write_evidence
from experiment.sealing.seeds import derive_seed
from experiment.sealing.trees import verify_tree
from experiment.training.determinism import configure
from experiment.training.models import load_adapter, load_baseline, load_tokenizer

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
    tokenizer = load_tokenizer(recipe)
    total = sum(len(episodes_of(plan, key)) for policy in job.policies for key in policy.keys)
    done = 0
    emit(Progressed(label="", done=0, total=total))
    for policy in job.policies:
        model = load_baseline(recipe).eval()
        if policy.checkpoint is not None:
            verify_tree(Path(policy.checkpoint), policy.tree)
            model = load_adapter(model, Path(policy.checkpoint))
        for key in policy.keys:
            started = time.perf_counter()
            environment = worlds[key.suite]
            chat = ChatFormat(tokenizer, environment.tools)
            sampler = HFPolicy(
                model, end_id=chat.end_id, pad_id=tokenizer.pad_token_id, temperature=recipe.sampling.temperature
            )
            loop = RolloutLoop(sampler, chat, environment, recipe.sampling)
            rollouts: list[Rollout] = []
            for batch in _batches(episodes_of(plan, key), recipe.sampling.batch_size):
                if stop_requested():
                    message = f"evaluation of {key.arm}@{key.step} was asked to stop"
                    raise StoppedError(message)
                rollouts += _play(loop, chat, environment, batch, recipe.seed, key)
                done += len(batch)
                emit(Progressed(label=f"{key.arm}@{key.step}", done=done, total=total))
            _report(job, key, rollouts, emit, time.perf_counter() - started)


def episodes_of(plan: Plan, key: EvaluationKey) -> tuple[Episode, ...]:
    """The frozen episodes that a key plays."""
    if key.suite == "retention":
        return plan.retention_dev if key.stage == "dev" else plan.retention_final
    return plan.dev if key.stage == "dev" else plan.final


def _batches(episodes: Sequence[Episode], size: int) -> Iterator[Sequence[Episode]]:
    return (episodes[start : start + size] for start in range(0, len(episodes), size))


def _play(
    loop: RolloutLoop,
    chat: ChatFormat,
    environment: Environment,
    batch: Sequence[Episode],
    root: int,
    key: EvaluationKey,
) -> list[Rollout]:
    played = loop.play(
        [Attempt(episode, 0) for episode in batch],
        lambda attempt, turn: derive_seed(root, key.stage, key.suite, key.seed, attempt.episode.id, turn),
    )
    for each in played:
        verify_alignment(each, chat, environment.tools)
    return [each.record for each in played]


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
