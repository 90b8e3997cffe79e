"""What a policy has to offer to the rollout loop: token ids in, token ids out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol


@dataclass(frozen=True, slots=True)
class TurnRequest:
    """One turn to sample."""

    context_ids: tuple[int, ...]
    seed: int
    """63-bit seed of the turn's own noise; equal requests give equal turns in any batch."""
    max_tokens: int


@dataclass(frozen=True, slots=True)
class SampledTurn:
    """One sampled turn; ids and log-probabilities have equal length."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """At the sampling temperature; float32 values."""
    finish: Literal["stop", "length"]
    """`stop`: the last id is the end-of-turn token, which is included."""


class Policy(Protocol):
    """A source of turns."""

    def sample(self, requests: Sequence[TurnRequest]) -> list[SampledTurn]:
        """Sample every request; the result has the order of the requests."""
        ...
