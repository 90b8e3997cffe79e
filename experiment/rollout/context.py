"""The digest that names what a turn was conditioned on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from experiment.sealing.digests import digest_bytes


def context_digest(ids: Sequence[int]) -> str:
    """BLAKE3 of the ids as little-endian int32."""
    return digest_bytes(np.asarray(ids, dtype="<i4").tobytes())
