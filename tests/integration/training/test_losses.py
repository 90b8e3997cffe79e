"""Loss and gradient of one step against a dense computation that shares no code with the trainer."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812  (its usual name)
from peft import get_peft_model

from experiment.algorithms.echo import observation_cross_entropy
from experiment.decisions.families import family_rates
from experiment.environments.base import Environment
from experiment.records.episode import Episode
from experiment.records.plan import Plan
from experiment.records.recipe import Arm
from experiment.records.rollout import INVALID_STATUSES
from experiment.rollout.episode import PlayedRollout
from experiment.sealing.arrays import decode_array
from experiment.training.models import load_baseline, lora_config
from experiment.training.player import strict_results, trained_rollouts
from experiment.training.trainer import RecordedGRPOTrainer, build_trainer
from tests.doubles.function_world import FunctionWorld
from tests.doubles.lenient_world import LenientWorld
from tests.doubles.tiny_training import ECHO, GRPO, WORLD, Scripts, mixed_scripts, scripted_player, tiny_plan

SAMPLING = {"max_turns": 4, "max_turn_tokens": 120, "max_completion_tokens": 500}
HEAVY = ECHO.model_copy(update={"observation_weight": 0.5})
KEEPING = HEAVY.model_copy(update={"drop_failed_observations": False})

Gradients = dict[str, torch.Tensor]


def build(plan: Plan, arm: Arm, folder: Path, scripts: Scripts, world: Environment = WORLD) -> RecordedGRPOTrainer:
    """A trainer whose adapter is no longer zero, so that policy and reference differ."""
    player, model, tokenizer = scripted_player(plan, arm, world, scripts)
    trainer = build_trainer(player, model=model, tokenizer=tokenizer, work_dir=str(folder), sealed_state=None)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, weight in trainer.model.named_parameters():
            if "lora_B" in name:
                weight.copy_(0.05 * torch.randn(weight.shape, generator=generator))
    return trainer


def trainer_gradients(trainer: RecordedGRPOTrainer) -> tuple[float, Gradients]:
    """Loss and gradient of the first step as the trainer computes them, all its micro-batches together."""
    rows = next(iter(trainer.get_train_dataloader()))
    trainer.current_gradient_accumulation_steps = trainer.args.gradient_accumulation_steps
    trainer.model.train()
    total = 0.0
    for _ in range(trainer.args.gradient_accumulation_steps):
        loss = trainer.compute_loss(trainer.model, trainer._prepare_inputs(rows))
        loss.backward()
        total += float(loss.detach())
        trainer._step += 1
    return total, {name: each.grad for name, each in trainer.model.named_parameters() if each.grad is not None}


def dense_gradients(
    trainer: RecordedGRPOTrainer, plan: Plan, arm: Arm, only: Sequence[int] = range(100)
) -> tuple[float, Gradients]:
    """The same from the evidence alone: one rollout at a time, unpadded, with a model of its own.

    `only` names the rollouts whose policy term is added up; the mean is over the tokens of all.
    """
    recipe, step = plan.recipe, trainer.played
    assert step is not None
    model = get_peft_model(load_baseline(recipe), lora_config(recipe.training.lora))
    own = dict(model.named_parameters())
    with torch.no_grad():
        for name, weight in trainer.model.named_parameters():
            own[name].copy_(weight)
    reference = load_baseline(recipe)
    training = recipe.training
    advantages = dense_advantages(step.rollouts, training.rollouts_per_prompt, training.format_weight)
    judged = [index for index, each in enumerate(step.rollouts) if each.record.score is not None]
    policy_term = torch.zeros(())
    observed: list[tuple[torch.Tensor, torch.Tensor]] = []
    for index in judged:
        rollout = step.rollouts[index]
        logits, ids = score(model, rollout)
        logps = torch.log_softmax(logits, dim=-1)[torch.arange(len(ids)), ids]
        with torch.no_grad():
            base_logits, _ = score(reference, rollout)
            gap = torch.log_softmax(base_logits, dim=-1)[torch.arange(len(ids)), ids] - logps
        gap = gap + logps.detach() - logps
        ratio = (logps - logps.detach()).exp()
        losses = -advantages[index] * ratio + recipe.training.kl * (gap.exp() - gap - 1) * ratio
        if index in only:
            policy_term = policy_term + losses[torch.tensor(rollout.sampled_mask) == 1].sum()
        learned = observation_places(rollout, arm)
        observed.append((logits[learned], ids[learned]))
    loss = policy_term / max(1, sum(sum(step.rollouts[index].sampled_mask) for index in judged))
    targets = torch.cat([ids for _, ids in observed])
    if arm.observation_weight is not None and len(targets):
        loss = loss + arm.observation_weight * F.cross_entropy(torch.cat([rows for rows, _ in observed]), targets)
    loss.backward()
    return float(loss.detach()), {name: each.grad for name, each in own.items() if each.grad is not None}


def dense_advantages(rollouts: Sequence[PlayedRollout], group: int, format_weight: float = 0.5) -> list[float]:
    """Rewards scaled within their group, over those that have one."""
    advantages: list[float] = []
    for start in range(0, len(rollouts), group):
        scores = [each.record.score for each in rollouts[start : start + group]]
        rewards = [None if each is None else float(each.success) + format_weight * each.format for each in scores]
        known = [each for each in rewards if each is not None]
        spread = statistics.stdev(known) + 1e-4 if len(known) > 1 else float("inf")
        advantages += [0.0 if each is None else (each - statistics.fmean(known)) / spread for each in rewards]
    return advantages


def score(model: Any, rollout: PlayedRollout) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits before each completion token, and the completion."""
    logits = model(input_ids=torch.tensor([rollout.prompt_ids + rollout.completion_ids])).logits[0]
    return logits[len(rollout.prompt_ids) - 1 : -1], torch.tensor(rollout.completion_ids)


