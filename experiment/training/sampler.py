"""What rollouts are sampled from while an adapter is trained."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from experiment.errors import QualificationError
from experiment.policies.hf import HFPolicy
from experiment.records.recipe import Recipe
from experiment.training.merging import lora_layers
from experiment.training.models import load_baseline
from experiment.training.state import plain_name


@dataclass(frozen=True, slots=True)
class Sampler:
    """A policy, how it is brought up to date with the trained weights, and the proof that it is."""

    policy: HFPolicy
    refresh: Callable[[], None]
    verify: Callable[[], None] = lambda: None
    """Returns only if the policy's weights are the trained ones; raises QualificationError."""


def build_sampler(recipe: Recipe, trained: Any, *, end_id: int, pad_id: int) -> Sampler:
    """A sampler of the trained model.

    In float32 it is a second copy with the adapter merged in, which samples nearly twice as fast as base and adapter
    apart; the trained weights themselves are never merged, because that cannot be undone exactly. In bfloat16 merging
    would round most of the adapter away, so the trained model is sampled as it is.
    """
    is_merged = recipe.compute.dtype == "float32"
    model = load_baseline(recipe) if is_merged else trained
    policy = HFPolicy(model, end_id=end_id, pad_id=pad_id, temperature=recipe.sampling.temperature)
    if not is_merged:
        return Sampler(policy, lambda: None)
    merge = _Merge(trained, model)
    return Sampler(policy, merge, lambda: verify_merged(trained, model))


class _Merge:
    """Writes base plus adapter into a copy of the base model."""

    def __init__(self, trained: Any, copy: Any) -> None:
        targets = dict(copy.named_modules())
        self._pairs = [(layer, targets[plain_name(name)].weight) for name, layer in lora_layers(trained)]

    def __call__(self) -> None:
        """Bring the copy up to date."""
        with torch.no_grad():
            for module, target in self._pairs:
                target.copy_(module.get_base_layer().weight + module.get_delta_weight(module.active_adapters[0]))


def verify_merged(trained: Any, copy: Any) -> None:
    """Return only if every weight of a copy of the base model is, bit for bit, base plus adapter.

    A copy that was not brought up to date, or twice, is a policy that nobody trains and that no checkpoint holds.

    Raises:
        QualificationError: Names the first weight that differs.
    """
    found = copy.state_dict()
    with torch.no_grad():
        for name, expected in _merged_weights(trained):
            if not torch.equal(_bits(found[name]), _bits(expected)):
                message = f"before sampling, the sampler's '{name}' is not base plus adapter"
                raise QualificationError(message)


def _merged_weights(trained: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield every weight of the trained policy under the name that it has in the base model."""
    adapted = dict(lora_layers(trained))
    for name, weight in trained.state_dict().items():
        if "lora_" in name:
            continue
        owner, _, kind = name.partition(".base_layer.")
        delta = adapted[owner].get_delta_weight(adapted[owner].active_adapters[0]) if kind == "weight" else None
        yield plain_name(name), weight if delta is None else weight + delta


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor: a weight that is not a number has to equal itself too."""
    return tensor.reshape(-1).view(torch.uint8)
