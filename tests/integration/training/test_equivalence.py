"""Without an observation weight, and with a weight of 0, training is bit for bit TRL's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from trl import GRPOTrainer

from experiment.records.plan import Plan
from experiment.records.recipe import Arm, Lora
from experiment.training.models import lora_config
from experiment.training.player import PlayedStep, StepPlayer
from experiment.training.state import trainer_state
from experiment.training.trainer import build_config, build_trainer, sample_step, verified
from tests.doubles.tiny_training import ECHO, GRPO, WORLD, mixed_scripts, scripted_player, tiny_plan

SAMPLING = {"max_turns": 4, "max_turn_tokens": 120, "max_completion_tokens": 500}


@dataclass
class Steps:
    """What `sample_step` asks of a trainer."""

    player: StepPlayer
    trainer: Any

    def play_step(self, prompts: Sequence[str]) -> PlayedStep:
        return self.player.play(self.trainer.state.global_step + 1, prompts)


def plan_of(baseline: Path, accumulation: int) -> Plan:
    return tiny_plan(
        baseline,
        steps=3,
        sampling=SAMPLING,
        gradient_accumulation=accumulation,
        lora=Lora(rank=4, alpha=8, dropout=0.1),
    )


def train_recorded(plan: Plan, arm: Arm, folder: Path) -> dict[str, str]:
    player, model, tokenizer = scripted_player(plan, arm, WORLD, mixed_scripts)
    trainer = build_trainer(player, model=model, tokenizer=tokenizer, work_dir=str(folder), sealed_state=None)
    trainer.train()
    return trainer_state(trainer)


def train_plain(plan: Plan, folder: Path) -> dict[str, str]:
    player, model, tokenizer = scripted_player(plan, GRPO, WORLD, mixed_scripts)
    trainer = GRPOTrainer(
        model=model,
        args=build_config(plan, str(folder)),
        train_dataset=Dataset.from_list([{"prompt": each} for step in plan.schedule for each in step.episodes]),
        processing_class=tokenizer,
        peft_config=lora_config(plan.recipe.training.lora),
        reward_funcs=[verified],
        rollout_func=lambda prompts, owner: sample_step(prompts, Steps(player, owner)),
    )
    torch.utils.deterministic.fill_uninitialized_memory = False
    trainer.train()
    return trainer_state(trainer)


@pytest.mark.parametrize("accumulation", [1, 2])
def test_no_weight_and_weight_zero_leave_every_bit_of_grpo_as_it_is(
    baseline: Path, tmp_path: Path, accumulation: int
) -> None:
    plan = plan_of(baseline, accumulation)
    plain = train_plain(plan, tmp_path / "plain")
    assert any(name.startswith("optimizer/") and name.endswith("/exp_avg") for name in plain)
    assert train_recorded(plan, GRPO, tmp_path / "grpo") == plain
    zero = ECHO.model_copy(update={"observation_weight": 0.0})
    assert train_recorded(plan, zero, tmp_path / "zero") == plain
    weighted = train_recorded(plan, ECHO, tmp_path / "echo")
    changed = {name.partition("/")[0] for name in plain if weighted[name] != plain[name]}
    assert changed == {"adapter", "optimizer"}
