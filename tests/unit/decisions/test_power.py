from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from experiment.decisions.power import DISCORDANT_SHARES, power_table
from experiment.errors import UsageError


@pytest.mark.parametrize("row", power_table(256, 3), ids=lambda row: f"discordant={row.discordant}")
def test_detectable_difference_is_detected_in_about_four_of_five_experiments(row) -> None:
    rng = np.random.default_rng(20261129)
    better, worse = (row.discordant + row.detectable) / 2, (row.discordant - row.detectable) / 2
    draws = rng.random((20_000, row.items))
    wins, losses = (draws < better).sum(axis=1), (draws > 1 - worse).sum(axis=1)
    statistic = np.abs(wins - losses) / np.sqrt(wins + losses)  # McNemar's test
    power = float((statistic > stats.norm.ppf(0.975)).mean())
    assert 0.79 <= power <= 0.84


def test_detectable_difference_follows_the_stated_formula() -> None:
    factor = stats.norm.ppf(0.975) + stats.norm.ppf(0.8)
    for row in power_table(100, 1):
        assert row.detectable == pytest.approx(factor * np.sqrt(row.discordant / 100), abs=1e-12)


def test_each_share_has_a_row_and_less_agreement_detects_less() -> None:
    rows = power_table(64, 2)
    assert tuple(row.discordant for row in rows) == DISCORDANT_SHARES
    assert [row.detectable for row in rows] == sorted(row.detectable for row in rows)
    assert {row.items for row in rows} == {64}


def test_more_seeds_never_make_the_table_look_better() -> None:
    assert power_table(64, 1) == power_table(64, 50)


def test_four_times_the_items_detect_half_the_difference() -> None:
    few, many = power_table(64, 1)[0], power_table(256, 1)[0]
    assert many.detectable == pytest.approx(few.detectable / 2)


@pytest.mark.parametrize(("items", "seeds"), [(0, 1), (1, 0)])
def test_nothing_to_measure_refuses(items: int, seeds: int) -> None:
    with pytest.raises(UsageError, match="measure nothing"):
        power_table(items, seeds)
