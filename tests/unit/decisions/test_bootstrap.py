from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from experiment.decisions.bootstrap import (
    exact_interval,
    paired_cluster_interval,
    resample_indices,
    resampled_sums,
)
from experiment.errors import JournalError
from experiment.records.verdict import Interval

NUMERATORS = np.array([3, -1, 0, 0, 2, 1, -3, 0, 1, 1, 0, 2, 3, -2, 0], dtype=np.int64)


class FixedDraws(np.random.Generator):
    """A generator whose whole numbers are given."""

    def integers(self, *bounds: int, size: tuple[int, int], **options: object) -> NDArray[np.int64]:
        return resample_indices(size[1], first=0, rows=size[0], seed=5)


def interval(numerators: NDArray[np.int64], **changes: float) -> Interval:
    given = {"denominator": 3, "resamples": 999, "confidence": 0.95, "seed": 5} | changes
    return exact_interval(numerators, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.999])
@pytest.mark.parametrize("resamples", [2, 1000, 10_000])
def test_interval_equals_scipys_on_the_same_resamples(confidence: float, resamples: int) -> None:
    ours = interval(NUMERATORS, resamples=resamples, confidence=confidence)
    theirs = stats.bootstrap(
        (NUMERATORS / 3,),
        np.mean,
        n_resamples=resamples,
        confidence_level=confidence,
        method="percentile",
        vectorized=True,
        rng=FixedDraws(np.random.PCG64(0)),
    ).confidence_interval
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=1e-12)


def test_interval_holds_the_quantiles_of_all_resampled_means() -> None:
    drawn = resample_indices(NUMERATORS.size, first=0, rows=999, seed=5)
    means = (NUMERATORS / 3)[drawn].mean(axis=1)
    ours = interval(NUMERATORS)
    assert (ours.low, ours.high) == pytest.approx(tuple(np.quantile(means, [0.025, 0.975])), abs=1e-12)


def test_one_resample_is_its_own_interval() -> None:
    assert interval(NUMERATORS, resamples=1).degenerate


def test_known_interval_stays_what_it_was() -> None:
    """Guards the stream: an audit years later has to find the same bits."""
    expected = Interval(low=-0.1111111111111111, high=0.4222222222222222, degenerate=False)
    assert interval(NUMERATORS, resamples=10_000) == expected
    assert resample_indices(7, first=1, rows=2, seed=5).tolist() == [[6, 0, 1, 2, 3, 2, 0], [0, 0, 1, 6, 1, 4, 5]]


@pytest.mark.parametrize("chunk", [1, 7, 100, 9_999, 10_000, 20_000])
def test_sums_do_not_depend_on_the_chunk_size(chunk: int) -> None:
    whole = resampled_sums(NUMERATORS, resamples=10_000, seed=5, chunk=10_000)
    assert np.array_equal(resampled_sums(NUMERATORS, resamples=10_000, seed=5, chunk=chunk), whole)


def test_every_item_is_drawn_about_equally_often() -> None:
    counts = np.bincount(resample_indices(7, first=0, rows=20_000, seed=3).ravel(), minlength=7)
    assert stats.chisquare(counts).pvalue > 1e-4


def test_indices_stay_inside_the_items() -> None:
    drawn = resample_indices(3, first=0, rows=5_000, seed=3)
    assert (drawn.min(), drawn.max()) == (0, 2)


def test_interval_does_not_depend_on_what_was_drawn_before() -> None:
    before = interval(NUMERATORS)
    np.random.default_rng(5).random(1000)
    interval(NUMERATORS, seed=6)
    assert interval(NUMERATORS) == before


def test_another_seed_gives_another_interval() -> None:
    assert interval(NUMERATORS, seed=6) != interval(NUMERATORS)


def test_all_ties_give_a_degenerate_interval_at_zero() -> None:
    assert interval(np.zeros(9, dtype=np.int64)) == Interval(low=0.0, high=0.0, degenerate=True)


def test_all_wins_give_a_degenerate_interval_at_one() -> None:
    assert interval(np.full(9, 3)) == Interval(low=1.0, high=1.0, degenerate=True)


def test_one_item_gives_a_degenerate_interval_at_its_difference() -> None:
    assert interval(np.array([-1])) == Interval(low=-1 / 3, high=-1 / 3, degenerate=True)


def test_two_different_items_are_not_degenerate() -> None:
    assert not interval(np.array([0, 3])).degenerate


def test_no_items_refuse() -> None:
    with pytest.raises(JournalError, match="no items"):
        interval(np.array([], dtype=np.int64))
    with pytest.raises(JournalError, match="no items"):
        paired_cluster_interval(np.array([]), resamples=10, confidence=0.95, seed=1)


@pytest.mark.parametrize("changes", [{"resamples": 0}, {"denominator": 0}, {"confidence": 1.0}, {"confidence": 0.0}])
def test_settings_out_of_range_refuse(changes: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="out of range"):
        interval(NUMERATORS, **changes)


def test_sums_that_would_overflow_refuse() -> None:
    with pytest.raises(ValueError, match="do not add up exactly"):
        interval(np.array([1 << 61, 1]))


@pytest.mark.parametrize("value", [1.5, -1.01, float("nan"), float("inf")])
def test_differences_that_are_no_rates_refuse(value: float) -> None:
    with pytest.raises(ValueError, match="outside"):
        paired_cluster_interval(np.array([0.0, value]), resamples=10, confidence=0.95, seed=1)


def test_float_differences_give_the_exact_interval_within_tolerance() -> None:
    exact = interval(NUMERATORS)
    given = paired_cluster_interval(NUMERATORS / 3, resamples=999, confidence=0.95, seed=5)
    assert (given.low, given.high) == pytest.approx((exact.low, exact.high), abs=1e-12)
    assert given.degenerate == exact.degenerate


def test_largest_float_differences_still_add_up_exactly() -> None:
    for items in (1, 8_191, 8_192, 20_000):
        given = paired_cluster_interval(np.full(items, -1.0), resamples=2, confidence=0.95, seed=1)
        assert given == Interval(low=-1.0, high=-1.0, degenerate=True)


def test_twenty_thousand_items_fit_into_little_memory() -> None:
    """At once the indices alone would take 1.6 GB; the child may grow by 64 MiB after its imports."""
    program = (
        "import resource, numpy as np\n"
        "from experiment.decisions.bootstrap import exact_interval\n"
        "pages = int(open('/proc/self/statm').read().split()[0])\n"
        "limit = pages * resource.getpagesize() + (64 << 20)\n"
        "resource.setrlimit(resource.RLIMIT_AS, (limit, limit))\n"
        "numerators = np.arange(20_000) % 7 - 3\n"
        "exact_interval(numerators, denominator=3, resamples=10_000, confidence=0.95, seed=1)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
