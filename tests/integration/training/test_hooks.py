"""What the trainer relies on inside TRL and transformers; a new version that breaks this must fail here first."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import pytest
import torch
from transformers import get_scheduler
from trl import GRPOConfig, GRPOTrainer

from experiment.algorithms.grpo import TRL_SETTINGS
from experiment.pipeline.schedule import learning_rate_factor
from experiment.records.recipe import Training
from experiment.training.trainer import RecordedGRPOTrainer

HOOKS = {
    "_generate_and_score_completions": ["self", "inputs"],
    "_compute_loss": ["self", "model", "inputs"],
    "_save_checkpoint": ["self", "model", "trial"],
    "_generate": ["self", "prompts"],
    "_prepare_inputs": ["self", "generation_batch"],
}


def parameters(function: Callable[..., object]) -> list[str]:
    return list(inspect.signature(function).parameters)


@pytest.mark.parametrize("name", HOOKS)
def test_hook_has_the_expected_parameters(name: str) -> None:
    assert parameters(getattr(GRPOTrainer, name)) == HOOKS[name]


def test_scoring_hook_takes_the_entropy_switch_by_name() -> None:
    names = parameters(GRPOTrainer._get_per_token_logps_and_entropies)
    assert names[:5] == ["self", "model", "input_ids", "attention_mask", "logits_to_keep"]
    assert "compute_entropy" in names
    calls = inspect.getsource(GRPOTrainer).count("compute_entropy=True")
    assert calls == 1, "the policy's own forward pass is told apart by the only request for entropies"


def test_every_override_overrides_something() -> None:
    overridden = {name for name, value in vars(RecordedGRPOTrainer).items() if inspect.isfunction(value)}
    own = {"__init__", "play_step", "_current_step"}
    assert overridden - own == {
        "_compute_loss",
        "_generate_and_score_completions",
        "_get_per_token_logps_and_entropies",
        "_save_checkpoint",
        "create_model_card",
    }
    assert all(hasattr(GRPOTrainer, name) for name in overridden - own)
    assert not any(hasattr(GRPOTrainer, name) for name in own - {"__init__"})


def test_constructor_takes_rollouts_rewards_and_adapter() -> None:
    names = parameters(GRPOTrainer.__init__)
    assert {"model", "args", "train_dataset", "processing_class", "peft_config", "reward_funcs", "rollout_func"} <= {
        *names
    }


def test_algorithm_s_settings_are_settings_of_the_pinned_version() -> None:
    assert set(TRL_SETTINGS) <= set(parameters(GRPOConfig.__init__))


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
@pytest.mark.parametrize(("steps", "warmup"), [(1, 0), (4, 1), (64, 0), (333, 50), (10, 10)])
def test_planned_learning_rate_is_exactly_what_transformers_will_use(schedule: str, steps: int, warmup: int) -> None:
    peak = 3e-4
    training = Training(
        steps=steps,
        prompts_per_step=1,
        rollouts_per_prompt=2,
        learning_rate=peak,
        schedule=schedule,  # type: ignore[arg-type]
        warmup_steps=warmup,
        kl=0.0,
    )
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=peak)
    name = {"constant": "constant_with_warmup"}.get(schedule, schedule)
    scheduler = get_scheduler(name, optimizer, num_warmup_steps=warmup, num_training_steps=steps)
    for step in range(1, steps + 1):
        assert scheduler.get_last_lr() == [peak * learning_rate_factor(training, step)], step
        optimizer.step()
        scheduler.step()
