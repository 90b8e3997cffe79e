"""The trainer's whole state as named digests, tensor by tensor, with one digest of the weights below the adapter.

Two executions are equal when these mappings are equal; where they are not, the first differing name says what
diverged. Names look like `adapter/<tensor>`, `optimizer/<parameter>/exp_avg`, `scheduler/last_epoch`, `random/torch`.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from peft import get_peft_model_state_dict

from experiment.decisions.merging import REFERENCE
from experiment.sealing.canonical import encode
from experiment.sealing.digests import digest_bytes


def tensor_digest(tensor: torch.Tensor) -> str:
    """BLAKE3 of type, shape and raw little-endian bytes."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    header = f"{tensor.dtype} {tuple(tensor.shape)}\n".encode()
    return digest_bytes(header + flat.view(torch.uint8).numpy().tobytes() if flat.numel() else header)


def trainer_state(trainer: Any) -> dict[str, str]:
    """Digests of adapter, optimizer, scheduler, random streams, counters and base weights of a live trainer."""
    model = trainer.accelerator.unwrap_model(trainer.model)
    state = adapter_state(model)
    state |= _optimizer_state(trainer.optimizer, model)
    state |= {f"scheduler/{name}": _value_digest(value) for name, value in trainer.lr_scheduler.state_dict().items()}
    state |= random_state()
    state[REFERENCE] = reference_digest(model)
    state["counters/global_step"] = _value_digest(trainer.state.global_step)
    state["counters/num_input_tokens_seen"] = _value_digest(trainer.state.num_input_tokens_seen)
    return dict(sorted(state.items()))


def adapter_state(model: Any) -> dict[str, str]:
    """Digests of the tensors of a PEFT model's adapter."""
    return {f"adapter/{name}": tensor_digest(value) for name, value in get_peft_model_state_dict(model).items()}


def random_state() -> dict[str, str]:
    """Digests of the process's global random streams."""
    _, keys, position, has_gauss, gauss = np.random.get_state()  # noqa: NPY002
    state = {
        "random/python": digest_bytes(repr(random.getstate()).encode()),
        "random/numpy": digest_bytes(np.asarray(keys).tobytes() + repr((position, has_gauss, gauss)).encode()),
        "random/torch": tensor_digest(torch.get_rng_state()),
    }
    if torch.cuda.is_available():
        for index, each in enumerate(torch.cuda.get_rng_state_all()):
            state[f"random/cuda{index}"] = tensor_digest(each)
    return state


def reference_digest(model: Any) -> str:
    """Digest of every weight that is not part of an adapter, the same whether or not there is one around them.

    While training it names the policy that the KL term is measured against.
    """
    named = ((plain_name(name), value) for name, value in model.state_dict().items() if "lora_" not in name)
    return digest_bytes(encode([[name, tensor_digest(value)] for name, value in sorted(named)]))


def plain_name(name: str) -> str:
    """A weight's name without what PEFT puts around it."""
    return name.removeprefix("base_model.model.").replace(".base_layer.", ".")


def parts(state: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """One digest per part (`adapter`, `optimizer`, …) of a full state."""
    groups: dict[str, list[list[str]]] = {}
    for name, digest in sorted(state.items()):
        groups.setdefault(name.partition("/")[0], []).append([name, digest])
    return tuple((part, digest_bytes(encode(entries))) for part, entries in sorted(groups.items()))


def _optimizer_state(optimizer: Any, model: Any) -> dict[str, str]:
    inner = getattr(optimizer, "optimizer", optimizer)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    state: dict[str, str] = {}
    for number, group in enumerate(inner.param_groups):
        settings = {key: value for key, value in group.items() if key != "params"}
        state |= {f"optimizer/group{number}/{key}": _value_digest(value) for key, value in settings.items()}
        for index, parameter in enumerate(group["params"]):
            owner = names.get(id(parameter), f"group{number}, parameter {index}, which is not in the model")
            moments: Iterable[tuple[str, Any]] = inner.state.get(parameter, {}).items()
            for key, value in moments:
                place = f"optimizer/{owner}/{key}"
                state[place] = tensor_digest(value) if isinstance(value, torch.Tensor) else _value_digest(value)
    return state


def _value_digest(value: object) -> str:
    """Digest of a plain value; floats by their exact bits."""
    exact = value.hex() if isinstance(value, float) else repr(value)
    if isinstance(value, list | tuple):
        exact = repr([each.hex() if isinstance(each, float) else each for each in value])
    return digest_bytes(exact.encode())
