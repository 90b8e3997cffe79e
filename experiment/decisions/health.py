"""What to warn about, or stop for, after each training step; pure functions of the journaled steps.

Each finding is reported at the step at which it begins, and again only after it had gone away. Two findings stop a
run: a loss, gradient norm or sampler gap that is not finite, and more corrupted rollouts than the recipe allows. All
others are for people: they compare noisy measurements by fixed thresholds and can be wrong in both directions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from experiment.records.entry import TrainStep
    from experiment.records.recipe import Health

METRICS = (
    "corrupted_rollouts",
    "entropy",
    "gap_max_nats",
    "kl",
    "observation_ce",
    "observation_tokens",
    "reward",
    "strict",
)
"""Metrics that every `StepFacts` has to carry.

`corrupted_rollouts`: rollouts with a token whose sampler and trainer log-probabilities differ by more than
`max_gap_nats`; `gap_max_nats`: the largest such difference; `entropy`: mean policy entropy per sampled token in nats;
`kl`: mean KL to the baseline per sampled token in nats; `observation_ce`: mean cross-entropy on observation content
tokens in nats, only where there are any; `observation_tokens`: their number; `reward`, `strict`: means over the
step's rollouts.
"""

_MUST_BE_FINITE = ("gap_max_nats", "grad_norm", "loss")

WINDOW = 10
"""Steps that are pooled where a trend is judged."""

ENTROPY_WINDOW = 5
"""Latest steps whose mean entropy is set against step 1."""

MIN_ENTROPY_RATIO = 0.2
"""Losing half of the entropy is what learning looks like; losing four fifths is a collapse."""

MAX_ENTROPY_RATIO = 2.0
MAX_TRUNCATED_SHARE = 0.25
"""Share of rollouts that the token limit cut."""

MAX_REWARD_LOSS = 0.2
"""Relative fall of reward from its best window."""

_Z_STEP_1 = 3.2905267314918945
"""Standard normal quantile at 0.9995: 99.9 % two-sided."""

_Z_TREND = 2.5758293035489004
"""Standard normal quantile at 0.995: 99 % two-sided."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something about a training step that has to be seen."""

    kind: str
    """Stable name; findings about one family end in `/family`."""
    message: str
    stops: bool
    """True where training must not go on."""


@dataclass(frozen=True, slots=True)
class PassRate:
    """How often a policy solved what it tried, one sample each."""

    successes: int
    attempts: int
    """At least 1."""


def check_step(history: Sequence[TrainStep], thresholds: Health, baseline: PassRate | None) -> tuple[Finding, ...]:
    """Return what begins at the last step of `history`; findings that stop are returned at every step.

    Args:
        history: The steps of one arm so far, from step 1 on, oldest first, at least one.
        thresholds: The recipe's thresholds.
        baseline: Pass@1 of the starting policy on episodes like the training ones; None where it was not measured.
    """
    known = {finding.kind for finding in _findings(history[:-1], thresholds, baseline)} if history[1:] else set()
    return tuple(
        finding for finding in _findings(history, thresholds, baseline) if finding.stops or finding.kind not in known
    )


def rates_differ(one: PassRate, other: PassRate, z: float) -> bool:
    """Return whether the score interval of the difference of two rates excludes zero.

    Args:
        one: The first rate.
        other: The second rate.
        z: Standard normal quantile of the interval's level.

    Source:
        Newcombe 1998, Interval estimation for the difference between independent proportions, method 10,
        Statistics in Medicine 17, 873-890.
    """
    low, high = sorted((one, other), key=lambda rate: rate.successes / rate.attempts)
    gap = high.successes / high.attempts - low.successes / low.attempts
    above = _score_bounds(low, z)[1] - low.successes / low.attempts
    below = high.successes / high.attempts - _score_bounds(high, z)[0]
    return gap > math.sqrt(above * above + below * below)


def _score_bounds(rate: PassRate, z: float) -> tuple[float, float]:
    """Return Wilson's score interval of a rate."""
    share, trials = rate.successes / rate.attempts, rate.attempts
    centre = share + z * z / (2 * trials)
    spread = z * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
    return (centre - spread) / (1 + z * z / trials), (centre + spread) / (1 + z * z / trials)


def _findings(history: Sequence[TrainStep], thresholds: Health, baseline: PassRate | None) -> Iterator[Finding]:
    """Yield everything that holds at the last step, whether or not it held before."""
    step = history[-1]
    yield from _check_numbers(step)
    yield from _check_corruption(step, thresholds)
    if len(history) == 1 and baseline is not None:
        yield from _check_first_step(step, baseline)
    yield from _check_families(history)
    yield from _check_entropy(history)
    yield from _check_truncation(step)
    yield from _check_auxiliary(history)


def _check_numbers(step: TrainStep) -> Iterator[Finding]:
    facts = step.facts
    broken = set(facts.not_finite) | {name for name in ("loss", "grad_norm") if getattr(facts, name) is None}
    for name in sorted(broken):
        yield Finding(f"not_finite/{name}", f"step {facts.step}: {name} is not finite", stops=name in _MUST_BE_FINITE)
    expected = set(METRICS) if _metric(step, "observation_tokens") else set(METRICS) - {"observation_ce"}
    for name in sorted(expected - {name for name, _ in facts.metrics} - broken):
        yield Finding(f"metric_missing/{name}", f"step {facts.step}: metric '{name}' was not recorded", stops=False)


