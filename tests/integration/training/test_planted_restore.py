"""Faults of restoring, planted: each is refused before the first sample, and is a real difference where it is not."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import get_peft_model
from peft.tuners.lora import LoraLayer
from transformers import Trainer

from experiment.errors import ExperimentError, JournalError, QualificationError
from experiment.sealing.canonical import decode
from experiment.training import sampler, train
from experiment.training import trainer as trainer_module
from experiment.training.checkpoint import STATE_FILE
from tests.doubles.trial import STOP_AT, Trial
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


def leave_stale(merge: Any) -> None:
    """Leave the sampler as it was loaded, which is the base model."""


def merge_twice(merge: Any) -> None:
    """Bring the sampler up to date, and add the adapter to it once more."""
    MERGE(merge)
    with torch.no_grad():
        for module, target in merge._pairs:
            target.add_(module.get_delta_weight("default"))


MERGE = sampler._Merge.__call__


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


@pytest.mark.parametrize(
    "broken",
    [
        pytest.param(broken, id=name, marks=pytest.mark.planted(name))
        for name, broken in {
            "sampler holds the base model after a resume": leave_stale,
            "sampler holds the adapter twice after a resume": merge_twice,
        }.items()
    ],
)
def test_a_sampler_that_does_not_hold_the_sealed_policy_is_refused(
    trial: Trial, monkeypatch: pytest.MonkeyPatch, planted: Planted, broken: Callable[[Any], None]
) -> None:
    monkeypatch.setattr(sampler._Merge, "__call__", broken)
    found = refused(trial, QualificationError, "the sampler's 'model.layers.0.self_attn.q_proj.weight'")
    monkeypatch.setattr(sampler, "verify_merged", forget)
    later = trial.first_divergence(trial.resume())
    assert later.place.startswith("step 3")
    planted(found, place=quoted(found), without=f"it samples from it; next found at {later.place}")


def delete(path: Path, other: Path) -> None:
    path.unlink()


def shorten(path: Path, other: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def swap(path: Path, other: Path) -> None:
    shutil.copyfile(other, path)


def disguise(path: Path, other: Path) -> None:
    torch.save({"python": Fraction(1, 3)}, path)


UNTYPED = "an error that names nothing"
DAMAGES: dict[str, tuple[Callable[[Path, Path], None], tuple[str, ...]]] = {
    "is deleted": (delete, ("JournalError", "QualificationError", "it trains on")),
    "is one byte shorter": (shorten, ("JournalError", UNTYPED)),
    "holds an unknown class": (disguise, ("JournalError", UNTYPED)),
    "is another step's": (swap, ("QualificationError", "QualificationError", "it trains on")),
}
"""By damage: what finds it without the seal, then without reading the parts first, then without comparing states."""


def open_unsealed(checkpoint: Path) -> dict[str, str]:
    """The recorded digests of a state, without a look at seal and files."""
    return dict(decode((checkpoint / STATE_FILE).read_bytes()))


LAYERS: tuple[tuple[str, Any, str, Callable[..., Any]], ...] = (
    ("seal", train, "open_checkpoint", open_unsealed),
    ("reading", train, "verify_readable", forget),
    ("comparison of states", trainer_module, "verify_restored", forget),
)


def outcome(trial: Trial) -> str:
    """What ends a resume: an error of our tree, another one, or nothing."""
    try:
        trial.resume()
    except ExperimentError as error:
        return type(error).__name__
    except Exception:  # noqa: BLE001 - whatever the training stack raises
        return UNTYPED
    return "it trains on"


def damage(part: str, how: str) -> Any:
    return pytest.param(part, *DAMAGES[how], id=f"{part} {how}", marks=pytest.mark.planted(f"{part} {how}"))


@pytest.mark.parametrize(
    ("part", "break_file", "expected"),
    [damage(part, how) for part in ("optimizer.pt", "scheduler.pt", "rng_state.pth") for how in DAMAGES],
)
def test_a_damaged_part_is_found_by_one_layer_after_the_other(
    trial: Trial,
    monkeypatch: pytest.MonkeyPatch,
    planted: Planted,
    part: str,
    break_file: Callable[[Path, Path], None],
    expected: tuple[str, ...],
) -> None:
    other = trial.stopped.checkpoint(STOP_AT - 1) / part
    break_file(trial.stopped.checkpoint(STOP_AT) / part, other)
    found = refused(trial, JournalError, part)
    left_out = []
    for (layer, module, name, nothing), then in zip(LAYERS, expected, strict=False):
        monkeypatch.setattr(module, name, nothing)
        assert (layer, outcome(trial)) == (layer, then)
        left_out.append(f"{layer} off, {then}")
    if expected[-1] == "it trains on":
        left_out[-1] += f", next found at {trial.first_divergence(trial.stopped).place}"
    planted(found, place=part, without="; ".join(left_out))
