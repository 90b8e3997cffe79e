"""Which episodes each optimizer step samples, and at which learning rate it updates."""

from __future__ import annotations

import math
from collections.abc import Sequence

from experiment.records.episode import Episode
from experiment.records.plan import ScheduledStep
from experiment.records.recipe import Recipe, Training
from experiment.sealing.seeds import derive_seed


def build_schedule(recipe: Recipe, train: Sequence[Episode]) -> tuple[ScheduledStep, ...]:
    """One row per step; every epoch goes through all episodes once, in its own seeded order."""
    training = recipe.training
    needed = training.steps * training.prompts_per_step
    order: list[str] = []
    epoch = 0
    while len(order) < needed:
        order += [each.id for each in sorted(train, key=lambda one: derive_seed(recipe.seed, "order", epoch, one.id))]
        epoch += 1
    per_step = training.prompts_per_step
    return tuple(
        ScheduledStep(
            step=step,
            episodes=tuple(order[(step - 1) * per_step : step * per_step]),
            learning_rate=training.learning_rate * learning_rate_factor(training, step),
        )
        for step in range(1, training.steps + 1)
    )


def learning_rate_factor(training: Training, step: int) -> float:
    """The share of the peak learning rate at which `step` (from 1) updates, in [0, 1].

    Source:
        `transformers.optimization`, the schedules of the same names; the formulas are repeated here so that
        preparation needs no training stack, and every recorded rate is compared with them.
    """
    done = step - 1
    if done < training.warmup_steps:
        return float(done) / float(max(1, training.warmup_steps))
    if training.schedule == "constant":
        return 1.0
    left = max(1, training.steps - training.warmup_steps)
    if training.schedule == "linear":
        return max(0.0, float(training.steps - done) / float(left))
    progress = float(done - training.warmup_steps) / float(left)
    return max(0.0, 0.5 * (1.0 + math.cos(math.pi * progress)))
