from __future__ import annotations

import pytest
from rich.console import Console

from experiment.cli.tables import baseline_table, comparison_table, power_lines, verdict_sentences
from experiment.decisions.power import power_table
from experiment.records.job import FamilyScore
from experiment.records.provenance import Provenance
from experiment.records.recipe import Compute
from experiment.records.verdict import Comparison, Interval, SideTotals
from experiment.records.world import GermanToolsWorld
from tests.doubles.small_plan import small_recipe

TOTALS = SideTotals(
    planned=8,
    judged=8,
    malformed=0,
    tool_errors=0,
    invalid_calls=0,
    capped=0,
    tokens_generated=80,
    tokens_retained=80,
)


def _comparison(low: float, high: float, **changes: object) -> Comparison:
    made = Comparison(
        name="grpo@64 vs baseline, agent",
        suite="agent",
        before_arm="baseline",
        before_step=0,
        after_arm="grpo",
        after_step=64,
        promoted=True,
        items=4,
        seeds=(1, 2),
        before=0.25,
        after=0.5,
        difference=0.25,
        interval=Interval(low=low, high=high, degenerate=False),
        wins=2,
        losses=1,
        ties=1,
        sign_test_p=1.0,
        by_seed=((1, 0.25), (2, 0.25)),
        families=(),
        before_totals=TOTALS,
        after_totals=TOTALS,
        retained=None,
    )
    return made.model_copy(update=changes)


def _maths(retained: bool, **changes: object) -> Comparison:
    return _comparison(0.0, 0.0, suite="retention", name="grpo@64 vs baseline, retention", retained=retained, **changes)


def _printed(renderable: object) -> str:
    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    with console.file:
        console.print(renderable)
        return console.export_text()


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [
        (0.125, 0.375, "better than the baseline"),
        (-0.375, -0.125, "worse than the baseline"),
        (-0.125, 0.375, "no clear difference"),
        (0.0, 0.375, "no clear difference"),
        (-0.375, 0.0, "no clear difference"),
        (0.0, 0.0, "no clear difference"),
    ],
)
def test_the_interval_alone_decides_the_sentence(low: float, high: float, said: str) -> None:
    assert verdict_sentences([_comparison(low, high), _maths(retained=True)]) == [
        f"grpo@64: {said}, 0.250 -> 0.500 (+0.250, interval {low:+.3f} to {high:+.3f}); no observed loss in maths"
    ]


def test_an_observed_loss_is_said_beside_a_gain() -> None:
    (sentence,) = verdict_sentences([_comparison(0.1, 0.4), _maths(retained=False)])
    assert sentence.startswith("grpo@64: better than the baseline")
    assert sentence.endswith("; an observed loss in maths")


def test_a_diagnostic_result_is_never_said_without_its_status() -> None:
    (sentence,) = verdict_sentences([_comparison(0.1, 0.4, promoted=False), _maths(retained=True, promoted=False)])
    assert sentence.endswith("; no observed loss in maths; diagnostic only, the baseline is retained")


def test_maths_that_were_not_assessed_are_not_said_to_be_kept() -> None:
    (sentence,) = verdict_sentences([_comparison(0.1, 0.4)])
    assert sentence.endswith("; maths not assessed")


def test_each_arm_has_the_sentence_of_its_own_maths() -> None:
    echo = {"after_arm": "echo", "after_step": 32}
    between = _comparison(0.1, 0.4, name="echo@32 vs grpo@64, agent", before_arm="grpo", before_step=64, **echo)
    sentences = verdict_sentences(
        [
            _comparison(0.1, 0.4),
            _maths(retained=True),
            _comparison(-0.4, -0.1, **echo),
            _maths(retained=False, **echo),
            between,
        ]
    )
    assert [sentence.partition(":")[0] for sentence in sentences] == ["grpo@64", "echo@32"]
    assert [sentence.rpartition("; ")[2] for sentence in sentences] == [
        "no observed loss in maths",
        "an observed loss in maths",
    ]


def test_the_table_shows_interval_counts_and_notes() -> None:
    rows = [
        _comparison(-0.125, 0.375),
        _maths(retained=True),
        _maths(retained=False),
        _comparison(0.0, 0.0, promoted=False),
    ]
    shown = _printed(comparison_table(rows)).splitlines()
    assert any("grpo@64 vs baseline, agent" in line and "-0.125 to +0.375" in line and "2/1" in line for line in shown)
    assert any("no observed loss" in line for line in shown)
    assert any("observed loss" in line and "no observed loss" not in line for line in shown)
    assert any("diagnostic" in line for line in shown)


def test_the_power_table_has_a_row_for_each_share() -> None:
    rows = power_table(256, 3)
    shown = _printed(power_lines(rows))
    assert shown.count("256") == len(rows)
    assert all(f"{row.detectable:.3f}" in shown for row in rows)


def test_the_baseline_table_shows_each_family_and_the_maths() -> None:
    recipe = small_recipe()
    assert recipe.starter is not None
    provenance = Provenance(
        starter=recipe.starter,
        world=GermanToolsWorld(name="german_tools"),
        compute=Compute(),
        sources="0" * 64,
        families=(FamilyScore(family="direct", episodes=8, successes=6),),
        retention=FamilyScore(family="math_qa", episodes=8, successes=2),
    )
    shown = _printed(baseline_table(provenance))
    assert "direct" in shown and "0.750" in shown
    assert "math_qa" in shown and "0.250" in shown
