"""A small qualification: one arm's branches with evidence and state, equal unless changed."""

from __future__ import annotations

from typing import Literal

import numpy as np

from experiment.records.entry import BranchFinished, StepFacts
from experiment.records.rollout import Rollout, Score, ToolEvent, TrainedRollout, Turn
from experiment.sealing.arrays import encode_array

Branch = Literal["straight", "repeated", "resumed"]
STATE = {
    "adapter/model.lora_A": "a1" * 32,
    "adapter/model.lora_B": "a2" * 32,
    "optimizer/model.lora_A/exp_avg": "b1" * 32,
    "optimizer/step": "b2" * 32,
    "scheduler": "c1" * 32,
}


def ints(*values: int) -> str:
    """Return an encoded int32 array."""
    return encode_array(np.array(values, dtype=np.int32))


def floats(*values: float) -> str:
    """Return an encoded float32 array."""
    return encode_array(np.array(values, dtype=np.float32))


def turn(**changes: object) -> Turn:
    """Return a turn with one call."""
    given = Turn(
        seed="00000000000000ab",
        context_length=4,
        context="c" * 64,
        sampled_ids=ints(5, 6, 7),
        sampled_logprobs=floats(-0.5, -0.25, -1.0),
        text="rechne das",
        finish="stop",
        calls=(ToolEvent(name="rechne", arguments_json='{"a":"1"}', status="delivered", observation="42"),),
        observation_ids=ints(9, 9),
        observation_spans=((0, 1),),
    )
    return given.model_copy(update=changes)


def rollout(number: int = 0, **changes: object) -> Rollout:
    """Return a rollout with two turns."""
    given = Rollout(
        episode="train-0007",
        family="f",
        rollout=number,
        prompt_ids=ints(1, 2, 3, 4),
        turns=(turn(), turn(context="d" * 64, calls=(), observation_ids="", observation_spans=())),
        end="answer",
        score=Score(success=True, format=1.0, malformed_answer=False),
        tool_errors=0,
        invalid_calls=0,
        tokens_generated=6,
        tokens_retained=8,
    )
    return given.model_copy(update=changes)


def trained(played: Rollout, **changes: object) -> TrainedRollout:
    """Return a rollout as the trainer recorded it."""
    given = TrainedRollout(
        rollout=played,
        reward=1.0,
        advantage=floats(0.5),
        trainer_logprobs=floats(-0.5, -0.25, -1.0),
        observation_mask=encode_array(np.array([0, 1, 0], dtype=np.uint8)),
    )
    return given.model_copy(update=changes)


def facts(step: int, **changes: object) -> StepFacts:
    """Return one step's numbers."""
    given = StepFacts(
        step=step,
        evidence=f"{step:064x}",
        learning_rate=1e-05,
        loss=0.125,
        grad_norm=0.5,
        metrics=(("entropy", 1.5), ("kl", 0.0)),
    )
    return given.model_copy(update=changes)


def branch(name: Branch, **changes: object) -> BranchFinished:
    """Return a branch of four steps."""
    given = BranchFinished(
        arm="grpo",
        branch=name,
        steps=tuple(facts(step) for step in (1, 2, 3, 4)),
        state=(("adapter", "a" * 64), ("optimizer", "b" * 64), ("scheduler", "c" * 64)),
        reference="f" * 64,
    )
    return given.model_copy(update=changes)


def evidence() -> list[list[TrainedRollout]]:
    """Return four steps of two rollouts each."""
    return [[trained(rollout(0)), trained(rollout(1))] for _ in range(4)]
