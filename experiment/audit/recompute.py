"""R3, R5 to R8: the verdicts are decided again with the functions that decided them, and compared bit for bit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations

from experiment.audit.case import Case
from experiment.audit.evidence import EvidenceError, read_trained_records
from experiment.audit.policies import recompute_merge, recompute_samples
from experiment.audit.protocol import BASELINE
from experiment.decisions.assessment import compare
from experiment.decisions.equality import compare_branches
from experiment.decisions.merging import reference_part
from experiment.decisions.selection import DevResult, decide
from experiment.errors import JournalError
from experiment.journal.chain import Entry
from experiment.records.entry import (
    AssessmentMade,
    BranchFinished,
    CheckpointSealed,
    EvaluationFinished,
    PolicyMerged,
    QualificationResult,
    SamplesExported,
    SelectionMade,
    TrainStep,
)
from experiment.records.rollout import TrainedRollout
from experiment.records.verdict import Comparison, ItemOutcome, SelectionVerdict

Suites = dict[str, tuple[ItemOutcome, ...]]
"""Outcomes by suite."""


class _UnusableEvidenceError(Exception):
    """Evidence of a branch is not there, or not what the journal names."""


def recompute_all(case: Case) -> None:
    """Decide everything again that the journal reports as decided."""
    counts = {"qualification": 0, "merge": 0, "selection": 0, "comparison": 0, "samples": 0}
    for entry in case.view.entries:
        body, place = entry.body, f"record {entry.seq} ({entry.type})"
        if isinstance(body, QualificationResult):
            counts["qualification"] += _recompute_qualification(case, body, place)
        elif isinstance(body, PolicyMerged):
            counts["merge"] += recompute_merge(case, body, place)
        elif isinstance(body, SamplesExported):
            counts["samples"] += recompute_samples(case, body, place)
        elif isinstance(body, SelectionMade):
            counts["selection"] += _recompute_selection(case, body.verdict, place)
        elif isinstance(body, AssessmentMade):
            _check_complete(case, body.comparisons, place)
            counts["comparison"] += sum(_recompute_comparison(case, each, place) for each in body.comparisons)
    case.notes.fact("recomputed and equal", ", ".join(f"{number} {name}" for name, number in counts.items()))


def _evaluations(case: Case, stage: str) -> list[EvaluationFinished]:
    return [
        entry.body
        for entry in case.view.entries
        if isinstance(entry.body, EvaluationFinished) and entry.body.key.stage == stage
    ]


def _recompute_selection(case: Case, verdict: SelectionVerdict, place: str) -> bool:
    """R5: the frozen rule, applied to the DEV outcomes again, says the same."""
    results: dict[tuple[str, int], Suites] = {}
    for found in _evaluations(case, "dev"):
        results.setdefault((found.key.arm, found.key.step), {})[found.key.suite] = found.outcomes
    checkpoints = case.plan.recipe.checkpoints
    try:
        again = decide(
            verdict.arm,
            _dev_result(results, "baseline", 0),
            [_dev_result(results, verdict.arm, step) for step in checkpoints.candidates],
            checkpoints.diagnostic,
        )
    except JournalError as error:
        case.notes.find("R-SELECT", place, f"cannot be decided again: {error}")
        return False
    return case.notes.require(
        again == verdict,
        "R-SELECT",
        place,
        f"selected {verdict.selected_step}, assessed {verdict.assessed_step}; decided again: {again.selected_step}, "
        f"{again.assessed_step}",
    )


def _dev_result(
    results: Mapping[tuple[str, int], Mapping[str, tuple[ItemOutcome, ...]]], arm: str, step: int
) -> DevResult:
    suites = results.get((arm, step), {})
    return DevResult(step=step, agent=suites.get("agent", ()), retention=suites.get("retention", ()))


def _recompute_comparison(case: Case, recorded: Comparison, place: str) -> bool:
    """R6: every number of a comparison, its bootstrap interval included, follows from the final outcomes."""
    recipe = case.plan.recipe
    sides: dict[tuple[str, int], list[EvaluationFinished]] = {}
    for found in _evaluations(case, "final"):
        if found.key.suite == recorded.suite:
            sides.setdefault((found.key.arm, found.key.step), []).append(found)
    try:
        again = compare(
            sides.get((recorded.before_arm, recorded.before_step), []),
            sides.get((recorded.after_arm, recorded.after_step), []),
            root_seed=recipe.seed,
            resamples=recipe.assessment.resamples,
            confidence=recipe.assessment.confidence,
            promoted=_is_promoted(case, recorded),
        )
    except JournalError as error:
        case.notes.find("R-COMPARE", f"{place}, {recorded.name}", f"cannot be compared again: {error}")
        return False
    differing = [name for name in Comparison.model_fields if getattr(again, name) != getattr(recorded, name)]
    return case.notes.require(
        not differing,
        "R-COMPARE",
        f"{place}, {recorded.name}",
        "; ".join(f"`{name}` is {getattr(recorded, name)!r}, not {getattr(again, name)!r}" for name in differing),
    )


def _selections(case: Case) -> list[SelectionVerdict]:
    return [entry.body.verdict for entry in case.view.entries if isinstance(entry.body, SelectionMade)]


def _is_promoted(case: Case, recorded: Comparison) -> bool:
    """Whether every trained policy of a comparison was selected on DEV, and not only assessed for diagnosis."""
    selected = {verdict.arm: verdict.selected_step for verdict in _selections(case)}
    sides = ((recorded.before_arm, recorded.before_step), (recorded.after_arm, recorded.after_step))
    return all(selected.get(arm) == step for arm, step in sides if (arm, step) != BASELINE)


def _check_complete(case: Case, comparisons: Sequence[Comparison], place: str) -> None:
    """P9: each arm against the baseline on both suites, each pair of arms on the agent suite, and nothing else."""
    policies = [(verdict.arm, verdict.assessed_step) for verdict in _selections(case)]
    planned = {(BASELINE, policy, suite) for policy in policies for suite in ("agent", "retention")}
    planned |= {(one, other, "agent") for one, other in combinations(policies, 2)}
    found = Counter(
        ((each.before_arm, each.before_step), (each.after_arm, each.after_step), each.suite) for each in comparisons
    )
    for before, after, suite in sorted(planned ^ set(found)):
        case.notes.find("P-COMPARE", place, f"{after} vs {before}, {suite}: is not both planned and made")
    doubled = [key for key, number in found.items() if number > 1]
    case.notes.require(not doubled, "P-COMPARE", place, f"makes comparisons twice: {doubled}")


def _recompute_qualification(case: Case, body: QualificationResult, place: str) -> bool:
    """R3: the branches, compared again, are as equal as the verdict says."""
    entries = [
        entry for entry in case.view.entries if isinstance(entry.body, BranchFinished) and entry.body.arm == body.arm
    ]
    branches = {entry.body.branch: entry.body for entry in entries if isinstance(entry.body, BranchFinished)}
    try:
        evidence = {branch: rollouts for entry in entries for branch, rollouts in _branch_evidence(case, entry)}
        again = compare_branches(
            branches["straight"],
            [branches["repeated"], branches["resumed"]],
            evidence,
            {name: dict(branch.state) for name, branch in branches.items()},
        )
    except _UnusableEvidenceError:
        return False  # that it is missing or changed has been found already, and says nothing about the verdict
    except (JournalError, EvidenceError, KeyError, OSError) as error:
        case.notes.find("R-QUALIFY", place, f"cannot be judged again: {error}")
        return False
    _check_prefix(case, branches["straight"], place)
    return case.notes.require(
        again == body.verdict,
        "R-QUALIFY",
        place,
        f"passed is {body.verdict.passed} with {len(body.verdict.divergences)} divergences; judged again: "
        f"{again.passed} with {len(again.divergences)}",
    )


def _check_prefix(case: Case, straight: BranchFinished, place: str) -> None:
    """R3: training began with the very steps that were qualified, and never left the base weights they ran on."""
    qualified = {facts.step: facts for facts in straight.steps}
    for entry in case.view.entries:
        if isinstance(entry.body, TrainStep) and entry.body.arm == straight.arm:
            facts = entry.body.facts
            case.notes.require(
                qualified.get(facts.step, facts) == facts,
                "R-PREFIX",
                place,
                f"step {facts.step} of '{straight.arm}' is not the step that was qualified",
            )
        elif isinstance(entry.body, CheckpointSealed) and entry.body.arm == straight.arm:
            case.notes.require(
                reference_part(straight.reference) in entry.body.state,
                "R-PREFIX",
                place,
                f"{straight.arm}@{entry.body.step} was sealed on other base weights than those that qualified",
            )


def _branch_evidence(case: Case, entry: Entry) -> list[tuple[str, list[list[TrainedRollout]]]]:
    if not isinstance(entry.body, BranchFinished):
        return []
    steps = []
    for facts in entry.body.steps:
        path = case.evidence(entry, facts.evidence)
        if path is None:
            raise _UnusableEvidenceError
        steps.append(read_trained_records(path))
    return [(entry.body.branch, steps)]
