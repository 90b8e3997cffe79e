"""Faults of restoring, planted: each is refused before the first sample, and is a real difference where it is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from peft import get_peft_model
from peft.tuners.lora import LoraLayer
from transformers import Trainer

from experiment.errors import ExperimentError, QualificationError
from experiment.training import trainer as trainer_module
from tests.doubles.trial import Trial
from tests.planted import Planted


def refused(trial: Trial, kind: type[ExperimentError], match: str) -> ExperimentError:
    """The error of a resume that is refused before anything is sampled."""
    before = len(trial.stopped.steps)
    with pytest.raises(kind, match=match) as caught:
        trial.resume()
    assert len(trial.stopped.steps) == before
    return caught.value


def quoted(error: Exception) -> str:
    """The name that a message puts in quotes."""
    return str(error).rsplit("'", 2)[1]


def test_a_resume_without_a_fault_changes_no_bit(trial: Trial) -> None:
    assert trial.judge(trial.resume()).passed


def forget(*_: object, **__: object) -> None:
    """Restore nothing."""


def reinitialise(trainer: Any, checkpoint: str, model: Any = None) -> None:
    """Load the adapter, and give every layer a fresh one."""
    LOAD(trainer, checkpoint, model)
    for module in trainer.model.modules():
        if isinstance(module, LoraLayer):
            module.reset_lora_parameters("default", True)


def wrap_again(trainer: Any, checkpoint: str, model: Any = None) -> None:
    """Load the adapter, and wrap the model once more."""
    LOAD(trainer, checkpoint, model)
    get_peft_model(trainer.model.base_model.model, trainer.model.peft_config["default"])


def wrap_under_the_optimizer(trainer: Any, checkpoint: str) -> None:
    """Restore the random streams, and wrap the model whose parameters the optimizer holds already."""
    LOAD_RANDOM(trainer, checkpoint)
    with torch.random.fork_rng():
        get_peft_model(trainer.model.base_model.model, trainer.model.peft_config["default"])


LOAD = Trainer._load_from_checkpoint
LOAD_RANDOM = Trainer._load_rng_state


def fault(name: str, hook: str, broken: Callable[..., None], named: str) -> Any:
    return pytest.param(hook, broken, named, id=name, marks=pytest.mark.planted(name))


@pytest.mark.parametrize(
    ("hook", "broken", "named"),
    [
        fault("random streams are not restored", "_load_rng_state", forget, "random/"),
        fault("optimizer and scheduler are not restored", "_load_optimizer_and_scheduler", forget, "optimizer/"),
        fault("adapter is not restored", "_load_from_checkpoint", forget, "adapter/"),
        fault("adapter is initialised again after it was restored", "_load_from_checkpoint", reinitialise, "adapter/"),
        fault("adapter is wrapped again after it was restored", "_load_from_checkpoint", wrap_again, "adapter/"),
        fault("adapter is wrapped again under the optimizer", "_load_rng_state", wrap_under_the_optimizer, "adapter/"),
    ],
)
def test_a_state_that_is_not_the_sealed_one_is_refused(
    trial: Trial, monkeypatch: pytest.MonkeyPatch, planted: Planted, hook: str, broken: Callable[..., None], named: str
) -> None:
    monkeypatch.setattr(Trainer, hook, broken)
    found = refused(trial, QualificationError, f"after restoring, '{named}")
    monkeypatch.setattr(trainer_module, "verify_restored", forget)
    later = trial.first_divergence(trial.resume())
    assert later.place.startswith("step 3")
    planted(
        found, place=str(found).partition(", ")[2].split("'")[1], without=f"it trains on; next found at {later.place}"
    )