def observation_places(rollout: PlayedRollout, arm: Arm) -> list[int]:
    """Positions in the completion of the tool output that is learned."""
    places: list[int] = []
    start = 0
    for turn in rollout.record.turns:
        start += len(decode_array(turn.sampled_ids, "int32"))
        for (first, last), event in zip(turn.observation_spans, turn.calls, strict=False):
            if not (arm.drop_failed_observations and event.status in INVALID_STATUSES):
                places += range(start + first, start + last)
        start += len(decode_array(turn.observation_ids, "int32"))
    return places


def assert_equal(found: tuple[float, Gradients], expected: tuple[float, Gradients]) -> None:
    assert found[0] == pytest.approx(expected[0], rel=1e-5)
    assert found[1].keys() == expected[1].keys()
    names = sorted(found[1])
    one, other = (torch.cat([side[name].flatten() for name in names]) for side in (found[1], expected[1]))
    assert float(other.norm()) > 1e-4
    assert float((one - other).norm() / other.norm()) < 1e-5


@pytest.mark.parametrize("arm", [GRPO, HEAVY, KEEPING], ids=["grpo", "echo", "echo with refusals"])
@pytest.mark.parametrize("accumulation", [1, 2])
def test_loss_and_gradient_are_those_of_the_dense_computation(
    baseline: Path, tmp_path: Path, arm: Arm, accumulation: int
) -> None:
    plan = tiny_plan(baseline, sampling=SAMPLING, gradient_accumulation=accumulation)
    trainer = build(plan, arm, tmp_path, mixed_scripts)
    found = trainer_gradients(trainer)
    assert_equal(found, dense_gradients(trainer, plan, arm))
    step = trainer.played
    assert step is not None and max(map(abs, step.advantages)) > 0.1
    assert {event.status for event in events(step.rollouts)} == {"delivered", "world_error", "incomplete"}
    learned = [observation_places(each, arm) for each in step.rollouts]
    if arm.observation_weight is not None:
        assert [[at for at, on in enumerate(mask) if on] for mask in step.observation_masks] == learned


def events(rollouts: Sequence[PlayedRollout]) -> list[Any]:
    return [event for each in rollouts for turn in each.record.turns for event in turn.calls]


@pytest.mark.parametrize("kl", [0.0, 0.1])
def test_group_without_spread_pushes_by_kl_and_observations_alone(baseline: Path, tmp_path: Path, kl: float) -> None:
    plan = tiny_plan(baseline, sampling=SAMPLING, kl=kl)
    uniform = plan.schedule[0].episodes[0]

    def scripts(episode: Episode) -> list[list[str]]:
        return [mixed_scripts(episode)[3]] if episode.id == uniform else mixed_scripts(episode)

    trainer = build(plan, HEAVY, tmp_path, scripts)
    found = trainer_gradients(trainer)
    assert trainer.played is not None and trainer.played.advantages[:4] == [0.0] * 4
    assert_equal(found, dense_gradients(trainer, plan, HEAVY))


@pytest.mark.parametrize("kl", [0.0, 0.1])
@pytest.mark.parametrize("weight", [0.0, 0.02])
def test_group_that_failed_altogether_keeps_its_tokens_in_the_mean_and_pushes_by_no_reward(
    baseline: Path, tmp_path: Path, kl: float, weight: float
) -> None:
    plan = tiny_plan(baseline, sampling=SAMPLING, kl=kl, format_weight=0.0)
    arm = ECHO.model_copy(update={"observation_weight": weight})
    failed, mixed = plan.schedule[0].episodes

    def scripts(episode: Episode) -> list[list[str]]:
        solved, guess, invalid, lookups = mixed_scripts(episode)
        return [["Antwort: 1"], guess, invalid, lookups] if episode.id == failed else [solved, guess, invalid, lookups]

    trainer = build(plan, arm, tmp_path, scripts)
    found = trainer_gradients(trainer)
    step = trainer.played
    assert step is not None
    assert [each.record.episode for each in step.rollouts] == [failed] * 4 + [mixed] * 4
    assert step.rewards[:4] == [0.0] * 4 and sorted(map(float, step.rewards[4:])) == [0.0, 0.0, 0.0, 1.0]
    assert step.advantages[:4] == [0.0] * 4
    assert [(each.all_fail, each.all_pass) for each in family_rates(strict_results(step), 4)] in (
        [(1, 0), (0, 0)],
        [(0, 0), (1, 0)],
    )
    assert_equal(found, dense_gradients(trainer, plan, arm))
    if kl == weight == 0.0:
        # What is left is the mixed group alone, divided by the tokens of both.
        alone = dense_gradients(trainer, plan, arm, only=range(4, 8))
        assert_equal(found, alone)


