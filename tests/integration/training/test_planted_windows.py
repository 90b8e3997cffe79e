"""Faults of windows and epochs: a stop inside a generation window, and a stop at or behind an epoch's end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from experiment.decisions.equality import compare_branches
from experiment.errors import AlignmentError
from experiment.pipeline.schedule import build_schedule
from experiment.pipeline.stage1_qualify import branch_dir
from experiment.records.entry import BranchFinished, StepFacts
from experiment.records.plan import Plan
from experiment.records.rollout import TrainedRollout
from experiment.records.verdict import EqualityVerdict
from experiment.sealing.canonical import decode_record
from experiment.sealing.digests import digest_bytes
from experiment.training import trainer as trainer_module
from experiment.training.models import lora_config
from experiment.training.player import PlayedStep, StepPlayer
from experiment.training.sampler import build_sampler
from experiment.training.state import reference_digest, trainer_state
from experiment.training.trainer import build_config, sample_step, verified
from tests.doubles.lenient_world import LenientWorld
from tests.doubles.tiny_training import EPISODES, GRPO, Branch, mixed_scripts, scripted_player, tiny_plan
from tests.doubles.trial import ARM, Trial, trial_plan
from tests.planted import Planted

WINDOW = 4
"""Optimizer steps that one generation is spread over, where it is spread."""


@pytest.mark.parametrize("accumulation", [1, 2, 4, 8])
def test_a_generation_window_is_one_optimizer_step(baseline: Path, tmp_path: Path, accumulation: int) -> None:
    plan = tiny_plan(baseline, gradient_accumulation=accumulation)
    config = build_config(plan, str(tmp_path))
    assert config.steps_per_generation * config.num_iterations == config.gradient_accumulation_steps == accumulation
    training = plan.recipe.training
    assert config.generation_batch_size == training.prompts_per_step * training.rollouts_per_prompt


@dataclass
class Windows:
    """What `sample_step` asks of a trainer: the window whose episodes the loader yields is played."""

    player: StepPlayer

    def play_step(self, prompts: Sequence[str]) -> PlayedStep:
        wanted = tuple(dict.fromkeys(prompts))
        (step,) = (each.step for each in self.player.plan.schedule if each.episodes == wanted)
        return self.player.play(step, prompts)


@dataclass(frozen=True)
class Stock:
    """A finished training of TRL's own trainer."""

    state: dict[str, str]
    reference: str
    log: list[dict[str, float]]

    def record(self, name: Any) -> BranchFinished:
        steps = [
            StepFacts(
                step=int(each["step"]),
                evidence=digest_bytes(b""),
                learning_rate=each["learning_rate"],
                loss=each["loss"],
                grad_norm=each["grad_norm"],
                metrics=(("kl", each["kl"]),),
            )
            for each in self.log
            if "loss" in each
        ]
        return BranchFinished(
            arm="grpo", branch=name, steps=tuple(steps), state=tuple(self.state.items()), reference=self.reference
        )


def train_stock(plan: Plan, folder: Path, resume_from: Path | None = None) -> Stock:
    """Train all steps with TRL's own trainer, which saves after every second one."""
    player, model, tokenizer = scripted_player(plan, GRPO, LenientWorld(), mixed_scripts)
    trainer = GRPOTrainer(
        model=model,
        args=build_config(plan, str(folder)),
        train_dataset=Dataset.from_list([{"prompt": each} for step in plan.schedule for each in step.episodes]),
        processing_class=tokenizer,
        peft_config=lora_config(plan.recipe.training.lora),
        reward_funcs=[verified],
        rollout_func=lambda prompts, _: sample_step(prompts, Windows(player)),
    )
    torch.utils.deterministic.fill_uninitialized_memory = False
    trained = trainer.accelerator.unwrap_model(trainer.model)
    ids = {"end_id": tokenizer.eos_token_id, "pad_id": tokenizer.pad_token_id}
    player.sample_from(build_sampler(plan.recipe, trained, **ids))  # the policy itself instead of the scripts
    trainer.train(resume_from_checkpoint=str(resume_from) if resume_from else None)
    return Stock(trainer_state(trainer), reference_digest(trained), trainer.state.log_history)


