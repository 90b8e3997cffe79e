"""Faults that seals agree with: the comparison of branches finds them, and one of them the restored state before it.

The policy is sampled at temperature 1 and trained with dropout in all branches.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import Trainer
from trl import GRPOConfig

from experiment.environments.base import NativeCall, Session, ToolResult
from experiment.errors import QualificationError
from experiment.policies.base import SampledTurn, TurnRequest
from experiment.policies.hf import HFPolicy
from experiment.records.episode import Episode
from experiment.records.plan import Plan
from experiment.records.recipe import Compute
from experiment.records.rollout import Score
from experiment.rollout.episode import Attempt, PlayedRollout, RolloutLoop
from experiment.sealing.canonical import decode, encode
from experiment.sealing.trees import SEAL_NAME, seal_tree
from experiment.training import player, sampler, train
from experiment.training import trainer as trainer_module
from experiment.training.checkpoint import STATE_FILE
from experiment.training.models import load_baseline
from experiment.training.state import tensor_digest
from tests.doubles.lenient_world import LenientWorld
from tests.doubles.trial import STEPS, STOP_AT, Trial
from tests.planted import Planted

ALL = ("_walk_steps", "_walk_state")
"""What there is of the comparison but the reference policy."""


def next_float(tensor: torch.Tensor, index: int) -> torch.Tensor:
    """A copy in which one element is one unit in the last place larger."""
    changed = tensor.clone()
    flat = changed.reshape(-1)
    flat[index] = torch.nextafter(flat[index], torch.tensor(torch.inf))
    return changed


def move_a_moment(checkpoint: Path, rank: int) -> str:
    """Change the last bit of a first moment in a sealed checkpoint, and seal it as truly as before; returns its name.

    Args:
        checkpoint: The checkpoint.
        rank: Which element of the chosen tensor: 0 is its largest.
    """
    optimizer = torch.load(checkpoint / "optimizer.pt", weights_only=True)
    state = dict(decode((checkpoint / STATE_FILE).read_bytes()))
    moments = optimizer["state"][1]  # of a `lora_B`; those of `lora_A` are still zero
    (name,) = (key for key, digest in state.items() if digest == tensor_digest(moments["exp_avg"]))
    index = int(moments["exp_avg"].reshape(-1).abs().argsort(descending=True)[rank])
    moments["exp_avg"] = next_float(moments["exp_avg"], index)
    torch.save(optimizer, checkpoint / "optimizer.pt")
    (checkpoint / STATE_FILE).write_bytes(encode(state | {name: tensor_digest(moments["exp_avg"])}))
    (checkpoint / SEAL_NAME).unlink()
    seal_tree(checkpoint.rename(checkpoint.with_suffix(".partial")), checkpoint)
    return name


@pytest.mark.planted("optimizer moment is off by its last bit, under a true seal")
def test_a_moment_that_is_off_by_one_bit_is_found(drafted_trial: Trial, tmp_path: Path, planted: Planted) -> None:
    # Rounding may swallow a last bit, or carry it into a weight at once: the first that stays what it is is judged.
    for rank in range(8):
        trial = drafted_trial.copy(tmp_path / str(rank))
        owner, _, kind = move_a_moment(trial.stopped.checkpoint(STOP_AT), rank).partition("/")[2].rpartition("/")
        branch, place = trial.resume(), f"optimizer: {kind} of {owner}"
        if any(found.place == place for found in trial.judge(branch).divergences):
            break
    without = trial.judge_without(branch, "_walk_state")
    assert without == "it passes"
    planted(trial.first_divergence(branch), place=place, without=without)


@pytest.mark.planted("base weight, part of the KL reference, is off by its last bit")
def test_a_reference_that_moved_is_found(trial: Trial, monkeypatch: pytest.MonkeyPatch, planted: Planted) -> None:
    def load_moved(recipe: Any) -> Any:
        model = load_baseline(recipe)
        with torch.no_grad():
            model.model.norm.weight.copy_(next_float(model.model.norm.weight, 0))
        return model

    for module in (train, sampler):
        monkeypatch.setattr(module, "load_baseline", load_moved)
    with pytest.raises(QualificationError, match="after restoring, 'reference/weights'") as caught:
        trial.resume()
    monkeypatch.setattr(trainer_module, "verify_restored", lambda *_: None)
    branch = trial.resume()
    assert trial.first_divergence(branch).place == "reference policy"
    without = trial.judge_without(branch, "reference")
    assert without.startswith("next found at step 3")
    planted(caught.value, place="reference/weights", without=f"found at reference policy; without that, {without}")


@pytest.mark.planted("learning rate falls over the steps that are left")
def test_a_schedule_over_the_rest_of_the_steps_is_found(
    trial: Trial, monkeypatch: pytest.MonkeyPatch, planted: Planted
) -> None:
    create = Trainer.create_scheduler

    def create_shorter(trainer: Any, num_training_steps: int, *rest: Any) -> Any:
        return create(trainer, num_training_steps - STOP_AT, *rest)

    monkeypatch.setattr(Trainer, "create_scheduler", create_shorter)
    branch = trial.resume()
    without = trial.judge_without(branch, "_walk_facts")
    assert without.startswith("next found at adapter: ")
    planted(trial.first_divergence(branch), place="step 4, learning_rate", without=without)


@pytest.mark.planted("first half is launched with a step limit of its own instead of being stopped")
def test_a_stop_by_a_shorter_horizon_is_found(trial: Trial, monkeypatch: pytest.MonkeyPatch, planted: Planted) -> None:
    build = trainer_module.build_config

    def build_shorter(plan: Plan, work_dir: str) -> GRPOConfig:
        training = plan.recipe.training.model_copy(update={"steps": STOP_AT})
        return build(
            plan.model_copy(update={"recipe": plan.recipe.model_copy(update={"training": training})}), work_dir
        )

    branch = trial.begin("resumed")
    with monkeypatch.context() as patch:
        patch.setattr(trainer_module, "build_config", build_shorter)
        branch.train(STOP_AT)
    branch.train(STEPS, branch.checkpoint(STOP_AT))
    without = trial.judge_without(branch, "_walk_facts")
    assert without.startswith("next found at ")
    planted(trial.first_divergence(branch), place="step 3, learning_rate", without=without)


@pytest.mark.planted("sampled token is another one")
def test_one_other_token_is_found(trial: Trial, monkeypatch: pytest.MonkeyPatch, planted: Planted) -> None:
    sample, calls = HFPolicy.sample, itertools.count()

    def sample_otherwise(policy: HFPolicy, requests: Sequence[TurnRequest]) -> list[SampledTurn]:
        turns = sample(policy, requests)
        if next(calls) == 0:
            first, *rest = turns[5].ids
            turns[5] = replace(turns[5], ids=(3 + (first + 1) % 200, *rest))  # a single character
        return turns

    monkeypatch.setattr(HFPolicy, "sample", sample_otherwise)
    branch = trial.resume()
    episode = trial.plan.schedule[STOP_AT].episodes[1]
    place = f"step 3, episode {episode}, rollout 1, turn 0, token 0 (sampled_ids)"
    without = trial.judge_without(branch, "walk_step")
    assert without == "next found at step 3, evidence"
    planted(trial.first_divergence(branch), place=place, without=f"{without}, which names no token")


@pytest.mark.planted("turns get their seeds from a counter of the process")
def test_seeds_by_a_counter_of_the_process_are_found(
    trial: Trial, monkeypatch: pytest.MonkeyPatch, planted: Planted
) -> None:
    def fresh_process() -> None:
        numbers = itertools.count()
        monkeypatch.setattr(player, "derive_seed", lambda *_: next(numbers))

    fresh_process()
    counted = replace(trial, straight=trial.begin("straight").train(STEPS))
    fresh_process()
    assert counted.judge(counted.begin("repeated").train(STEPS)).passed
    fresh_process()
    branch = counted.begin("resumed").train(STOP_AT)
    fresh_process()
    branch.train(STEPS, branch.checkpoint(STOP_AT))
    place = f"step 3, episode {trial.plan.schedule[STOP_AT].episodes[0]}, rollout 0, turn 0 (seed)"
    without = counted.judge_without(branch, "walk_step")
    assert without == "next found at step 3, evidence"
    planted(counted.first_divergence(branch), place=place, without=f"{without}, which names no turn")


class ByCompletion(RolloutLoop):
    """A loop that gives out seeds in the order in which rollouts come to an end."""

    finishing: Callable[[Sequence[Attempt]], Sequence[Attempt]] = staticmethod(tuple)

    def play(self, attempts: Sequence[Attempt], turn_seed: Callable[[Attempt, int], int]) -> list[PlayedRollout]:
        ranks = {(each.episode.id, each.rollout): rank for rank, each in enumerate(self.finishing(attempts))}
        return super().play(attempts, lambda attempt, turn: 100 * ranks[attempt.episode.id, attempt.rollout] + turn)


@pytest.mark.planted("turns get their seeds in the order in which rollouts end")
def test_seeds_by_order_of_completion_are_found(
    trial: Trial, monkeypatch: pytest.MonkeyPatch, planted: Planted
) -> None:
    monkeypatch.setattr(player, "RolloutLoop", ByCompletion)
    counted = replace(trial, straight=trial.begin("straight").train(STEPS))
    monkeypatch.setattr(ByCompletion, "finishing", staticmethod(lambda attempts: [*attempts[1:], attempts[0]]))
    branch = counted.begin("repeated").train(STEPS)
    place = f"step 1, episode {trial.plan.schedule[0].episodes[0]}, rollout 0, turn 0 (seed)"
    without = counted.judge_without(branch, "walk_step")
    assert without == "next found at step 1, evidence"
    planted(counted.first_divergence(branch), place=place, without=f"{without}, which names no turn")


@dataclass
class MoodySession:
    """A session whose verifier adds a mood."""

    inner: Session
    mood: float

    def call(self, name: str, arguments: Mapping[str, str]) -> ToolResult:
        return self.inner.call(name, arguments)

    def native_calls(self) -> Sequence[NativeCall]:
        return self.inner.native_calls()

    def close(self) -> None:
        self.inner.close()

    def verify(self, final_text: str) -> Score:
        return self.inner.verify(final_text).model_copy(update={"format": self.mood})


class MoodyWorld(LenientWorld):
    """A world whose verifier has moods, drawn from a random stream that lives as long as the world."""

    def __init__(self) -> None:
        super().__init__()
        self._stream = np.random.default_rng(7)

    def open(self, episode: Episode) -> Session:
        return MoodySession(super().open(episode), float(self._stream.random()))


@pytest.mark.planted("world draws from a random stream of its own")
def test_a_world_with_a_random_stream_of_its_own_is_found(trial: Trial, planted: Planted) -> None:
    moody = replace(trial, straight=trial.begin("straight", MoodyWorld()).train(STEPS))
    assert moody.judge(moody.begin("repeated", MoodyWorld()).train(STEPS)).passed
    branch = moody.begin("resumed", MoodyWorld()).train(STOP_AT)
    branch.world = MoodyWorld()
    branch.train(STEPS, branch.checkpoint(STOP_AT))
    place = f"step 3, episode {trial.plan.schedule[STOP_AT].episodes[0]}, rollout 0 (format)"
    without = moody.judge_without(branch, "walk_step")
    assert without == "next found at step 3, evidence"
    planted(moody.first_divergence(branch), place=place, without=f"{without}, which names no rollout")


@pytest.mark.planted("second half computes with another number of threads")
def test_another_number_of_threads_is_found(trial: Trial, monkeypatch: pytest.MonkeyPatch, planted: Planted) -> None:
    configure = train.configure

    def configure_otherwise(compute: Compute, seed: int) -> None:
        configure(compute, seed)
        torch.set_num_threads(compute.threads + 1)

    monkeypatch.setattr(train, "configure", configure_otherwise)
    try:
        branch = trial.resume()
    finally:
        torch.set_num_threads(trial.plan.recipe.compute.threads)
    if trial.judge(branch).passed:
        pytest.skip("one thread and two compute the same bits here")
    found = trial.first_divergence(branch)
    without = trial.judge_without(branch, "walk_step")
    assert without.startswith("next found at step ")
    planted(found, place=found.place, without=without)
