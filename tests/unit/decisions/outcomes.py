"""Small evaluations for the tests of `decisions`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from experiment.records.entry import EvaluationFinished
from experiment.records.verdict import EvaluationKey, ItemOutcome


def outcome(item: str, success: bool = False, *, family: str = "f", errors: int = 0, invalid: int = 0) -> ItemOutcome:
    """Return one item's outcome."""
    return ItemOutcome(
        item=item,
        family=family,
        success=success,
        tool_errors=errors,
        invalid_calls=invalid,
        malformed=False,
        capped=False,
        tokens_generated=12,
        tokens_retained=10,
    )


def outcomes(bits: str, *, errors: int = 0) -> tuple[ItemOutcome, ...]:
    """Return items i0, i1, … that succeed where the digit is 1; the first one carries all tool errors."""
    return tuple(outcome(f"i{n}", bit == "1", errors=errors if n == 0 else 0) for n, bit in enumerate(bits))


def evaluation(
    found: Sequence[ItemOutcome],
    *,
    arm: str = "baseline",
    step: int = 0,
    seed: int = 42,
    suite: Literal["agent", "retention"] = "agent",
) -> EvaluationFinished:
    """Return one final evaluation."""
    key = EvaluationKey(arm=arm, step=step, suite=suite, stage="final", seed=seed)
    return EvaluationFinished(key=key, evidence="0" * 64, outcomes=tuple(found), seconds=1.0)


def evaluations(
    bits_by_seed: Mapping[int, str],
    *,
    arm: str = "baseline",
    step: int = 0,
    suite: Literal["agent", "retention"] = "agent",
) -> list[EvaluationFinished]:
    """Return one evaluation per generation seed."""
    return [
        evaluation(outcomes(bits), arm=arm, step=step, seed=seed, suite=suite) for seed, bits in bits_by_seed.items()
    ]
