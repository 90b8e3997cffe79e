"""BLAKE3 digests, as 64 lower-case hexadecimal digits.

Files and artifacts carry the plain digest, which `b3sum FILE` prints. Everything that the package itself
frames carries a derived one (`b3sum --derive-key CONTEXT`), so that bytes of one kind never pass as another.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from blake3 import blake3

from experiment.errors import UsageError
from experiment.sealing.files import open_regular

if TYPE_CHECKING:
    from pathlib import Path

CONTEXT_RECORD = "experiment 2026-11-29 journal record v1"
CONTEXT_GENESIS = "experiment 2026-11-29 journal genesis v1"
CONTEXT_PLAN = "experiment 2026-11-29 plan v1"
CONTEXT_TREE = "experiment 2026-11-29 tree v1"
CONTEXT_HEAD = "experiment 2026-11-29 journal head v1"
CONTEXT_INSPECTION = "experiment 2026-11-29 inspection v1"
CONTEXT_SEED = "experiment 2026-11-29 seed v1"
CONTEXT_EPISODE = "experiment 2026-11-29 episode v1"

_CHUNK = 1 << 20


def digest_bytes(data: bytes) -> str:
    """Return the plain BLAKE3 digest of `data`."""
    return blake3(data).hexdigest()


def digest_file(path: Path) -> str:
    """Return the plain BLAKE3 digest of a regular file's bytes.

    Raises:
        UsageError: `path` cannot be read, or is a link or anything else than a regular file.
    """
    try:
        with open_regular(path) as stream:
            return digest_descriptor(stream.fileno())
    except OSError as error:
        msg = f"{path}: cannot be read as a regular file ({error.strerror})"
        raise UsageError(msg) from error


def digest_descriptor(fd: int) -> str:
    """Return the plain BLAKE3 digest of what `fd` yields from its position to its end."""
    hasher = blake3()
    while chunk := os.read(fd, _CHUNK):
        hasher.update(chunk)
    return hasher.hexdigest()


def derive(context: str, data: bytes) -> str:
    """Return the BLAKE3 digest of `data` in derive-key mode under one of the `CONTEXT_` constants."""
    return blake3(data, derive_key_context=context).hexdigest()
