"""What rollouts are sampled from while an adapter is trained."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from experiment.policies.hf import HFPolicy
from experiment.records.recipe import Recipe
from experiment.training.merging import lora_layers
from experiment.training.models import load_baseline
from experiment.training.state import plain_name


@dataclass(frozen=True, slots=True)
class Sampler:
    """A policy and how it is brought up to date with the trained weights."""

    policy: HFPolicy
    refresh: Callable[[], None]


def build_sampler(recipe: Recipe, trained: Any, *, end_id: int, pad_id: int) -> Sampler:
    """A sampler of the trained model.

    In float32 it is a second copy with the adapter merged in, which samples nearly twice as fast as base and adapter
    apart; the trained weights themselves are never merged, because that cannot be undone exactly. In bfloat16 merging
    would round most of the adapter away, so the trained model is sampled as it is.
    """
    is_merged = recipe.compute.dtype == "float32"
    model = load_baseline(recipe) if is_merged else trained
    policy = HFPolicy(model, end_id=end_id, pad_id=pad_id, temperature=recipe.sampling.temperature)
    return Sampler(policy, _Merge(trained, model) if is_merged else lambda: None)


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
