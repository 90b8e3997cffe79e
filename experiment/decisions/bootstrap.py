"""Paired cluster bootstrap: percentile intervals that every machine computes to the same bit.

The cluster is the item: generation seeds are summed within it before anything is resampled. All statistics are
sums of whole numbers, divided once at the end, so neither the order of addition nor the size of a chunk can
change a bit. Item numbers come from the raw stream of PCG64, which numpy keeps stable between versions, and
every resample starts at a fixed word of that stream.

Source:
    Efron and Tibshirani 1993, An Introduction to the Bootstrap, sections 13.3 (percentile interval) and 8.6
    (resampling whole clusters).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from experiment.errors import JournalError
from experiment.records.verdict import Interval

if TYPE_CHECKING:
    from numpy.typing import NDArray

_CHUNK_DRAWS = 1 << 16
"""Drawn item numbers held at a time; about 2 MB, whatever the number of items and resamples."""

_SUM_BITS = 62
"""Every resampled sum stays below 2**62 in magnitude, hence exact in int64."""

_FRACTION_BITS = 48
"""Most binary places kept of a difference that is given as a float."""


def resample_indices(items: int, *, first: int, rows: int, seed: int) -> NDArray[np.int64]:
    """Return which items the resamples `first` to `first + rows - 1` consist of, shape (rows, items).

    Each 32-bit draw u becomes item `u * items >> 32`, so item probabilities differ from 1/items by less than 2**-32.

    Args:
        items: Number of clusters, in [1, 2**31).
        first: Number of resamples to skip; every resample owns its own words of the stream.
        rows: Number of resamples.
        seed: Seed of the stream, in [0, 2**63).
    """
    words = (items + 1) // 2
    stream = np.random.PCG64(seed)
    stream.advance(first * words)
    raw = stream.random_raw(rows * words)
    draws = raw.astype("<u8", copy=False).view("<u4").reshape(rows, 2 * words)[:, :items]
    return ((draws.astype(np.uint64) * np.uint64(items)) >> np.uint64(32)).view(np.int64)


def resampled_sums(numerators: NDArray[np.int64], *, resamples: int, seed: int, chunk: int) -> NDArray[np.int64]:
    """Return the sum of each resample, shape (resamples,); `chunk` resamples are held in memory at a time."""
    sums = np.empty(resamples, dtype=np.int64)
    for first in range(0, resamples, chunk):
        rows = min(chunk, resamples - first)
        indices = resample_indices(numerators.size, first=first, rows=rows, seed=seed)
        sums[first : first + rows] = numerators.take(indices).sum(axis=1)
    return sums


def exact_interval(
    numerators: NDArray[np.int64], *, denominator: int, resamples: int, confidence: float, seed: int
) -> Interval:
    """Return the percentile interval of the mean of `numerators / denominator` over items.

    Where all resampled means are equal (all items alike, or one item), the interval is that mean twice and marked
    as degenerate.

    Args:
        numerators: Difference of each item times `denominator`, whole numbers, shape (items,), in a frozen order.
        denominator: What all numerators are divided by, usually the number of generation seeds.
        resamples: Number of resamples, at least 1.
        confidence: Share of the resampled means inside the interval, in (0, 1).
        seed: Seed of this interval's own stream, in [0, 2**63).

    Raises:
        JournalError: There is no item.
        ValueError: A number is out of its range.
    """
    if numerators.size == 0:
        msg = "bootstrap: no items, so there is no difference to estimate"
        raise JournalError(msg)
    if resamples < 1 or denominator < 1 or not 0.0 < confidence < 1.0:
        msg = f"bootstrap: resamples {resamples}, denominator {denominator}, confidence {confidence} are out of range"
        raise ValueError(msg)
    largest = max(abs(int(numerators.min())), abs(int(numerators.max())))
    if largest * numerators.size >= 1 << _SUM_BITS:
        msg = f"bootstrap: {numerators.size} numerators of up to {largest} do not add up exactly in 64 bits"
        raise ValueError(msg)
    chunk = max(1, _CHUNK_DRAWS // numerators.size)
    sums = resampled_sums(numerators.astype(np.int64), resamples=resamples, seed=seed, chunk=chunk)
    scale = denominator * numerators.size
    tail = (1.0 - confidence) / 2.0
    return Interval(
        low=_quantile(sums, tail) / scale,
        high=_quantile(sums, 1.0 - tail) / scale,
        degenerate=bool(sums.min() == sums.max()),
    )


def paired_cluster_interval(
    differences_by_item: NDArray[np.float64], *, resamples: int, confidence: float, seed: int
) -> Interval:
    """Return the percentile interval of the mean difference, equal to `exact_interval` up to 1e-12.

    Differences are rounded to at most 48 binary places, fewer where there are more than 8,191 items, so that the
    sums stay exact; where the numerators are at hand, `exact_interval` rounds nothing.

    Args:
        differences_by_item: After minus before, averaged over the seeds of each item, in [-1, 1], shape (items,).
        resamples: Number of resamples, at least 1.
        confidence: Share of the resampled means inside the interval, in (0, 1).
        seed: Seed of this interval's own stream, in [0, 2**63).

    Raises:
        JournalError: There is no item.
        ValueError: A difference is outside [-1, 1] or not a number, or another number is out of its range.
    """
    if not bool(np.all(np.abs(differences_by_item) <= 1.0)):
        msg = "bootstrap: a paired difference is outside [-1, 1] or not a number"
        raise ValueError(msg)
    bits = min(_FRACTION_BITS, _SUM_BITS - 1 - differences_by_item.size.bit_length())
    numerators = np.rint(np.ldexp(differences_by_item, bits)).astype(np.int64)
    return exact_interval(numerators, denominator=1 << bits, resamples=resamples, confidence=confidence, seed=seed)


def _quantile(sums: NDArray[np.int64], share: float) -> float:
    """Return the sum below which `share` of all sums lie, interpolated linearly between neighbours."""
    place = share * (sums.size - 1)
    below = math.floor(place)
    above = min(below + 1, sums.size - 1)
    ordered = np.partition(sums, (below, above))
    low, high = int(ordered[below]), int(ordered[above])
    return low + (place - below) * (high - low)
