"""What has to hold before the trainer may restore a checkpoint: each of its parts can be read as what it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import torch
from peft import PeftConfig
from safetensors.torch import load_file
from transformers import TrainerState
from transformers.trainer_pt_utils import safe_globals

from experiment.errors import JournalError


def verify_readable(checkpoint: Path) -> None:
    """Return only if every part of a checkpoint can be read, by the readers that the trainer will use.

    A seal vouches for bytes, also for bytes that were written wrong.

    Raises:
        JournalError: Names the first part that cannot be read.
    """
    for name, read in _READERS.items():
        path = checkpoint / name
        try:
            read(path)
        except Exception as error:  # damaged bytes raise whatever their reader stumbles over
            message = f"{path}: cannot be read ({type(error).__name__}: {_first_line(error)})"
            raise JournalError(message) from error


def _read_tensors(path: Path) -> object:
    """Read what `torch.save` wrote; classes that the trainer does not write are refused."""
    with safe_globals():
        return torch.load(path, map_location="cpu", weights_only=True)


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "no message")


_READERS: Final[Mapping[str, Callable[[Path], Any]]] = {
    "adapter_config.json": lambda path: PeftConfig.from_pretrained(path.parent),
    "adapter_model.safetensors": load_file,
    "optimizer.pt": _read_tensors,
    "rng_state.pth": _read_tensors,
    "scheduler.pt": _read_tensors,
    "trainer_state.json": TrainerState.load_from_json,
}
