"""Whether the branches of a qualification are equal bit for bit, and if not, where they first part.

Compared for each branch, in this order: the reference policy; each step's rollout evidence, learning rate, loss,
gradient norm and metrics; the state at the last step, part by part and tensor by tensor. The order is that of cause
and effect, so the first divergence is the one to explain.
"""

from __future__ import annotations

from itertools import chain, zip_longest
from typing import TYPE_CHECKING, TypeVar

from experiment.decisions.evidence_walk import ABSENT, Check, walk_step
from experiment.errors import JournalError
from experiment.records.entry import StepFacts
from experiment.records.verdict import Divergence, EqualityVerdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from experiment.records.entry import BranchFinished
    from experiment.records.rollout import TrainedRollout

_Value = TypeVar("_Value")

_APART = ("evidence", "metrics")
"""Fields of the step facts that are compared more finely than by value."""


def compare_branches(
    straight: BranchFinished,
    others: Sequence[BranchFinished],
    evidence: Mapping[str, Sequence[Sequence[TrainedRollout]]],
    states: Mapping[str, Mapping[str, str]],
) -> EqualityVerdict:
    """Return the verdict on some branches, with the first divergence of each that differs.

    Args:
        straight: The uninterrupted branch.
        others: The branches that have to equal it.
        evidence: By branch: for each step its rollouts, ordered by (episode position, rollout).
        states: By branch: digest of each tensor or value of the last state, keyed `part/owner/name` or `part/name`.

    Raises:
        JournalError: There is nothing to compare, or a branch lacks its evidence or state.
    """
    _check_given(straight, others, evidence, states)
    compared, divergences = 0, []
    for other in others:
        checks = chain(
            (Check("reference policy", straight.reference, other.reference),),
            _walk_steps(straight.steps, other.steps, evidence[straight.branch], evidence[other.branch]),
            _walk_state(straight, other, states[straight.branch], states[other.branch]),
        )
        for check in checks:
            compared += 1
            if check.expected != check.found:
                divergences.append(
                    Divergence(branch=other.branch, place=check.place, expected=check.expected, found=check.found)
                )
                break
    return EqualityVerdict(passed=not divergences, compared=compared, divergences=tuple(divergences))


def _check_given(
    straight: BranchFinished,
    others: Sequence[BranchFinished],
    evidence: Mapping[str, object],
    states: Mapping[str, Mapping[str, str]],
) -> None:
    """Return only where a passed verdict would mean something."""
    branches = [straight, *others]
    names = [branch.branch for branch in branches]
    where = f"qualification of arm '{straight.arm}'"
    for problem, is_there in (
        ("there is no second branch", not others),
        (f"branches {names} are not distinct", len(set(names)) < len(names)),
        ("a branch belongs to another arm", len({branch.arm for branch in branches}) > 1),
        ("the straight branch has no steps", not straight.steps),
    ):
        if is_there:
            msg = f"{where}: {problem}, so nothing can be compared"
            raise JournalError(msg)
    for name in names:
        if name not in evidence or not states.get(name):
            msg = f"{where}: branch '{name}' lacks its evidence or its state"
            raise JournalError(msg)


def _walk_steps(
    expected: Sequence[StepFacts],
    found: Sequence[StepFacts],
    expected_evidence: Sequence[Sequence[TrainedRollout]],
    found_evidence: Sequence[Sequence[TrainedRollout]],
) -> Iterator[Check]:
    """Yield the checks of all steps; a missing, extra or repeated step ends them."""
    rows = zip_longest(expected, found, expected_evidence, found_evidence)
    for position, (left, right, left_rollouts, right_rollouts) in enumerate(rows, start=1):
        numbers = [ABSENT if facts is None else f"step {facts.step}" for facts in (left, right)]
        place = f"step {left.step if left else position}"
        yield Check(place, *numbers)
        sealed = [ABSENT if rollouts is None else "present" for rollouts in (left_rollouts, right_rollouts)]
        yield Check(f"{place}, evidence", *sealed)
        if left is None or right is None or left_rollouts is None or right_rollouts is None:
            msg = f"qualification: position {position} has evidence without a step, or a step without evidence"
            raise JournalError(msg)
        yield from walk_step(place, left_rollouts, right_rollouts)
        yield Check(f"{place}, evidence", left.evidence, right.evidence)
        yield from _walk_facts(place, left, right)


def _walk_facts(place: str, left: StepFacts, right: StepFacts) -> Iterator[Check]:
    """Yield the checks of one step's numbers; `repr` keeps every bit of a finite float."""
    for name in StepFacts.model_fields:
        if name not in _APART:
            yield Check(f"{place}, {name}", repr(getattr(left, name)), repr(getattr(right, name)))
    metrics = [_by_name(facts.metrics, where=place) for facts in (left, right)]
    for name in sorted(metrics[0].keys() | metrics[1].keys()):
        values = [repr(side[name]) if name in side else ABSENT for side in metrics]
        yield Check(f"{place}, metric {name}", *values)


def _walk_state(
    straight: BranchFinished, other: BranchFinished, expected: Mapping[str, str], found: Mapping[str, str]
) -> Iterator[Check]:
    """Yield the checks of the last state: for each part its tensors, then its digest."""
    left, right = (_by_name(branch.state, where=f"branch '{branch.branch}'") for branch in (straight, other))
    tensors = sorted(expected.keys() | found.keys())
    for part in sorted(left.keys() | right.keys() | {key.partition("/")[0] for key in tensors}):
        for key in tensors:
            if key.partition("/")[0] == part:
                yield Check(_tensor_place(key), expected.get(key, ABSENT), found.get(key, ABSENT))
        yield Check(part, left.get(part, ABSENT), right.get(part, ABSENT))


def _tensor_place(key: str) -> str:
    """Return `optimizer/model.weight/exp_avg` as `optimizer: exp_avg of model.weight`."""
    part, _, rest = key.partition("/")
    owner, _, name = rest.rpartition("/")
    if owner:
        return f"{part}: {name} of {owner}"
    return f"{part}: {name}" if name else part


def _by_name(pairs: Iterable[tuple[str, _Value]], *, where: str) -> dict[str, _Value]:
    """Return named values as a mapping.

    Raises:
        JournalError: A name occurs twice.
    """
    named: dict[str, _Value] = {}
    for name, value in pairs:
        if name in named:
            msg = f"{where}: '{name}' occurs twice"
            raise JournalError(msg)
        named[name] = value
    return named
