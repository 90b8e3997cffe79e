from __future__ import annotations

from itertools import permutations

import pytest

from experiment.decisions.selection import DevResult, decide, score_candidate, select
from experiment.errors import JournalError
from experiment.records.verdict import CandidateScore, SelectionVerdict
from tests.unit.decisions.outcomes import outcome, outcomes

BASELINE = DevResult(0, outcomes("1100"), outcomes("110"))


def result(step: int, agent: str = "1110", retention: str = "110", errors: int = 0) -> DevResult:
    return DevResult(step, outcomes(agent, errors=errors), outcomes(retention))


def verdict(*candidates: DevResult, diagnostic: int = 256) -> SelectionVerdict:
    return decide("grpo", BASELINE, candidates, diagnostic)


def test_more_strict_successes_with_equal_retention_is_selected() -> None:
    found = verdict(result(64))
    assert (found.selected_step, found.assessed_step) == (64, 64)
    assert found.candidates[0].eligible
    assert found.candidates[0].reasons == ()


def test_equal_strict_successes_are_not_an_improvement() -> None:
    found = verdict(result(64, agent="0011"))
    assert found.selected_step is None
    assert found.candidates[0].reasons == ("strict successes 2 do not exceed the baseline's 2",)


def test_one_lost_retention_answer_makes_a_candidate_ineligible() -> None:
    found = verdict(result(64, agent="1111", retention="100"))
    assert found.selected_step is None
    assert found.candidates[0].reasons == ("retention 1 is below the baseline's 2",)


def test_retention_counts_correct_answers_not_which_ones() -> None:
    assert verdict(result(64, retention="011")).selected_step == 64


def test_both_reasons_are_given() -> None:
    assert len(verdict(result(64, agent="1000", retention="000")).candidates[0].reasons) == 2


def test_without_an_eligible_candidate_the_diagnostic_step_is_assessed_but_not_selected() -> None:
    found = verdict(result(64, agent="1000"), result(256, agent="1100"))
    assert (found.selected_step, found.assessed_step) == (None, 256)


def test_without_any_candidate_the_baseline_is_retained() -> None:
    found = verdict()
    assert (found.selected_step, found.assessed_step, found.candidates) == (None, 256, ())


def test_equal_candidates_rank_by_earlier_step_in_every_order() -> None:
    for order in permutations([result(64), result(128), result(256)]):
        found = verdict(*order)
        assert [score.step for score in found.candidates] == [64, 128, 256]
        assert found.selected_step == 64


def test_equal_successes_rank_by_fewer_tool_errors_in_every_order() -> None:
    for order in permutations([result(64, errors=3), result(128, errors=1), result(256, errors=2)]):
        assert [score.step for score in verdict(*order).candidates] == [128, 256, 64]


def test_more_successes_outrank_fewer_tool_errors() -> None:
    assert verdict(result(64), result(128, agent="1111", errors=9)).selected_step == 128


def test_ineligible_candidates_rank_after_all_eligible_ones() -> None:
    found = verdict(result(64, agent="1111", retention="000"), result(128))
    assert [score.step for score in found.candidates] == [128, 64]


def test_world_errors_and_invalid_calls_count_alike_and_only_in_the_agent_suite() -> None:
    agent = (outcome("a", True, errors=2, invalid=3), outcome("b"))
    assert score_candidate(64, agent, (outcome("m", errors=7),), None).tool_errors == 5


def test_the_baseline_itself_is_never_eligible() -> None:
    assert not score_candidate(0, BASELINE.agent, BASELINE.retention, None).eligible


def test_the_order_of_items_does_not_matter() -> None:
    shuffled = DevResult(64, outcomes("1110")[::-1], outcomes("110")[::-1])
    assert verdict(shuffled) == verdict(result(64))


@pytest.mark.parametrize("suite", ["agent", "retention"])
def test_a_missing_item_refuses_with_its_id(suite: str) -> None:
    parts = {"agent": outcomes("1110"), "retention": outcomes("110")}
    parts[suite] = tuple(found for found in parts[suite] if found.item != "i1")
    with pytest.raises(JournalError, match=f"step 64, {suite}: item 'i1' is missing"):
        verdict(DevResult(64, **parts))


def test_a_foreign_item_refuses_with_its_id() -> None:
    agent = (*outcomes("111"), outcome("x9", True))
    with pytest.raises(JournalError, match=r"item 'i3' is missing"):
        verdict(DevResult(64, agent, outcomes("110")))
    with pytest.raises(JournalError, match=r"item 'x9' is foreign"):
        verdict(DevResult(64, (*outcomes("1110"), outcome("x9", True)), outcomes("110")))


def test_a_doubled_item_refuses_with_its_id() -> None:
    with pytest.raises(JournalError, match=r"step 64, agent: item 'i2' has two outcomes"):
        verdict(DevResult(64, (*outcomes("1110"), outcome("i2", True)), outcomes("110")))


def test_a_doubled_item_of_the_baseline_refuses_with_its_id() -> None:
    doubled = DevResult(0, (*outcomes("1100"), outcome("i0", True)), outcomes("110"))
    with pytest.raises(JournalError, match=r"baseline, agent: item 'i0' has two outcomes"):
        decide("grpo", doubled, [result(64)], 256)


def test_an_item_of_another_family_refuses() -> None:
    agent = (outcome("i0", True, family="other"), *outcomes("1110")[1:])
    with pytest.raises(JournalError, match=r"item 'i0' is of family 'other'"):
        verdict(DevResult(64, agent, outcomes("110")))


def test_an_empty_suite_refuses() -> None:
    with pytest.raises(JournalError, match="there are no outcomes"):
        score_candidate(0, (), outcomes("1"), None)


def test_a_step_scored_twice_refuses() -> None:
    with pytest.raises(JournalError, match="step 64 is scored twice"):
        verdict(result(64), result(64, agent="1111"))


def scores() -> tuple[CandidateScore, CandidateScore]:
    baseline = score_candidate(0, BASELINE.agent, BASELINE.retention, None)
    return baseline, score_candidate(64, outcomes("1100"), outcomes("110"), baseline)


def test_a_score_that_claims_to_be_eligible_against_its_numbers_refuses() -> None:
    baseline, candidate = scores()
    claimed = candidate.model_copy(update={"eligible": True, "reasons": ()})
    with pytest.raises(JournalError, match="eligibility of step 64 does not follow"):
        select("grpo", baseline, [claimed], 256)


def test_a_score_over_fewer_items_than_the_baseline_refuses() -> None:
    baseline, candidate = scores()
    with pytest.raises(JournalError, match="step 64, agent: 3 items were judged, but 4"):
        select("grpo", baseline, [candidate.model_copy(update={"items": 3})], 256)
