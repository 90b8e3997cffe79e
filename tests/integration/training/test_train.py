"""Training jobs: what they report about a step, and which learning rates they really use."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from trl import GRPOTrainer

from experiment.errors import AlignmentError, FaultError, PlanError
from experiment.records.job import CheckpointDone, StepDone, TrainingDone
from experiment.records.rollout import TrainedRollout
from experiment.sealing.canonical import decode_record
from experiment.sealing.digests import digest_file
from experiment.training import player, train, trainer
from experiment.training.trainer import build_config
from tests.doubles.tiny_training import Branch, tiny_plan
from tests.planted import Planted

SHORT = {"max_turns": 1, "max_turn_tokens": 4}


def metrics(step: StepDone) -> dict[str, float]:
    return dict(step.facts.metrics)


@pytest.mark.parametrize(("schedule", "warmup"), [("constant", 2), ("linear", 1), ("cosine", 0)])
def test_learning_rates_are_the_plan_s_to_the_bit(baseline: Path, tmp_path: Path, schedule: str, warmup: int) -> None:
    plan = tiny_plan(baseline, sampling=SHORT, schedule=schedule, warmup_steps=warmup)
    branch = Branch(tmp_path, plan).train(4)
    assert [each.facts.learning_rate for each in branch.steps] == [each.learning_rate for each in plan.schedule]
    assert len({each.learning_rate for each in plan.schedule}) > 1


def test_stopping_early_does_not_shorten_the_schedule(baseline: Path, tmp_path: Path) -> None:
    plan = tiny_plan(baseline, sampling=SHORT, schedule="linear", warmup_steps=1)
    branch = Branch(tmp_path, plan).train(2)
    assert [each.facts.learning_rate for each in branch.steps] == [each.learning_rate for each in plan.schedule[:2]]
    assert [each.step for each in branch.of(CheckpointDone)] == [1, 2]


def test_step_without_observations_has_no_observation_metric_and_equals_grpo(baseline: Path, tmp_path: Path) -> None:
    plan = tiny_plan(baseline, sampling=SHORT, steps=2)
    echo, grpo = (Branch(tmp_path / arm, plan, arm).train(2) for arm in ("echo", "grpo"))
    for step in echo.steps:
        assert step.facts.not_finite == ()
        assert metrics(step)["observation_tokens"] == 0.0
        assert "observation_ce" not in metrics(step)
    assert echo.state == grpo.state
    assert echo.evidence() == grpo.evidence()


def test_observations_are_measured_where_they_are_learned(baseline: Path, tmp_path: Path) -> None:
    plan = tiny_plan(baseline, steps=2)
    echo, zero, grpo = (Branch(tmp_path / arm, plan, arm).train(2) for arm in ("echo", "echo-zero", "grpo"))
    for step in (*echo.steps, *zero.steps):
        assert metrics(step)["observation_tokens"] > 0
        assert 0.0 < metrics(step)["observation_ce"] < 20.0
    assert all("observation_ce" not in metrics(step) for step in grpo.steps)
    assert all(metrics(step)["gap_max_nats"] < 1e-4 for step in (*echo.steps, *zero.steps, *grpo.steps))
    assert zero.state == grpo.state != echo.state


def test_facts_and_evidence_of_a_step_agree(baseline: Path, tmp_path: Path) -> None:
    plan = tiny_plan(baseline, steps=2)
    (step,) = Branch(tmp_path, plan).train(1).steps
    path = Path(step.evidence_path)
    assert (step.facts.evidence, step.evidence_bytes) == (digest_file(path), path.stat().st_size)
    trained = [decode_record(TrainedRollout, line) for line in path.read_bytes().splitlines()]
    places = [(each.rollout.episode, each.rollout.rollout) for each in trained]
    assert places == [(episode, number) for episode in plan.schedule[0].episodes for number in range(4)]
    rewards = [each.reward for each in trained if each.reward is not None]
    assert metrics(step)["reward"] == math.fsum(rewards) / 8
    assert len(set(rewards)) > 1
    assert metrics(step)["gap_max_nats"] < 1e-4
    assert metrics(step)["sampled_tokens"] == sum(each.rollout.tokens_generated for each in trained)
    assert sum(count for _, count in step.ends) == 8
    assert sum(each.rollouts for each in step.families) == 8


def test_loss_that_is_not_finite_is_named_and_ends_the_job(baseline: Path, tmp_path: Path) -> None:
    plan = tiny_plan(baseline, learning_rate=1e30)
    branch = Branch(tmp_path, plan)
    with pytest.raises(FaultError, match=r"arm echo, step 2: .*kl, loss not finite"):
        branch.train(4)
    first, second = branch.steps
    assert first.facts.not_finite == ()
    assert {"loss", "kl", "entropy", "gap_max_nats"} <= set(second.facts.not_finite)
    assert second.facts.loss is None
    assert all(math.isfinite(value) for value in metrics(second).values())


@pytest.mark.planted("data loader that yields nothing after a resume")
def test_trainer_whose_data_ran_out_has_not_done_the_job(
    baseline: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, planted: Planted
) -> None:
    branch = Branch(tmp_path, tiny_plan(baseline, sampling=SHORT)).train(2)
    monkeypatch.setattr("transformers.trainer.skip_first_batches", lambda *_: [])
    with pytest.raises(FaultError, match="the trainer ended after step 2 of 4") as caught:
        branch.train(4, branch.checkpoint(2))
    assert [each.step for each in branch.of(TrainingDone)] == [2]
    monkeypatch.setattr(train, "_require_all_steps", lambda *_: None)
    branch.train(4, branch.checkpoint(2))
    assert [each.step for each in branch.of(TrainingDone)] == [2, 2]
    assert len(branch.steps) == 2
    planted(caught.value, place="step 2 of 4", without="the worker ends in good order after no step")


@pytest.mark.planted("window of which the trainer uses one half")
def test_trainer_that_uses_half_of_a_window_is_refused(
    baseline: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, planted: Planted
) -> None:
    build = trainer.build_trainer

    def build_shifted(*args: Any, **kwargs: Any) -> Any:
        made = build(*args, **kwargs)
        made._step = 1
        return made

    monkeypatch.setattr(train, "build_trainer", build_shifted)
    branch = Branch(tmp_path, tiny_plan(baseline, sampling=SHORT, gradient_accumulation=2))
    with pytest.raises(AlignmentError, match="step 1: the trainer used 4 of the 8 rollouts") as caught:
        branch.train(1)
    assert branch.steps == []
    monkeypatch.setattr(player, "_require_all_used", lambda _: None)
    with pytest.raises(KeyError):
        branch.train(1)
    planted(caught.value, place="step 1", without="the recorder crashes on the first rollout that was not used")


def test_loss_of_one_step_that_is_no_number_is_not_averaged_away(
    baseline: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute_loss = GRPOTrainer._compute_loss

    def spoiled(self: GRPOTrainer, model: Any, inputs: Any) -> Any:
        loss = compute_loss(self, model, inputs)
        return loss * math.nan if self.state.global_step == 2 else loss

    monkeypatch.setattr(GRPOTrainer, "_compute_loss", spoiled)
    plan = tiny_plan(baseline, sampling=SHORT)
    assert build_config(plan, str(tmp_path)).logging_nan_inf_filter is False
    branch = Branch(tmp_path, plan)
    with pytest.raises(FaultError, match="arm echo, step 3: .*loss not finite"):
        branch.train(4)
    assert [(each.facts.step, each.facts.loss is None) for each in branch.steps] == [(1, False), (2, False), (3, True)]
    assert "loss" in branch.steps[-1].facts.not_finite
    # A state that follows from it is never sealed; what a strict reader would refuse is in none of the others.
    assert [each.step for each in branch.of(CheckpointDone)] == [1, 2]
    for path in sorted((tmp_path / "checkpoints").rglob("*.json")):
        json.loads(path.read_bytes(), parse_constant=pytest.fail)


def test_arm_that_the_plan_does_not_have_is_refused(baseline: Path, tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="no arm 'other'"):
        Branch(tmp_path, tiny_plan(baseline), "other").train(1)
