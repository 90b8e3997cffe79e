"""Measurements and the verdicts that are pure functions of them."""

from __future__ import annotations

from typing import Literal

from experiment.records.base import Count, Digest, Name, Positive, Record

Suite = Literal["agent", "retention"]


class EvaluationKey(Record):
    """Which policy played which set with which generation seed."""

    arm: Name
    """Name of the arm, or `baseline`."""
    step: Count
    """0 for the baseline."""
    suite: Suite
    stage: Literal["dev", "final"]
    seed: Count


class ItemOutcome(Record):
    """One episode of one evaluation, as the statistics see it."""

    item: str
    family: str
    success: bool
    tool_errors: Count
    """Errors that the world showed to the agent."""
    invalid_calls: Count
    """Calls that never reached the world."""
    malformed: bool
    capped: bool
    tokens_generated: Count
    tokens_retained: Count


class Divergence(Record):
    """The first place where two executions differ."""

    branch: str
    place: str
    """For example `step 3, episode train-0007, rollout 1, turn 0, token 12` or `optimizer: exp_avg of …`."""
    expected: str
    found: str


class EqualityVerdict(Record):
    """Whether all branches of a qualification are equal bit for bit."""

    passed: bool
    compared: Count
    """How many digests and values were compared."""
    divergences: tuple[Divergence, ...]
    """The first divergence of each differing branch."""


class MergeFacts(Record):
    """What became of the baseline's weights when a checkpoint's adapter was put on them."""

    base: Digest
    """Of every weight before; the same digest as the reference policy's."""
    adapter: Digest
    """Of every tensor of the adapter; the same digest as in the checkpoint's record."""
    weights: Digest
    """Of every weight that is evaluated; equal to `base` where the adapter stays apart."""
    form: Literal["merged", "apart"]
    tensors: Positive
    """Weights of the model."""
    targeted: Positive
    """Weights that the adapter changes."""
    changed_tensors: Count
    """Targeted weights with at least one changed element."""
    elements: Positive
    """Elements of the targeted weights."""
    changed: Count
    """Elements that base plus adapter makes different in float32."""
    vanishing: Count
    """Changed elements that are the base's again once both are rounded to bfloat16."""
    largest: float
    """Largest absolute change of an element."""
    strays: Count
    """Elements of the evaluated weights that are not base plus adapter in float32, untargeted weights included."""


class CandidateScore(Record):
    """A checkpoint's DEV result beside the baseline's."""

    step: Count
    successes: Count
    items: Positive
    tool_errors: Count
    """World errors and invalid calls together."""
    retained: Count
    retention_items: Positive
    eligible: bool
    reasons: tuple[str, ...]
    """Why not eligible; empty where it is."""


class SelectionVerdict(Record):
    """What the frozen rule chose for one arm."""

    arm: Name
    baseline: CandidateScore
    candidates: tuple[CandidateScore, ...]
    """Ranked best first; ineligible ones after all eligible ones."""
    selected_step: Count | None
    """None: no candidate is eligible and the baseline is retained."""
    assessed_step: Positive
    """The selected step, or the diagnostic one, which cannot be promoted."""


class Interval(Record):
    """A percentile interval of a paired difference."""

    low: float
    high: float
    degenerate: bool
    """True where all resampled differences are equal, so the width says nothing about certainty."""


class FamilyComparison(Record):
    """The comparison within one family."""

    family: str
    items: Positive
    before: float
    after: float
    difference: float
    interval: Interval


class SideTotals(Record):
    """What one side of a comparison did, beyond success."""

    planned: Positive
    judged: Count
    malformed: Count
    tool_errors: Count
    invalid_calls: Count
    capped: Count
    tokens_generated: Count
    tokens_retained: Count


class Comparison(Record):
    """Policy `after` against policy `before` on one suite, paired by item and seed."""

    name: str
    """For example `grpo@64 vs baseline, agent`; also names the bootstrap's random stream."""
    suite: Suite
    before_arm: Name
    before_step: Count
    after_arm: Name
    after_step: Count
    promoted: bool
    """False for a diagnostic assessment."""
    items: Positive
    seeds: tuple[Count, ...]
    before: float
    after: float
    difference: float
    interval: Interval
    wins: Count
    losses: Count
    ties: Count
    sign_test_p: float
    """Exact two-sided sign test on item means."""
    by_seed: tuple[tuple[Count, float], ...]
    """(generation seed, difference)."""
    families: tuple[FamilyComparison, ...]
    before_totals: SideTotals
    after_totals: SideTotals
    retained: bool | None
    """Retention suite only: no observed loss overall and at every seed."""
