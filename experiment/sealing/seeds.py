"""Seeds by counters: every random stream has a name, and no stream depends on what was drawn before."""

from __future__ import annotations

from experiment.sealing.canonical import encode
from experiment.sealing.digests import CONTEXT_SEED, derive


def derive_seed(root: int, purpose: str, *counters: int | str) -> int:
    """Return the seed of one named stream, in [0, 2**63).

    Args:
        root: The plan's root seed.
        purpose: What the stream is for, for example `rollout`.
        counters: Which of the purpose's streams; the number 1 and the text "1" name the same one.
    """
    name = encode([str(root), purpose, [str(counter) for counter in counters]])
    return int(derive(CONTEXT_SEED, name)[:16], 16) >> 1
