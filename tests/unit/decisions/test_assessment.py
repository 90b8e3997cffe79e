from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from experiment.decisions.assessment import check_planned, compare, sign_test
from experiment.decisions.bootstrap import exact_interval
from experiment.errors import JournalError
from experiment.records.entry import EvaluationFinished
from experiment.records.verdict import Comparison, Interval
from experiment.sealing.seeds import derive_seed
from tests.unit.decisions.outcomes import evaluation, evaluations, outcome, outcomes

BEFORE = evaluations({42: "110000", 1729: "101000"})
AFTER = evaluations({42: "011100", 1729: "111100"}, arm="grpo", step=64)


def compared(
    before: list[EvaluationFinished] = BEFORE, after: list[EvaluationFinished] = AFTER, **changes
) -> Comparison:
    given = {"root_seed": 7, "resamples": 500, "confidence": 0.95, "promoted": True} | changes
    return compare(before, after, **given)


def test_counts_are_those_of_a_hand_computation() -> None:
    found = compared()
    assert found.name == "grpo@64 vs baseline, agent"
    assert (found.before_arm, found.before_step, found.after_arm, found.after_step) == ("baseline", 0, "grpo", 64)
    assert (found.items, found.seeds) == (6, (42, 1729))
    assert (found.before, found.after, found.difference) == (4 / 12, 7 / 12, 3 / 12)
    assert (found.wins, found.losses, found.ties) == (3, 1, 2)
    assert found.by_seed == ((42, 1 / 6), (1729, 2 / 6))
    assert found.sign_test_p == stats.binomtest(3, 4).pvalue


def test_interval_clusters_by_item_on_the_comparisons_own_stream() -> None:
    seed = derive_seed(7, "bootstrap", "grpo@64 vs baseline, agent")
    numerators = np.array([-1, 1, 1, 2, 0, 0])
    expected = exact_interval(numerators, denominator=2, resamples=500, confidence=0.95, seed=seed)
    assert compared().interval == expected


def test_intervals_of_families_have_streams_of_their_own() -> None:
    def split(bits: str) -> tuple:
        return tuple(outcome(f"i{n:02}", bit == "1", family="ab"[n % 2]) for n, bit in enumerate(bits))

    found = compared(
        [evaluation(split("1100000000001010"))],
        [evaluation(split("0111110101001001"), arm="grpo", step=64)],
        resamples=20,
    )
    assert [(f.family, f.items, f.before, f.after, f.difference) for f in found.families] == [
        ("a", 8, 3 / 8, 3 / 8, 0.0),
        ("b", 8, 1 / 8, 6 / 8, 5 / 8),
    ]
    numerators = {"a": np.array([-1, 1, 1, 0, 0, 0, 0, -1]), "b": np.array([0, 1, 1, 1, 1, 0, 0, 1])}
    for family in found.families:
        own, shared = (
            exact_interval(
                numerators[family.family],
                denominator=1,
                resamples=20,
                confidence=0.95,
                seed=derive_seed(7, "bootstrap", found.name, *counters),
            )
            for counters in ((family.family,), ())
        )
        assert family.interval == own
        assert family.interval != shared


def test_order_of_items_and_evaluations_changes_nothing() -> None:
    shuffled = [e.model_copy(update={"outcomes": e.outcomes[3:] + e.outcomes[:3]}) for e in reversed(AFTER)]
    assert compared(after=shuffled) == compared()
    turned = [e.model_copy(update={"outcomes": e.outcomes[::-1]}) for e in reversed(BEFORE)]
    assert compared(before=turned) == compared()


def test_totals_are_summed_apart_from_success() -> None:
    found = outcome("i0", True, errors=2, invalid=1).model_copy(update={"malformed": True, "capped": True})
    totals = compared([evaluation([outcome("i0")])], [evaluation([found], arm="grpo", step=64)]).after_totals
    assert (totals.planned, totals.judged, totals.malformed, totals.capped) == (1, 1, 1, 1)
    assert (totals.tool_errors, totals.invalid_calls) == (2, 1)
    assert (totals.tokens_generated, totals.tokens_retained) == (12, 10)


def test_planned_counts_items_times_seeds() -> None:
    assert (compared().before_totals.planned, compared().before_totals.judged) == (12, 12)


def test_arms_are_compared_with_each_other() -> None:
    echo = evaluations({42: "111111", 1729: "111111"}, arm="echo", step=128)
    assert compared(AFTER, echo).name == "echo@128 vs grpo@64, agent"


def test_swapped_sides_give_the_mirrored_difference() -> None:
    one, other = compared(), compared(AFTER, BEFORE)
    assert other.difference == -one.difference
    assert (other.wins, other.losses, other.sign_test_p) == (one.losses, one.wins, one.sign_test_p)


def test_diagnostic_is_marked_as_not_promoted() -> None:
    assert not compared(promoted=False).promoted


def test_all_ties_compare_as_degenerate_zero() -> None:
    found = compared(after=evaluations({42: "110000", 1729: "101000"}, arm="grpo", step=64))
    assert (found.difference, found.interval.low, found.interval.high, found.interval.degenerate) == (0, 0, 0, True)
    assert (found.ties, found.sign_test_p) == (6, 1.0)