def test_rollout_without_verdict_moves_nothing_and_its_group_is_smaller(baseline: Path, tmp_path: Path) -> None:
    plan = tiny_plan(baseline, sampling=SAMPLING, gradient_accumulation=2)

    def scripts(episode: Episode) -> list[list[str]]:
        guess, invalid, lookups = mixed_scripts(episode)[1:]
        return [guess, invalid, [lookups[0], mixed_scripts(episode)[0][0].replace(key_of(episode), "kaputt")]]

    trainer = build(plan, HEAVY, tmp_path, scripts, LenientWorld(frozenset({"kaputt"})))
    found = trainer_gradients(trainer)
    step = trainer.played
    assert step is not None
    broken = [index for index, each in enumerate(step.rollouts) if each.record.score is None]
    assert 0 < len(broken) < len(step.rollouts)
    assert_equal(found, dense_gradients(trainer, plan, HEAVY))
    assert step.advantages == pytest.approx(dense_advantages(step.rollouts, 4), abs=1e-5)
    assert all(step.rollouts[index].record.turns[0].observation_spans for index in broken)
    for index in broken:
        assert step.advantages[index] == 0.0
        assert not any(step.observation_masks[index])
        assert trained_rollouts(step)[index].reward is None


def key_of(episode: Episode) -> str:
    return mixed_scripts(episode)[0][0].split('"schluessel": "')[1].split('"')[0]


def test_step_in_which_the_world_breaks_everywhere_has_no_gradient(baseline: Path, tmp_path: Path) -> None:
    plan = tiny_plan(baseline, sampling=SAMPLING)
    call = '<tool_call>{"name": "nachschlagen", "arguments": {"schluessel": "kaputt"}}</tool_call>'
    trainer = build(plan, HEAVY, tmp_path, lambda _: [[call]], LenientWorld(frozenset({"kaputt"})))
    loss, gradients = trainer_gradients(trainer)
    assert loss == 0.0
    assert all(not gradient.any() for gradient in gradients.values())


def test_mean_over_observations_does_not_depend_on_how_they_are_spread() -> None:
    generator = torch.Generator().manual_seed(1)
    logprobs = -torch.rand(2, 500, generator=generator)
    mask = torch.zeros(2, 500)
    mask[0, 7], mask[1, 50:450] = 1, 1
    by_hand = -(float(logprobs[0, 7]) + sum(logprobs[1, 50:450].tolist())) / 401
    learned = mask.sum()
    assert float(observation_cross_entropy(logprobs, mask, learned)) == pytest.approx(by_hand, rel=1e-6)
    shares = [float(observation_cross_entropy(logprobs[row : row + 1], mask[row : row + 1], learned)) for row in (0, 1)]
    assert sum(shares) == pytest.approx(by_hand, rel=1e-6)


def test_one_observation_token_and_four_hundred_are_one_mean_in_the_trainer(baseline: Path, tmp_path: Path) -> None:
    world = FunctionWorld(lambda: {"eins": lambda: "7", "viele": lambda: "7" * 400})
    plan = tiny_plan(baseline, sampling={"max_turns": 4, "max_turn_tokens": 60, "max_completion_tokens": 700})

    def call(name: str) -> str:
        return f'<tool_call>{{"name": "{name}", "arguments": {{}}}}</tool_call>'

    scripts = [[call("eins"), "Antwort: 1"], [call("viele"), "Antwort: 1"], ["Antwort: 1"], ["Antwort: 3"]]
    trainer = build(plan, HEAVY, tmp_path, lambda _: scripts, world)
    found = trainer_gradients(trainer)
    step = trainer.played
    assert step is not None
    assert sorted(map(sum, step.observation_masks)) == [0] * 4 + [1, 1, 400, 400]
    learned = [
        value
        for index, mask in enumerate(step.observation_masks)
        for value in step.trainer_logprobs[index][np.asarray(mask, dtype=bool)].tolist()
    ]
    assert trainer.observation_ce == pytest.approx(-math.fsum(learned) / 802, rel=1e-5)
    assert_equal(found, dense_gradients(trainer, plan, HEAVY))


def test_no_observation_is_a_finite_zero_without_gradient() -> None:
    logprobs = torch.full((2, 5), -3.0, requires_grad=True)
    loss = observation_cross_entropy(logprobs, torch.zeros(2, 5), torch.tensor(0.0))
    loss.backward()
    assert float(loss.detach()) == 0.0
    assert logprobs.grad is not None and not logprobs.grad.any()
