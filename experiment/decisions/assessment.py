"""The final comparison of two policies on one suite, paired by item and generation seed.

Used for baseline against candidate and for arm against arm. Every count is a whole number until one last division,
so `run` and `audit` obtain the same bits. What was not judged leaves nothing out of a denominator: an evaluation
that lacks an item is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from experiment.decisions.bootstrap import exact_interval
from experiment.decisions.pairing import check_item_ids, check_same_items, outcomes_by_item
from experiment.errors import JournalError
from experiment.records.verdict import Comparison, FamilyComparison, SideTotals
from experiment.sealing.seeds import derive_seed

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from experiment.records.entry import EvaluationFinished
    from experiment.records.verdict import EvaluationKey, Interval, ItemOutcome

_PURPOSE = "bootstrap"


@dataclass(frozen=True, slots=True)
class _Side:
    """One policy's evaluations of one suite."""

    key: EvaluationKey
    """Key of the evaluation with the smallest seed."""
    cells: dict[int, dict[str, ItemOutcome]]
    """Outcome by generation seed, ascending, and item id."""

    @property
    def label(self) -> str:
        """How the side is called in a comparison's name."""
        return self.key.arm if self.key.step == 0 else f"{self.key.arm}@{self.key.step}"


@dataclass(frozen=True, slots=True)
class _Paired:
    """Both sides' successes as whole numbers, shape (items, seeds), rows sorted by item id."""

    families: tuple[str, ...]
    """Family of each row."""
    before_IS: NDArray[np.int64]
    after_IS: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Stream:
    """The named random stream of a comparison and the shape of its intervals."""

    root_seed: int
    name: str
    resamples: int
    confidence: float

    def interval(self, numerators: NDArray[np.int64], seeds: int, *family: str) -> Interval:
        """Return the interval of the mean difference over the given items."""
        return exact_interval(
            numerators,
            denominator=seeds,
            resamples=self.resamples,
            confidence=self.confidence,
            seed=derive_seed(self.root_seed, _PURPOSE, self.name, *family),
        )


def compare(
    before: Sequence[EvaluationFinished],
    after: Sequence[EvaluationFinished],
    *,
    root_seed: int,
    resamples: int,
    confidence: float,
    promoted: bool,
) -> Comparison:
    """Return how `after` did against `before` on one suite, overall, by seed and by family.

    Args:
        before: The evaluations of one policy on one suite, one per generation seed, in any order.
        after: The same for the other policy.
        root_seed: The plan's root seed; each interval draws from its own stream, named after the comparison.
        resamples: Bootstrap resamples, items being the clusters.
        confidence: Share of the resampled differences inside an interval.
        promoted: Whether `after` was selected; False for a diagnostic assessment.

    Raises:
        JournalError: The sides do not hold the same items at the same seeds, or an item is doubled; its id is named.
    """
    left, right = _collect(before, "before"), _collect(after, "after")
    _check_pairs(left, right)
    paired = _pair(left, right)
    name = f"{right.label} vs {left.label}, {right.key.suite}"
    stream = _Stream(root_seed=root_seed, name=name, resamples=resamples, confidence=confidence)
    difference_IS = paired.after_IS - paired.before_IS
    items, seeds = difference_IS.shape
    by_seed = [int(column) for column in difference_IS.sum(axis=0)]
    cells = items * seeds
    return Comparison(
        name=name,
        suite=right.key.suite,
        **_policies(left.key, right.key),
        promoted=promoted,
        items=items,
        seeds=tuple(left.cells),
        before=int(paired.before_IS.sum()) / cells,
        after=int(paired.after_IS.sum()) / cells,
        difference=sum(by_seed) / cells,
        interval=stream.interval(difference_IS.sum(axis=1), seeds),
        **_tally(difference_IS),
        by_seed=tuple((seed, lost_or_won / items) for seed, lost_or_won in zip(left.cells, by_seed, strict=True)),
        families=_compare_families(paired, stream),
        before_totals=_totals(left, planned=cells),
        after_totals=_totals(right, planned=cells),
        retained=_is_retained(by_seed) if right.key.suite == "retention" else None,
    )


def _policies(before: EvaluationKey, after: EvaluationKey) -> dict[str, Any]:
    """The fields that name the two policies."""
    return {
        "before_arm": before.arm,
        "before_step": before.step,
        "after_arm": after.arm,
        "after_step": after.step,
    }


def _tally(difference_IS: NDArray[np.int64]) -> dict[str, Any]:
    """Items won, lost and tied, by their sum over seeds, and the sign test of these counts."""
    sums = difference_IS.sum(axis=1)
    wins, losses = int((sums > 0).sum()), int((sums < 0).sum())
    ties = len(sums) - wins - losses
    return {"wins": wins, "losses": losses, "ties": ties, "sign_test_p": sign_test(wins, losses)}


