from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from experiment.records.verdict import Comparison, Interval
from experiment.report.facts import RunFacts, load_facts
from experiment.report.wording import Verdict, limits, percent, points, verdicts
from tests.doubles.small_run import SmallRun


@pytest.fixture(scope="module")
def run(drafted: SmallRun) -> RunFacts:
    return load_facts(drafted.run_dir)


def verdict_on(run: RunFacts, *, retained: bool = True, **agent: Any) -> Verdict:
    """The verdict on the first arm with some fields of its comparisons replaced."""

    def changed(found: Comparison) -> Comparison:
        if found.suite == "retention":
            return found.model_copy(update={"retained": retained})
        return found.model_copy(update=agent)

    return verdicts(replace(run, comparisons=tuple(changed(found) for found in run.comparisons)))[0]


CLEAR = Interval(low=0.1, high=0.3, degenerate=False)


@pytest.mark.parametrize(
    ("changes", "headline", "tone"),
    [
        ({"interval": CLEAR}, "Better than the baseline", "good"),
        ({"interval": CLEAR, "retained": False}, "Better, but it failed the retention gate", "warn"),
        ({"interval": Interval(low=0.0, high=0.3, degenerate=False)}, "No difference shown", "neutral"),
        ({"interval": Interval(low=-0.3, high=-0.1, degenerate=False)}, "Worse than the baseline", "bad"),
        ({"interval": CLEAR, "promoted": False}, "Baseline retained; for diagnosis only: better", "warn"),
        (
            {"interval": Interval(low=-0.3, high=-0.1, degenerate=False), "promoted": False},
            "Baseline retained; for diagnosis only: worse",
            "neutral",
        ),
    ],
)
def test_the_headline_follows_from_interval_retention_and_promotion(
    run: RunFacts, changes: dict[str, Any], headline: str, tone: str
) -> None:
    verdict = verdict_on(run, **{"promoted": True, **changes})

    assert (verdict.headline, verdict.tone) == (headline, tone)


def test_an_interval_without_width_needs_the_exact_test_to_agree(run: RunFacts) -> None:
    point = Interval(low=1.0, high=1.0, degenerate=True)

    assert verdict_on(run, interval=point, sign_test_p=1.0, promoted=True).headline == "No difference shown"
    assert verdict_on(run, interval=point, sign_test_p=0.01, promoted=True).headline == "Better than the baseline"


def test_the_sentence_holds_all_that_a_reader_needs(run: RunFacts) -> None:
    sentence = verdict_on(
        run, interval=CLEAR, promoted=True, before=0.25, after=0.45, difference=0.2, after_step=2
    ).sentence

    for part in (
        "grpo@2",
        "45.0\u00a0%",
        "25.0\u00a0%",
        "20.0 percentage points more",
        "+10.0 to +30.0",
        "2 generation",
    ):
        assert part in sentence
    assert "retention held" in sentence
    assert "selected on DEV" in sentence


def test_a_diagnostic_assessment_is_never_called_a_promotion(run: RunFacts) -> None:
    sentence = verdict_on(run, interval=CLEAR, promoted=False).sentence

    assert "the baseline stays" in sentence
    assert "was selected" not in sentence


@pytest.mark.parametrize(("value", "text"), [(0.123, "+12.3"), (-0.05, "−5.0"), (0.0, "0.0"), (-0.0001, "0.0")])
def test_points_carry_their_sign_but_zero_has_none(value: float, text: str) -> None:
    assert points(value) == text


def test_a_percentage_does_not_break() -> None:
    assert percent(0.5) == "50.0\u00a0%"


def test_a_stand_in_policy_is_named_only_where_there_is_one(run: RunFacts) -> None:
    recipe = run.plan.recipe.model_copy(update={"starter": None})
    without = replace(run, plan=run.plan.model_copy(update={"recipe": recipe}))

    assert "A stand-in policy" in limits(run)
    assert "A stand-in policy" not in limits(without)
    assert "One training seed" in limits(without)
