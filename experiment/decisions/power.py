"""How small a paired difference the planned items can detect; printed by `prepare`, frozen in the plan."""

from __future__ import annotations

import math

from experiment.errors import UsageError
from experiment.records.plan import PowerRow

DISCORDANT_SHARES = (0.1, 0.2, 0.3, 0.5)
"""Assumed shares of items on which the two policies disagree."""

_Z_TEST = 1.959963984540054
"""Standard normal quantile at 0.975: two-sided test at 5 %."""

_Z_POWER = 0.8416212335729143
"""Standard normal quantile at 0.80: power of 80 %."""


def power_table(items: int, seeds: int) -> tuple[PowerRow, ...]:
    """Return the smallest paired difference detectable at 80 % (two-sided 5 %) for each discordant share.

    With item differences D in {-1, 0, 1} of which a share s is not 0, Var(D) = s - E(D)**2 <= s, hence
    detectable = (z_0.975 + z_0.80) * sqrt(s / items). Two choices make the table conservative: the bound s stands
    for the variance, and further generation seeds do not enter. They only reduce the noise within an item, never
    the spread between items, and how much noise that is cannot be known before the run.

    A value above `discordant` says that no difference which is possible at that share would be detected.

    Args:
        items: Number of items of the final set, at least 1.
        seeds: Number of generation seeds per item, at least 1; more of them never make the table look better.

    Raises:
        UsageError: There is no item or no seed.

    Source:
        Connor 1987, Sample size for testing differences in proportions for the paired-sample design,
        Biometrics 43, 207-211; here with the variance under the null hypothesis on both sides.
    """
    if items < 1 or seeds < 1:
        msg = f"assessment: {items} items at {seeds} seeds measure nothing"
        raise UsageError(msg)
    return tuple(
        PowerRow(discordant=share, items=items, detectable=(_Z_TEST + _Z_POWER) * math.sqrt(share / items))
        for share in DISCORDANT_SHARES
    )
