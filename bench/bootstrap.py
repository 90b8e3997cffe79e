"""Paired cluster bootstrap against `scipy.stats.bootstrap`, from the same outcomes to an interval, in one run.

Run from the repository root: `python bench/bootstrap.py`. Prints the median seconds of both and `ratio: X`, how many
times faster ours is; before that, it checks that both give the same interval for the same resamples.
"""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING

import numpy as np
from scipy import stats

from experiment.decisions.bootstrap import exact_interval, resample_indices

if TYPE_CHECKING:
    from numpy.typing import NDArray

ITEMS, SEEDS, RESAMPLES, CONFIDENCE, ROUNDS = 256, 3, 10_000, 0.95, 25
TOLERANCE = 1e-12


class FixedDraws(np.random.Generator):
    """A generator whose whole numbers are the ones our bootstrap draws."""

    def integers(self, *_bounds: int, size: tuple[int, int], **_options: object) -> NDArray[np.int64]:
        """Return the item numbers of all resamples, shape `size`."""
        return resample_indices(size[1], first=0, rows=size[0], seed=1)


def ours(before_IS: NDArray[np.int64], after_IS: NDArray[np.int64]) -> tuple[float, float]:
    """Return our interval of the mean paired difference."""
    numerators = (after_IS - before_IS).sum(axis=1)
    interval = exact_interval(numerators, denominator=SEEDS, resamples=RESAMPLES, confidence=CONFIDENCE, seed=1)
    return interval.low, interval.high


def scipys(before_IS: NDArray[np.int64], after_IS: NDArray[np.int64], rng: np.random.Generator) -> tuple[float, float]:
    """Return scipy's interval of the mean paired difference, vectorised, all resamples in one batch."""
    differences = (after_IS - before_IS).mean(axis=1)
    result = stats.bootstrap(
        (differences,),
        np.mean,
        n_resamples=RESAMPLES,
        confidence_level=CONFIDENCE,
        method="percentile",
        vectorized=True,
        rng=rng,
    )
    return float(result.confidence_interval.low), float(result.confidence_interval.high)


def main() -> None:
    """Print both times and their ratio."""
    draws = np.random.default_rng(20261129)
    before_IS = (draws.random((ITEMS, SEEDS)) < 0.44).astype(np.int64)
    after_IS = (draws.random((ITEMS, SEEDS)) < 0.60).astype(np.int64)
    mine, theirs = ours(before_IS, after_IS), scipys(before_IS, after_IS, FixedDraws(np.random.PCG64(0)))
    gap = max(abs(one - other) for one, other in zip(mine, theirs, strict=True))
    print(f"largest difference on the same resamples: {gap:.1e}")
    if gap > TOLERANCE:
        raise SystemExit(1)
    seconds: tuple[list[float], list[float]] = ([], [])
    for _ in range(ROUNDS):
        start = time.perf_counter()
        ours(before_IS, after_IS)
        middle = time.perf_counter()
        scipys(before_IS, after_IS, draws)
        seconds[0].append(middle - start)
        seconds[1].append(time.perf_counter() - middle)
    own_seconds, scipy_seconds = (statistics.median(values) for values in seconds)
    print(f"experiment {own_seconds * 1e3:.1f} ms, scipy {scipy_seconds * 1e3:.1f} ms (median of {ROUNDS})")
    print(f"ratio: {scipy_seconds / own_seconds:.2f}")


if __name__ == "__main__":
    main()
