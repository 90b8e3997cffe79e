"""Loading of the frozen baseline and its tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer

from experiment.records.recipe import Compute, Lora, Recipe


def load_tokenizer(recipe: Recipe) -> Any:
    """The frozen tokenizer."""
    return AutoTokenizer.from_pretrained(recipe.inputs.tokenizer or recipe.inputs.baseline, local_files_only=True)


def load_baseline(recipe: Recipe) -> Any:
    """The frozen starting policy, in the recipe's precision and on its device."""
    return load_model(Path(recipe.inputs.baseline), recipe.compute)


def load_model(path: Path, compute: Compute) -> Any:
    """A merged model from a local folder."""
    dtype = {"float32": torch.float32, "bfloat16": torch.bfloat16}[compute.dtype]
    model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype, local_files_only=True)
    return model.to(compute.device)


def lora_config(lora: Lora) -> LoraConfig:
    """PEFT's form of the recipe's adapter settings."""
    targets = lora.target_modules if isinstance(lora.target_modules, str) else list(lora.target_modules)
    return LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=targets,
        task_type="CAUSAL_LM",
    )