DEGENERATE = {
    "only ties": ({1: "1100", 2: "1010"}, {1: "1100", 2: "1010"}, 0.0, (0, 0, 4), 1.0),
    "only wins": ({1: "0000", 2: "0000"}, {1: "1111", 2: "1111"}, 1.0, (4, 0, 0), 0.125),
    "only losses": ({1: "1111", 2: "1111"}, {1: "0000", 2: "0000"}, -1.0, (0, 4, 0), 0.125),
    "one item": ({1: "0"}, {1: "1"}, 1.0, (1, 0, 0), 1.0),
    "one cluster of three seeds": ({1: "0", 2: "0", 3: "1"}, {1: "1", 2: "0", 3: "1"}, 1 / 3, (1, 0, 0), 1.0),
}


@pytest.mark.parametrize("name", DEGENERATE)
def test_data_without_spread_have_a_point_for_an_interval_and_say_so(name: str) -> None:
    before, after, difference, tally, p = DEGENERATE[name]
    found = compared(evaluations(before), evaluations(after, arm="grpo", step=64))
    assert found.difference == difference
    assert found.interval == Interval(low=difference, high=difference, degenerate=True)
    assert (found.wins, found.losses, found.ties) == tally
    assert found.sign_test_p == p
    assert all(family.interval.degenerate for family in found.families)


def test_no_item_at_all_is_refused() -> None:
    empty = [evaluation([])]
    with pytest.raises(JournalError, match="there are no outcomes"):
        compared(empty, AFTER[:1])
    with pytest.raises(JournalError, match="there are no outcomes"):
        compared(BEFORE[:1], [evaluation([], arm="grpo", step=64)])


def retained(before: dict[int, str], after: dict[int, str]) -> bool | None:
    return compared(
        evaluations(before, suite="retention"), evaluations(after, arm="grpo", step=64, suite="retention")
    ).retained


def test_retention_passes_where_all_are_ties() -> None:
    assert retained({1: "110", 2: "100"}, {1: "110", 2: "100"}) is True


def test_retention_passes_where_losses_are_made_up_within_the_seed() -> None:
    assert retained({1: "110", 2: "100"}, {1: "011", 2: "010"}) is True


def test_retention_fails_at_one_seed_even_if_the_overall_rate_rises() -> None:
    assert retained({1: "110", 2: "000"}, {1: "100", 2: "111"}) is False


def test_retention_gate_belongs_to_the_retention_suite() -> None:
    assert compared().retained is None


def test_a_missing_item_refuses_with_its_id() -> None:
    short = [AFTER[0], AFTER[1].model_copy(update={"outcomes": AFTER[1].outcomes[:-1]})]
    with pytest.raises(JournalError, match=r"final agent of grpo@64, seed 1729: item 'i5' is missing"):
        compared(after=short)


def test_an_item_missing_at_one_seed_of_the_first_side_refuses_with_its_id() -> None:
    short = [BEFORE[0], BEFORE[1].model_copy(update={"outcomes": BEFORE[1].outcomes[1:]})]
    with pytest.raises(JournalError, match=r"baseline@0, seed 1729: item 'i0' is missing"):
        compared(before=short)


def test_a_foreign_item_refuses_with_its_id() -> None:
    grown = [AFTER[0], AFTER[1].model_copy(update={"outcomes": (*AFTER[1].outcomes, outcome("x"))})]
    with pytest.raises(JournalError, match=r"item 'x' is foreign"):
        compared(after=grown)


def test_a_doubled_item_refuses_with_its_id() -> None:
    doubled = [BEFORE[0].model_copy(update={"outcomes": (*BEFORE[0].outcomes, outcome("i3"))}), BEFORE[1]]
    with pytest.raises(JournalError, match=r"baseline@0, seed 42: item 'i3' has two outcomes"):
        compared(before=doubled)


def test_a_seed_that_only_one_side_played_refuses() -> None:
    with pytest.raises(JournalError, match="seed 1729 was played by one side only"):
        compared(after=AFTER[:1])


def test_a_seed_played_twice_refuses() -> None:
    with pytest.raises(JournalError, match="seed 42 occurs twice"):
        compared(after=[AFTER[0], AFTER[0]])


def test_two_policies_cannot_form_one_side() -> None:
    mixed = [AFTER[0], AFTER[1].model_copy(update={"key": AFTER[1].key.model_copy(update={"step": 128})})]
    with pytest.raises(JournalError, match="cannot form one side"):
        compared(after=mixed)


def test_two_suites_are_not_compared() -> None:
    other = evaluations({42: "110000", 1729: "111111"}, arm="grpo", step=64, suite="retention")
    with pytest.raises(JournalError, match="not of one suite"):
        compared(after=other)


def test_an_empty_side_refuses() -> None:
    with pytest.raises(JournalError, match="no evaluations of the side 'after'"):
        compared(after=[])


def test_an_item_that_both_sides_lack_is_missed_against_the_plan() -> None:
    planned = [f"i{n}" for n in range(7)]
    check_planned(BEFORE, planned[:6])
    with pytest.raises(JournalError, match=r"item 'i6' is missing \(compared with the plan\)"):
        check_planned(BEFORE, planned)
    with pytest.raises(JournalError, match=r"item 'i5' is foreign"):
        check_planned([evaluation(outcomes("111111"))], planned[:5])


@pytest.mark.parametrize(("wins", "losses"), [(0, 0), (1, 0), (0, 1), (5, 5), (9, 2), (2, 9), (40, 61), (130, 90)])
def test_sign_test_equals_scipys(wins: int, losses: int) -> None:
    expected = stats.binomtest(wins, wins + losses).pvalue if wins + losses else 1.0
    assert sign_test(wins, losses) == pytest.approx(expected, rel=1e-12)


def test_sign_test_of_many_items_stays_a_probability() -> None:
    assert 0.0 <= sign_test(15_000, 5_000) < 1e-300
    assert sign_test(10_000, 10_000) == 1.0
