"""The frozen selection rule: which checkpoint of an arm, if any, may take the baseline's place.

A candidate is eligible where it solves strictly more DEV episodes than the baseline and answers at least as many
retention questions. Eligible candidates rank by strict successes, then fewer tool errors, then earlier step.
Only DEV outcomes enter; the order in which anything is given never matters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from experiment.decisions.pairing import check_same_items, outcomes_by_item
from experiment.errors import JournalError
from experiment.records.verdict import CandidateScore, SelectionVerdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from experiment.records.verdict import ItemOutcome

BASELINE_REASON = "it is the baseline itself"


@dataclass(frozen=True, slots=True)
class DevResult:
    """What one policy did on both DEV suites."""

    step: int
    """0 for the baseline."""
    agent: tuple[ItemOutcome, ...]
    retention: tuple[ItemOutcome, ...]


def decide(arm: str, baseline: DevResult, candidates: Sequence[DevResult], diagnostic: int) -> SelectionVerdict:
    """Return the frozen rule's verdict on an arm, after checking that all judged the same items.

    Args:
        arm: Name of the arm.
        baseline: The starting policy's result, step 0.
        candidates: The results of the checkpoints that may be selected, in any order.
        diagnostic: Step that is assessed, and never promoted, where no candidate is eligible.

    Raises:
        JournalError: An item is missing, doubled or foreign in a candidate, or a step occurs twice.
    """
    for candidate in candidates:
        for suite in ("agent", "retention"):
            where, against = f"step {candidate.step}, {suite}", f"the baseline, {suite}"
            expected = outcomes_by_item(getattr(baseline, suite), where=against)
            found = outcomes_by_item(getattr(candidate, suite), where=where)
            check_same_items(expected, found, where=where, against=against)
    reference = score_candidate(baseline.step, baseline.agent, baseline.retention, None)
    scores = [score_candidate(found.step, found.agent, found.retention, reference) for found in candidates]
    return select(arm, reference, scores, diagnostic)


def score_candidate(
    step: int,
    agent: Sequence[ItemOutcome],
    retention: Sequence[ItemOutcome],
    baseline: CandidateScore | None,
) -> CandidateScore:
    """Return a checkpoint's DEV score and whether it is eligible.

    Args:
        step: Optimizer step of the checkpoint; 0 for the baseline.
        agent: Outcomes on the agent suite.
        retention: Outcomes on the retention suite.
        baseline: The baseline's score; None while scoring the baseline itself, which is never eligible.

    Raises:
        JournalError: An item is doubled, a suite is empty, or the suites are not as large as the baseline's.
    """
    agent_items = outcomes_by_item(agent, where=f"step {step}, agent")
    retention_items = outcomes_by_item(retention, where=f"step {step}, retention")
    measured = CandidateScore(
        step=step,
        successes=sum(outcome.success for outcome in agent_items.values()),
        items=len(agent_items),
        tool_errors=sum(outcome.tool_errors + outcome.invalid_calls for outcome in agent_items.values()),
        retained=sum(outcome.success for outcome in retention_items.values()),
        retention_items=len(retention_items),
        eligible=False,
        reasons=(BASELINE_REASON,),
    )
    if baseline is None:
        return measured
    reasons = _reasons_against(measured, baseline)
    return measured.model_copy(update={"eligible": not reasons, "reasons": reasons})


def select(
    arm: str, baseline: CandidateScore, candidates: Sequence[CandidateScore], diagnostic: int
) -> SelectionVerdict:
    """Return which step the frozen rule selects, and which is assessed.

    Where no candidate is eligible, the baseline is retained: `selected_step` is None and the diagnostic step is
    assessed.

    Args:
        arm: Name of the arm.
        baseline: The baseline's score.
        candidates: Scores against this baseline, in any order.
        diagnostic: Step that is assessed, and never promoted, where no candidate is eligible.

    Raises:
        JournalError: A step occurs twice, a suite's size differs, or a score's eligibility does not follow from its
            numbers.
    """
    seen: set[int] = set()
    for candidate in candidates:
        if candidate.step in seen or candidate.step == baseline.step:
            msg = f"arm '{arm}': step {candidate.step} is scored twice"
            raise JournalError(msg)
        seen.add(candidate.step)
        reasons = _reasons_against(candidate, baseline)
        if candidate.reasons != reasons or candidate.eligible == bool(reasons):
            msg = f"arm '{arm}': eligibility of step {candidate.step} does not follow from its numbers"
            raise JournalError(msg)
    ranked = sorted(candidates, key=_rank)
    selected = ranked[0].step if ranked and ranked[0].eligible else None
    return SelectionVerdict(
        arm=arm,
        baseline=baseline,
        candidates=tuple(ranked),
        selected_step=selected,
        assessed_step=diagnostic if selected is None else selected,
    )


def _rank(score: CandidateScore) -> tuple[bool, int, int, int]:
    return (not score.eligible, -score.successes, score.tool_errors, score.step)


def _reasons_against(candidate: CandidateScore, baseline: CandidateScore) -> tuple[str, ...]:
    """Return why a candidate is not eligible; empty where it is."""
    for found, expected, suite in (
        (candidate.items, baseline.items, "agent"),
        (candidate.retention_items, baseline.retention_items, "retention"),
    ):
        if found != expected:
            msg = f"step {candidate.step}, {suite}: {found} items were judged, but {expected} for the baseline"
            raise JournalError(msg)
    reasons = []
    if candidate.successes <= baseline.successes:
        reasons.append(f"strict successes {candidate.successes} do not exceed the baseline's {baseline.successes}")
    if candidate.retained < baseline.retained:
        reasons.append(f"retention {candidate.retained} is below the baseline's {baseline.retained}")
    return tuple(reasons)
