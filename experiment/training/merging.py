"""A checkpoint's adapter put on the baseline for evaluation, and what exactly that did to the weights.

In float32 the adapter is merged into the weights, as it is for sampling in training. In bfloat16 it stays apart,
because merging would round most of it away; how much is measured all the same, in float32, and recorded.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from peft.tuners.lora import LoraLayer

from experiment.records.verdict import MergeFacts
from experiment.training.state import adapter_state, parts, plain_name, reference_digest


def load_policy(model: Any, checkpoint: Path) -> tuple[Any, MergeFacts]:
    """The model with a checkpoint's adapter in evaluation mode, and how its weights differ from the model's.

    Args:
        model: The baseline, freshly loaded; it is used up.
        checkpoint: Folder of the sealed checkpoint.
    """
    base = reference_digest(model)
    policy = PeftModel.from_pretrained(model, checkpoint)
    expected = {plain_name(f"{name}.weight"): _summed(layer) for name, layer in lora_layers(policy)}
    before = {name: value.detach().float().clone() for name, value in _weights(policy) if name in expected}
    untargeted = {name: value.detach().clone() for name, value in _weights(policy) if name not in expected}
    adapter = dict(parts(adapter_state(policy)))["adapter"]
    is_merged = policy.dtype == torch.float32
    evaluated = (policy.merge_and_unload() if is_merged else policy).eval()
    wanted = {name: value if is_merged else before[name] for name, value in expected.items()} | untargeted
    facts = MergeFacts(
        base=base,
        adapter=adapter,
        weights=reference_digest(evaluated),
        form="merged" if is_merged else "apart",
        tensors=len(wanted),
        targeted=len(expected),
        strays=sum(_differing(value, wanted[name]) for name, value in _weights(evaluated)),
        **_changes(before, expected),
    )
    return evaluated, facts


def lora_layers(model: Any) -> list[tuple[str, Any]]:
    """The adapted layers of a PEFT model, by name."""
    return [(name, module) for name, module in model.named_modules() if isinstance(module, LoraLayer)]


def _weights(model: Any) -> list[tuple[str, torch.Tensor]]:
    return [(plain_name(name), value) for name, value in model.state_dict().items() if "lora_" not in name]


def _summed(layer: Any) -> torch.Tensor:
    """Base plus adapter in float32."""
    with torch.no_grad():
        summed: torch.Tensor = (
            layer.get_base_layer().weight.float() + layer.get_delta_weight(layer.active_adapters[0]).float()
        )
    return summed


def _changes(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> dict[str, Any]:
    """Count what base plus adapter changes, and how much of that bfloat16 cannot hold."""
    changed = {name: after[name] != value for name, value in before.items()}
    lost = {name: changed[name] & (after[name].bfloat16() == value.bfloat16()) for name, value in before.items()}
    return {
        "changed_tensors": sum(bool(each.any()) for each in changed.values()),
        "elements": sum(each.numel() for each in changed.values()),
        "changed": sum(int(each.sum()) for each in changed.values()),
        "vanishing": sum(int(each.sum()) for each in lost.values()),
        "largest": max(float((after[name] - value).abs().max()) for name, value in before.items()),
    }


def _differing(found: torch.Tensor, wanted: torch.Tensor) -> int:
    """How many elements are not the wanted ones, bit for bit; all of them where the shapes differ."""
    if found.shape != wanted.shape:
        return int(found.numel())
    return int((found.to(wanted.dtype) != wanted).sum())
