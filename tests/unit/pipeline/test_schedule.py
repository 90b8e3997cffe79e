from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from experiment.pipeline.schedule import build_schedule, learning_rate_factor
from experiment.records.recipe import Recipe
from tests.doubles.small_plan import FAMILIES, episode_set, small_recipe

PER_STEP = 3
DIGEST = """
from experiment.pipeline.schedule import build_schedule
from experiment.sealing.digests import digest_bytes
from tests.doubles.small_plan import FAMILIES, episode_set, small_recipe
train = episode_set("train", 12, "german_tools", FAMILIES)
print(digest_bytes(repr(build_schedule(small_recipe(steps=12), train)).encode()))
"""


def _recipe(**training: object) -> Recipe:
    recipe = small_recipe(steps=12)
    return recipe.model_copy(update={"training": recipe.training.model_copy(update=training)})


def _epochs(recipe: Recipe, count: int) -> list[list[str]]:
    schedule = build_schedule(recipe, episode_set("train", count, "german_tools", FAMILIES))
    order = [name for step in schedule for name in step.episodes]
    return [order[start : start + count] for start in range(0, len(order), count)]


def test_every_epoch_visits_every_episode_once() -> None:
    train = {each.id for each in episode_set("train", 12, "german_tools", FAMILIES)}
    epochs = _epochs(_recipe(), 12)
    assert len(epochs) == 3
    for epoch in epochs:
        assert len(epoch) == 12
        assert set(epoch) == train


def test_epochs_differ_in_order() -> None:
    first, second, third = _epochs(_recipe(), 12)
    assert first != second != third != first


def test_an_unfinished_epoch_visits_none_twice() -> None:
    last = _epochs(_recipe(steps=5), 12)[-1]
    assert len(last) == len(set(last)) == 3


def test_steps_are_numbered_from_one_and_of_equal_size() -> None:
    schedule = build_schedule(_recipe(), episode_set("train", 12, "german_tools", FAMILIES))
    assert [step.step for step in schedule] == list(range(1, 13))
    assert {len(step.episodes) for step in schedule} == {PER_STEP}


def test_the_order_depends_on_the_seed() -> None:
    assert _epochs(_recipe(), 12) != _epochs(_recipe().model_copy(update={"seed": 6}), 12)


def test_a_longer_training_begins_as_the_shorter_one() -> None:
    train = episode_set("train", 12, "german_tools", FAMILIES)
    short, long = (build_schedule(_recipe(steps=steps, schedule="constant"), train) for steps in (4, 12))
    assert long[:4] == short


@pytest.mark.parametrize("hash_seed", ["0", "1"])
def test_the_schedule_does_not_depend_on_the_process(repository: Path, hash_seed: str) -> None:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run(
        [sys.executable, "-c", DIGEST], cwd=repository, env=environment, capture_output=True, text=True, check=True
    )
    scope: dict[str, object] = {}
    here: list[str] = []
    exec(DIGEST, {**scope, "print": here.append})
    assert done.stdout.split() == here


@pytest.mark.parametrize(
    ("schedule", "warmup", "factors"),
    [
        ("constant", 0, [1, 1, 1, 1]),
        ("constant", 2, [0, 1 / 2, 1, 1]),
        ("linear", 0, [1, 3 / 4, 2 / 4, 1 / 4]),
        ("linear", 2, [0, 1 / 2, 1, 1 / 2]),
        ("cosine", 0, [0.5 * (1 + math.cos(math.pi * share)) for share in (0, 1 / 4, 2 / 4, 3 / 4)]),
        ("cosine", 1, [0, 1, 0.5 * (1 + math.cos(math.pi / 3)), 0.5 * (1 + math.cos(math.pi * 2 / 3))]),
    ],
)
def test_rates_follow_the_named_schedule(schedule: str, warmup: int, factors: list[float]) -> None:
    training = _recipe(steps=4, schedule=schedule, warmup_steps=warmup).training
    assert [learning_rate_factor(training, step) for step in (1, 2, 3, 4)] == pytest.approx(factors, abs=1e-15)


def test_scheduled_rates_are_the_peak_times_the_factor() -> None:
    recipe = _recipe(schedule="linear", learning_rate=0.003)
    rates = [step.learning_rate for step in build_schedule(recipe, episode_set("train", 12, "german_tools", FAMILIES))]
    assert rates[0] == 0.003
    assert rates == [0.003 * learning_rate_factor(recipe.training, step) for step in range(1, 13)]
