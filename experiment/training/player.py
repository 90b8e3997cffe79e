"""Plays one training step's rollouts and keeps them until the trainer has scored and used them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from experiment.environments.base import Environment
from experiment.errors import AlignmentError, FaultError
from experiment.records.plan import Plan
from experiment.records.recipe import Arm
from experiment.records.rollout import INVALID_STATUSES, Rollout, TrainedRollout
from experiment.rollout.alignment import require_aligned
from experiment.rollout.chat import ChatFormat
from experiment.rollout.episode import Attempt, PlayedRollout, RolloutLoop
from experiment.sealing.arrays import decode_array, encode_array
from experiment.sealing.seeds import derive_seed
from experiment.training.sampler import Sampler


@dataclass(slots=True)
class PlayedStep:
    """One step's rollouts and what the trainer made of them, by rollout index."""

    step: int
    rollouts: list[PlayedRollout]
    observation_masks: list[list[int]]
    """1 where ECHO learns the token; all zero in a GRPO arm."""
    seconds: float
    rewards: list[float | None]
    advantages: list[float] = field(default_factory=list)
    trainer_logprobs: dict[int, np.ndarray] = field(default_factory=dict)


class StepPlayer:
    """Plays the plan's schedule for one arm."""

    def __init__(self, plan: Plan, arm: Arm, chat: ChatFormat, environment: Environment, recovery: Path) -> None:
        self.plan = plan
        self.arm = arm
        self._recovery = recovery
        self._chat = chat
        self._environment = environment
        self._sampler: Sampler | None = None
        self._episodes = {episode.id: episode for episode in plan.train}

    def sample_from(self, sampler: Sampler) -> None:
        """Sample from a trainer's model, which exists only after the trainer that plays through this object."""
        self._sampler = sampler

    def play(self, step: int, episode_ids: Sequence[str]) -> PlayedStep:
        """Play the step's groups; `episode_ids` is what the trainer's data loader yielded.

        Raises:
            AlignmentError: The loader's episodes are not the plan's, or a rollout fails the alignment audit.
            QualificationError: The sampler's weights are not the trained ones.
        """
        group = self.plan.recipe.training.rollouts_per_prompt
        expected = [each for each in self.plan.schedule[step - 1].episodes for _ in range(group)]
        if list(episode_ids) != expected:
            message = f"step {step}: the trainer asked for other episodes than the plan's schedule"
            raise AlignmentError(message)
        if self._sampler is None:
            message = f"step {step}: there is no policy to sample from yet"
            raise FaultError(message)
        started = time.perf_counter()
        self._sampler.refresh()
        self._sampler.verify()
        loop = RolloutLoop(self._sampler.policy, self._chat, self._environment, self.plan.recipe.sampling)
        attempts = [Attempt(self._episodes[each], index % group) for index, each in enumerate(expected)]
        root = self.plan.recipe.seed
        played = loop.play(
            attempts,
            lambda attempt, turn: derive_seed(root, "train", step, attempt.episode.id, attempt.rollout, turn),
        )
        place = f"train-{self.arm.name}-{step:06d}"
        require_aligned(played, self._chat, self._environment.tools, self._recovery / place)
        weight = self.plan.recipe.training.format_weight
        return PlayedStep(
            step=step,
            rollouts=played,
            observation_masks=[self._observation_mask(each.record) for each in played],
            seconds=time.perf_counter() - started,
            rewards=[reward_of(each.record, weight) for each in played],
        )

    def _observation_mask(self, rollout: Rollout) -> list[int]:
        """Mark the tool output that this arm learns to predict."""
        mask: list[int] = []
        learns = self.arm.observation_weight is not None and rollout.score is not None
        for turn in rollout.turns:
            mask += [0] * len(decode_array(turn.sampled_ids, "int32"))
            observed = [0] * len(decode_array(turn.observation_ids, "int32"))
            for (start, end), event in zip(turn.observation_spans, turn.calls, strict=False):
                failed = event.status in INVALID_STATUSES and self.arm.drop_failed_observations
                if learns and not failed:
                    observed[start:end] = [1] * (end - start)
            mask += observed
        return mask


def reward_of(rollout: Rollout, format_weight: float) -> float | None:
    """Strict success plus weighted partial credit; None where the world gave no verdict."""
    if rollout.score is None:
        return None
    return float(rollout.score.success) + format_weight * rollout.score.format


def trained_rollouts(step: PlayedStep) -> tuple[TrainedRollout, ...]:
    """The step's evidence, in rollout order.

    Raises:
        AlignmentError: The trainer has not used every rollout of the step.
    """
    _require_all_used(step)
    return tuple(
        TrainedRollout(
            rollout=played.record,
            reward=step.rewards[index],
            advantage=encode_array(np.asarray([step.advantages[index]], dtype=np.float32)),
            trainer_logprobs=encode_array(step.trainer_logprobs[index].astype(np.float32)),
            observation_mask=encode_array(np.asarray(step.observation_masks[index], dtype=np.uint8)),
        )
        for index, played in enumerate(step.rollouts)
    )


def _require_all_used(step: PlayedStep) -> None:
    """Return only if the trainer scored every rollout: a window of which it used a part is another training."""
    used, sampled = len(step.trainer_logprobs), len(step.rollouts)
    if used != sampled:
        message = f"step {step.step}: the trainer used {used} of the {sampled} rollouts that were sampled for it"
        raise AlignmentError(message)


def strict_results(step: PlayedStep) -> list[tuple[str, bool]]:
    """(family, strict success) of each rollout; without a verdict it is not a success."""
    records = [played.record for played in step.rollouts]
    return [(each.family, each.score is not None and each.score.success) for each in records]


def sampler_gaps(step: PlayedStep) -> tuple[float, float, int]:
    """How far sampler and trainer disagree.

    Returns:
        The largest gap of a sampled token in nats, the largest absolute sum of gaps of a rollout, and the index of
        the rollout with that sum.
    """
    worst_token = worst_sum = 0.0
    worst_index = 0
    for index, played in enumerate(step.rollouts):
        mask = np.asarray(played.sampled_mask, dtype=bool)
        gap = step.trainer_logprobs[index][mask] - np.asarray(played.logprobs, dtype=np.float32)[mask]
        worst_token = float(np.maximum(worst_token, np.abs(gap).max(initial=0.0)))  # keeps NaN, unlike `max`
        if abs(float(gap.sum())) > worst_sum:
            worst_sum, worst_index = abs(float(gap.sum())), index
    return worst_token, worst_sum, worst_index