def check_planned(evaluations: Iterable[EvaluationFinished], planned: Sequence[str]) -> None:
    """Return only where every evaluation judged exactly the planned items, so that none left the denominator.

    Raises:
        JournalError: An item is missing, doubled or foreign; its id is named.
    """
    for evaluation in evaluations:
        where = _name(evaluation.key)
        found = outcomes_by_item(evaluation.outcomes, where=where)
        check_item_ids(planned, found, where=where, against="the plan")


def sign_test(wins: int, losses: int) -> float:
    """Return the two-sided probability of a split at least this uneven if wins and losses were equally likely.

    Ties do not enter; without a win or a loss the value is 1. The sum is exact and rounded once.

    Source:
        Conover 1999, Practical Nonparametric Statistics, section 3.4.
    """
    trials = wins + losses
    tail, ways = 0, 1
    for successes in range(min(wins, losses) + 1):
        tail += ways
        ways = ways * (trials - successes) // (successes + 1)
    return min(1.0, 2 * tail / (1 << trials))


def _collect(evaluations: Sequence[EvaluationFinished], role: str) -> _Side:
    """Return one side, after checking that all its evaluations are of one policy, suite and stage."""
    if not evaluations:
        msg = f"comparison: there are no evaluations of the side '{role}'"
        raise JournalError(msg)
    cells: dict[int, dict[str, ItemOutcome]] = {}
    ordered = sorted(evaluations, key=lambda evaluation: evaluation.key.seed)
    first = ordered[0].key
    for evaluation in ordered:
        key = evaluation.key
        if key.model_copy(update={"seed": first.seed}) != first:
            msg = f"comparison: {_name(key)} and {_name(first)} cannot form one side"
            raise JournalError(msg)
        if key.seed in cells:
            msg = f"comparison: {_name(key)} occurs twice"
            raise JournalError(msg)
        cells[key.seed] = outcomes_by_item(evaluation.outcomes, where=_name(key))
    return _Side(key=first, cells=cells)


def _check_pairs(left: _Side, right: _Side) -> None:
    """Return only where both sides hold the same items at the same seeds of the same suite and stage."""
    if (left.key.suite, left.key.stage) != (right.key.suite, right.key.stage):
        msg = f"comparison: {_name(left.key)} and {_name(right.key)} are not of one suite and stage"
        raise JournalError(msg)
    unpaired = set(left.cells) ^ set(right.cells)
    if unpaired:
        msg = f"comparison of {right.label} with {left.label}: seed {min(unpaired)} was played by one side only"
        raise JournalError(msg)
    expected = left.cells[left.key.seed]
    for side in (left, right):
        for seed, found in side.cells.items():
            where = _name(side.key.model_copy(update={"seed": seed}))
            check_same_items(expected, found, where=where, against=_name(left.key))


def _pair(left: _Side, right: _Side) -> _Paired:
    items = sorted(left.cells[left.key.seed])

    def successes(side: _Side) -> NDArray[np.int64]:
        return np.array([[cell[item].success for cell in side.cells.values()] for item in items], dtype=np.int64)

    families = tuple(left.cells[left.key.seed][item].family for item in items)
    return _Paired(families=families, before_IS=successes(left), after_IS=successes(right))


def _compare_families(paired: _Paired, stream: _Stream) -> tuple[FamilyComparison, ...]:
    comparisons = []
    for family in sorted(set(paired.families)):
        rows = np.array([name == family for name in paired.families])
        before_IS, after_IS = paired.before_IS[rows], paired.after_IS[rows]
        items, seeds = before_IS.shape
        won, lost = int(after_IS.sum()), int(before_IS.sum())
        comparisons.append(
            FamilyComparison(
                family=family,
                items=items,
                before=lost / (items * seeds),
                after=won / (items * seeds),
                difference=(won - lost) / (items * seeds),
                interval=stream.interval((after_IS - before_IS).sum(axis=1), seeds, family),
            )
        )
    return tuple(comparisons)


def _totals(side: _Side, *, planned: int) -> SideTotals:
    outcomes = [outcome for cell in side.cells.values() for outcome in cell.values()]
    return SideTotals(
        planned=planned,
        judged=len(outcomes),
        malformed=sum(outcome.malformed for outcome in outcomes),
        tool_errors=sum(outcome.tool_errors for outcome in outcomes),
        invalid_calls=sum(outcome.invalid_calls for outcome in outcomes),
        capped=sum(outcome.capped for outcome in outcomes),
        tokens_generated=sum(outcome.tokens_generated for outcome in outcomes),
        tokens_retained=sum(outcome.tokens_retained for outcome in outcomes),
    )


def _is_retained(by_seed: Sequence[int]) -> bool:
    """Return whether no loss was observed overall and at every seed; only ties is a pass by this rule."""
    return sum(by_seed) >= 0 and all(difference >= 0 for difference in by_seed)


def _name(key: EvaluationKey) -> str:
    return f"{key.stage} {key.suite} of {key.arm}@{key.step}, seed {key.seed}"