def _check_corruption(step: TrainStep, thresholds: Health) -> Iterator[Finding]:
    gap, corrupted = _metric(step, "gap_max_nats"), _metric(step, "corrupted_rollouts")
    rollouts = _rollouts(step)
    if gap is not None and gap > thresholds.max_gap_nats and not corrupted:
        corrupted = 1.0  # a gap this large lies in at least one rollout, whatever was counted
    if not corrupted:
        return
    largest = "an unrecorded number of" if gap is None else f"{gap:.1f}"
    yield Finding(
        "corrupted_rollouts",
        f"step {step.facts.step}: {corrupted:.0f} of {rollouts} rollouts are corrupted: sampler and trainer differ by "
        f"up to {largest} nats on a token (limit {thresholds.max_gap_nats:g} nats; "
        f"share {thresholds.max_corrupted_share:g} stops)",
        stops=corrupted > thresholds.max_corrupted_share * rollouts,
    )


def _check_first_step(step: TrainStep, baseline: PassRate) -> Iterator[Finding]:
    """Yield a finding where step 1 is not what the baseline's own pass@1 leads to expect.

    The level is as wide as 99.9 % because rollouts of one episode resemble each other, which makes the true spread
    larger than the binomial one.
    """
    solved = PassRate(sum(rates.successes for rates in step.families), _rollouts(step))
    if solved.attempts and rates_differ(solved, baseline, _Z_STEP_1):
        yield Finding(
            "first_step",
            f"step 1 solved {solved.successes} of {solved.attempts} rollouts, the baseline {baseline.successes} of "
            f"{baseline.attempts} episodes: outside the 99.9 % interval, so look at sampling settings and prompts",
            stops=False,
        )


def _check_families(history: Sequence[TrainStep]) -> Iterator[Finding]:
    """Yield the families whose share of groups without any success rises again from its lowest window."""
    for family in sorted({rates.family for step in history for rates in step.families}):
        rates = [_all_fail(history[end - WINDOW : end], family) for end in range(WINDOW, len(history) + 1)]
        latest, earlier = rates[-1:], [rate for rate in rates[:-WINDOW] if rate.attempts]
        if not earlier or not latest[0].attempts:
            continue
        lowest = min(earlier, key=lambda rate: (rate.successes / rate.attempts, -rate.attempts))
        now = latest[0]
        if now.successes / now.attempts > lowest.successes / lowest.attempts and rates_differ(now, lowest, _Z_TREND):
            yield Finding(
                f"all_fail_rising/{family}",
                f"step {history[-1].facts.step}: in family '{family}' {now.successes} of the last {now.attempts} "
                f"groups failed altogether, {lowest.successes} of {lowest.attempts} at best before",
                stops=False,
            )


def _all_fail(steps: Sequence[TrainStep], family: str) -> PassRate:
    """Return how many of a family's groups failed altogether; `attempts` is 0 where it was not played."""
    rates = [found for step in steps for found in step.families if found.family == family]
    return PassRate(sum(found.all_fail for found in rates), sum(found.groups for found in rates))


def _check_entropy(history: Sequence[TrainStep]) -> Iterator[Finding]:
    first = _metric(history[0], "entropy")
    now = _mean(history[1:][-ENTROPY_WINDOW:], "entropy")
    if first is None or now is None:
        return
    for kind, is_found in (
        ("entropy_collapse", now < MIN_ENTROPY_RATIO * first),
        ("entropy_explosion", now > MAX_ENTROPY_RATIO * first),
    ):
        if is_found:
            message = f"step {history[-1].facts.step}: entropy {now:.3g} nats, {first:.3g} at step 1"
            yield Finding(kind, message, stops=False)


def _check_truncation(step: TrainStep) -> Iterator[Finding]:
    share = _truncated_share((step,))
    if share > MAX_TRUNCATED_SHARE:
        message = f"step {step.facts.step}: the token limit cut {share:.0%} of the rollouts"
        yield Finding("truncation", message, stops=False)


def _check_auxiliary(history: Sequence[TrainStep]) -> Iterator[Finding]:
    """Yield a finding where the observation loss still falls although reward has fallen from its best window."""
    windows = [history[end - WINDOW : end] for end in range(WINDOW, len(history) + 1)]
    rewarded = [(window, reward) for window in windows if (reward := _mean(window, "reward")) is not None]
    if not rewarded or not rewarded[:-WINDOW]:
        return
    (best, best_reward), (latest, reward) = max(rewarded[:-WINDOW], key=lambda entry: entry[1]), rewarded[-1]
    loss, best_loss = _observation_loss(latest), _observation_loss(best)
    if loss is None or best_loss is None:
        return
    if reward < (1 - MAX_REWARD_LOSS) * best_reward and loss < best_loss:
        yield Finding(
            "auxiliary_without_reward",
            f"step {history[-1].facts.step}: observation cross-entropy fell from {best_loss:.3g} to {loss:.3g} nats "
            f"while reward fell from {best_reward:.3g} to {reward:.3g}; truncated rollouts "
            f"{_truncated_share(best):.0%}, then {_truncated_share(latest):.0%}",
            stops=False,
        )


def _observation_loss(steps: Sequence[TrainStep]) -> float | None:
    """Return the mean observation cross-entropy of the steps that had observation tokens."""
    return _mean([step for step in steps if _metric(step, "observation_tokens")], "observation_ce")


def _truncated_share(steps: Sequence[TrainStep]) -> float:
    cut = sum(count for step in steps for end, count in step.ends if end == "length")
    return cut / max(1, sum(count for step in steps for _, count in step.ends))


def _rollouts(step: TrainStep) -> int:
    return sum(rates.rollouts for rates in step.families)


def _mean(steps: Sequence[TrainStep], name: str) -> float | None:
    """Return the mean of a metric over the steps that recorded it; None where none did."""
    values = [value for step in steps if (value := _metric(step, name)) is not None]
    return math.fsum(values) / len(values) if values else None


def _metric(step: TrainStep, name: str) -> float | None:
    return next((value for found, value in step.facts.metrics if found == name), None)