def judge(straight: Stock, resumed: Stock) -> EqualityVerdict:
    branches = straight.record("straight"), resumed.record("resumed")
    evidence: dict[str, list[list[TrainedRollout]]] = {each.branch: [[] for _ in each.steps] for each in branches}
    return compare_branches(branches[0], branches[1:], evidence, {"straight": straight.state, "resumed": resumed.state})


@pytest.mark.planted("checkpoint lies inside a generation window")
def test_a_stop_inside_a_window_is_found(
    baseline: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, planted: Planted
) -> None:
    plan = trial_plan(baseline, steps=2 * WINDOW)
    spread = {"per_device_train_batch_size": 8 // WINDOW, "gradient_accumulation_steps": 1}
    spread |= {"steps_per_generation": WINDOW, "save_steps": 2}

    def spread_config(**settings: Any) -> GRPOConfig:
        return GRPOConfig(**settings | spread | {"save_strategy": "steps"})

    monkeypatch.setattr(trainer_module, "GRPOConfig", spread_config)
    straight = train_stock(plan, tmp_path / "straight")
    at_the_edge = train_stock(plan, tmp_path / "edge", tmp_path / "straight" / f"checkpoint-{WINDOW}")
    assert judge(straight, at_the_edge).passed
    inside = train_stock(plan, tmp_path / "inside", tmp_path / "straight" / f"checkpoint-{WINDOW // 2}")
    verdict = judge(straight, inside)
    (found,) = verdict.divergences
    assert found.place.startswith(f"step {WINDOW // 2 + 1}, ")
    planted(found, place=found.place, without="the trainer samples again and goes on to the end")


def epochs_plan(baseline: Path) -> Plan:
    """Six steps of two episodes out of four: three epochs."""
    plan, episodes = trial_plan(baseline, steps=6), EPISODES[:4]
    return plan.model_copy(update={"train": episodes, "schedule": build_schedule(plan.recipe, episodes)})


def played(branch: Branch) -> list[tuple[str, ...]]:
    """The episodes of each step, as the evidence tells."""
    steps = [data.splitlines() for data in branch.evidence().values()]
    records = [[decode_record(TrainedRollout, line).rollout for line in lines] for lines in steps]
    return [tuple(dict.fromkeys(each.episode for each in rollouts)) for rollouts in records]


@pytest.mark.parametrize("stop_at", [2, 3, 4], ids=["end of epoch 1", "middle of epoch 2", "end of epoch 2"])
def test_a_resume_anywhere_in_an_epoch_plays_the_planned_episodes(baseline: Path, tmp_path: Path, stop_at: int) -> None:
    plan = epochs_plan(baseline)
    trial = Trial(tmp_path, *(Branch(branch_dir(tmp_path, ARM, name), plan, ARM) for name in ("straight", "resumed")))
    trial.straight.train(6)
    branch = trial.stopped.train(stop_at)
    branch.train(6, branch.checkpoint(stop_at))
    assert trial.judge(branch).passed
    assert played(branch) == played(trial.straight) == [each.episodes for each in plan.schedule]
    epochs = [set(first + second) for first, second in zip(played(branch)[::2], played(branch)[1::2], strict=True)]
    assert epochs == [{each.id for each in plan.train}] * 3
    assert len(set(played(branch))) > 2  # each epoch has an order of its own


@pytest.mark.planted("data loader begins its epoch again after a resume")
def test_a_loader_that_begins_again_is_refused(trial: Trial, monkeypatch: pytest.MonkeyPatch, planted: Planted) -> None:
    monkeypatch.setattr("transformers.trainer.skip_first_batches", lambda loader, _: loader)
    steps = len(trial.stopped.steps)
    with pytest.raises(AlignmentError, match="step 3: the trainer asked for other episodes") as caught:
        trial.resume()
    assert len(trial.stopped.steps) == steps
    play = StepPlayer.play

    def play_planned(player: StepPlayer, step: int, asked: Sequence[str]) -> PlayedStep:
        planned = player.plan.schedule[step - 1].episodes
        return play(player, step, [each for each in planned for _ in range(len(asked) // len(planned))])

    monkeypatch.setattr(StepPlayer, "play", play_planned)
    assert trial.judge(trial.resume()).passed
    planted(caught.value, place="step 3", without="the plan's episodes are played all the same")
