from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from experiment.decisions.bootstrap import exact_interval, paired_cluster_interval, resample_indices, resampled_sums

QUICK = settings(max_examples=40)
SEEDS = 3
NUMERATORS = st.lists(st.integers(-SEEDS, SEEDS), min_size=1, max_size=60).map(np.array)
STREAMS = st.integers(0, 2**63 - 1)
CONFIDENCES = st.floats(0.5, 0.999)


@QUICK
@given(NUMERATORS, st.integers(1, 200), CONFIDENCES, STREAMS)
def test_interval_is_that_of_the_resampled_means(numerators, resamples, confidence, seed) -> None:
    ours = exact_interval(numerators, denominator=SEEDS, resamples=resamples, confidence=confidence, seed=seed)
    drawn = resample_indices(numerators.size, first=0, rows=resamples, seed=seed)
    means = (numerators / SEEDS)[drawn].mean(axis=1)
    expected = np.quantile(means, [(1 - confidence) / 2, (1 + confidence) / 2])
    assert np.allclose((ours.low, ours.high), expected, rtol=0, atol=1e-12)


@QUICK
@given(NUMERATORS, st.integers(1, 200), st.integers(1, 250), STREAMS)
def test_chunk_size_never_changes_a_sum(numerators, resamples, chunk, seed) -> None:
    whole = resampled_sums(numerators, resamples=resamples, seed=seed, chunk=resamples)
    assert np.array_equal(resampled_sums(numerators, resamples=resamples, seed=seed, chunk=chunk), whole)


@QUICK
@given(st.integers(1, 300), st.integers(0, 50), st.integers(1, 20), STREAMS)
def test_a_resample_is_the_same_whether_or_not_earlier_ones_were_drawn(items, first, rows, seed) -> None:
    alone = resample_indices(items, first=first, rows=rows, seed=seed)
    assert alone.shape == (rows, items)
    assert alone.min() >= 0
    assert alone.max() < items
    assert np.array_equal(alone, resample_indices(items, first=0, rows=first + rows, seed=seed)[first:])


@QUICK
@given(NUMERATORS, st.integers(1, 100), CONFIDENCES, STREAMS)
def test_interval_lies_between_the_smallest_and_the_largest_item(numerators, resamples, confidence, seed) -> None:
    ours = exact_interval(numerators, denominator=SEEDS, resamples=resamples, confidence=confidence, seed=seed)
    assert numerators.min() / SEEDS <= ours.low <= ours.high <= numerators.max() / SEEDS
    assert not ours.degenerate or ours.low == ours.high


@QUICK
@given(st.integers(-SEEDS, SEEDS), st.integers(1, 60), st.integers(1, 100), STREAMS)
def test_equal_items_are_degenerate_at_their_difference(value, items, resamples, seed) -> None:
    ours = exact_interval(np.full(items, value), denominator=SEEDS, resamples=resamples, confidence=0.95, seed=seed)
    assert (ours.low, ours.high, ours.degenerate) == (value / SEEDS, value / SEEDS, True)


@QUICK
@given(NUMERATORS, STREAMS)
def test_swapped_sides_mirror_the_interval(numerators, seed) -> None:
    one, other = (
        exact_interval(side, denominator=SEEDS, resamples=99, confidence=0.9, seed=seed)
        for side in (numerators, -numerators)
    )
    assert np.allclose((one.low, one.high), (-other.high, -other.low), rtol=0, atol=1e-12)


@QUICK
@given(NUMERATORS, st.integers(1, 100), CONFIDENCES, STREAMS)
def test_floats_give_the_exact_interval_within_tolerance(numerators, resamples, confidence, seed) -> None:
    exact = exact_interval(numerators, denominator=SEEDS, resamples=resamples, confidence=confidence, seed=seed)
    given_floats = paired_cluster_interval(numerators / SEEDS, resamples=resamples, confidence=confidence, seed=seed)
    assert np.allclose((exact.low, exact.high), (given_floats.low, given_floats.high), rtol=0, atol=1e-12)
    assert exact.degenerate == given_floats.degenerate


@settings(max_examples=5)
@given(STREAMS)
def test_interval_covers_the_true_difference_about_as_often_as_it_says(root) -> None:
    rng = np.random.default_rng(root)
    covered = 0
    for trial in range(100):
        items = rng.choice([-1, 0, 1], size=80, p=[0.1, 0.6, 0.3])
        found = exact_interval(items, denominator=1, resamples=400, confidence=0.95, seed=trial)
        covered += found.low <= 0.2 <= found.high
    assert covered >= 80
