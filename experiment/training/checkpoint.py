"""Sealed recovery checkpoints: what is in them, and what has to hold before one is used.

The trainer saves into a work folder. Only the files of `PARTS` are taken over, completed by `state.json` (the
digests of the live state at that moment), sealed and renamed into place in one step. A checkpoint with a missing
file is refused; upstream would go on silently without its optimizer, scheduler or random state.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from experiment.errors import JournalError, QualificationError
from experiment.sealing.canonical import decode, encode
from experiment.sealing.trees import TreeSeal, seal_tree, verify_tree

PARTS: Final = (
    "adapter_config.json",
    "adapter_model.safetensors",
    "optimizer.pt",
    "rng_state.pth",
    "scheduler.pt",
    "trainer_state.json",
)
STATE_FILE: Final = "state.json"


def seal_checkpoint(saved: Path, final: Path, state: Mapping[str, str]) -> TreeSeal:
    """Turn a folder that the trainer saved into a sealed checkpoint at `final`.

    Raises:
        JournalError: The trainer did not write every part.
        StorageError: The file system refused a write.
    """
    missing = [name for name in PARTS if not (saved / name).is_file()]
    if missing:
        message = f"{saved}: the trainer did not save {', '.join(missing)}"
        raise JournalError(message)
    for entry in saved.iterdir():
        if entry.name not in PARTS:
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    (saved / STATE_FILE).write_bytes(encode(dict(state)))
    final.parent.mkdir(parents=True, exist_ok=True)
    return seal_tree(saved, final)


def open_checkpoint(path: Path, tree: str | None = None) -> dict[str, str]:
    """Verify a checkpoint's seal and return the state digests recorded in it.

    Raises:
        JournalError: Unsealed, incomplete or changed.
    """
    verify_tree(path, tree)
    missing = [name for name in (*PARTS, STATE_FILE) if not (path / name).is_file()]
    if missing:
        message = f"{path}: the sealed checkpoint lacks {', '.join(missing)}"
        raise JournalError(message)
    state = decode((path / STATE_FILE).read_bytes())
    if not isinstance(state, dict):
        message = f"{path / STATE_FILE}: not a mapping of names to digests"
        raise JournalError(message)
    return {str(name): str(digest) for name, digest in state.items()}


def verify_restored(sealed: Mapping[str, str], live: Mapping[str, str], place: Path) -> None:
    """Return only if the restored trainer is in exactly the state that was sealed.

    Raises:
        QualificationError: Names the first part that differs.
    """
    for name in sorted(sealed.keys() | live.keys()):
        if sealed.get(name) != live.get(name):
            message = f"{place}: after restoring, '{name}' is not what was sealed"
            raise QualificationError(message)
