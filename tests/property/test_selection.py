from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from experiment.decisions.selection import DevResult, decide
from experiment.records.verdict import ItemOutcome
from tests.unit.decisions.outcomes import outcome

QUICK = settings(max_examples=40)
ITEMS = 5


def suite(bits: int) -> tuple[ItemOutcome, ...]:
    """Five items; three bits each: one for success, two for the number of tool errors."""
    fields = [bits >> (3 * n) for n in range(ITEMS)]
    return tuple(outcome(f"i{n}", bool(field & 1), errors=(field >> 1) & 3) for n, field in enumerate(fields))


def results(step: int) -> st.SearchStrategy[DevResult]:
    bits = st.integers(0, 8**ITEMS - 1)
    return st.tuples(bits, bits).map(lambda both: DevResult(step, suite(both[0]), suite(both[1])))


ARMS = st.tuples(results(0), st.tuples(results(64), results(128), results(256)))


def solved(found: tuple[ItemOutcome, ...]) -> int:
    return sum(each.success for each in found)


@QUICK
@given(ARMS, st.data())
def test_verdict_does_not_depend_on_any_order(arm, data) -> None:
    baseline, candidates = arm
    shuffled = [
        DevResult(each.step, tuple(data.draw(st.permutations(each.agent))), each.retention)
        for each in data.draw(st.permutations(candidates))
    ]
    assert decide("grpo", baseline, shuffled, 256) == decide("grpo", baseline, candidates, 256)


@QUICK
@given(ARMS)
def test_selected_candidate_beats_the_baseline_and_no_eligible_one_beats_it(arm) -> None:
    baseline, candidates = arm
    found = decide("grpo", baseline, candidates, 256)
    eligible = [
        each
        for each in candidates
        if solved(each.agent) > solved(baseline.agent) and solved(each.retention) >= solved(baseline.retention)
    ]
    if not eligible:
        assert (found.selected_step, found.assessed_step) == (None, 256)
        return
    best = min(eligible, key=lambda each: (-solved(each.agent), sum(o.tool_errors for o in each.agent), each.step))
    assert (found.selected_step, found.assessed_step) == (best.step, best.step)


@QUICK
@given(ARMS)
def test_every_candidate_is_listed_once_eligible_ones_first(arm) -> None:
    baseline, candidates = arm
    scores = decide("grpo", baseline, candidates, 256).candidates
    assert sorted(score.step for score in scores) == [64, 128, 256]
    assert [score.eligible for score in scores] == sorted((score.eligible for score in scores), reverse=True)
    assert all(score.eligible != bool(score.reasons) for score in scores)


@QUICK
@given(ARMS)
def test_an_irrelevant_candidate_does_not_change_who_wins_among_the_others(arm) -> None:
    baseline, candidates = arm
    whole = decide("grpo", baseline, candidates, 256)
    without_loser = [each for each in candidates if each.step in {whole.selected_step, whole.candidates[0].step}]
    assert decide("grpo", baseline, without_loser, 256).selected_step == whole.selected_step
