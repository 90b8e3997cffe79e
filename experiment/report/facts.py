"""What a report is made of: a run's plan and journal, folded once, and totals of its training evidence."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from experiment.errors import PlanError
from experiment.journal.chain import Entry
from experiment.journal.inspections import read_inspections
from experiment.journal.reader import JournalView, read_journal
from experiment.records.base import Record
from experiment.records.entry import (
    AssessmentMade,
    BranchFinished,
    EvaluationFinished,
    PolicyMerged,
    QualificationResult,
    SelectionMade,
    TrainStep,
    Warned,
)
from experiment.records.inspection import Inspection
from experiment.records.plan import Plan
from experiment.records.rollout import TrainedRollout
from experiment.records.verdict import Comparison, SelectionVerdict
from experiment.sealing.canonical import decode_record
from experiment.sealing.digests import CONTEXT_PLAN, derive

T = TypeVar("T", bound=Record)
BASELINE = "baseline"


@dataclass(frozen=True, slots=True)
class FamilyStep:
    """What one family's rollouts of one step did."""

    step: int
    success: float
    """Share of rollouts with strict success."""
    reward: float | None
    """Mean reward; None where the evidence is not at hand."""
    all_fail: float
    """Share of groups without any success."""
    all_pass: float
    """Share of groups with nothing but success."""


@dataclass(frozen=True, slots=True)
class TrainingTotals:
    """What one arm's training rollouts cost, from the evidence that is at hand."""

    rollouts: int = 0
    tokens_generated: int = 0
    tokens_retained: int = 0
    tool_errors: int = 0
    invalid_calls: int = 0


@dataclass(frozen=True, slots=True)
class ArmFacts:
    """One arm's way through training."""

    name: str
    steps: tuple[TrainStep, ...]
    families: dict[str, tuple[FamilyStep, ...]]
    totals: TrainingTotals


@dataclass(frozen=True, slots=True)
class RunFacts:
    """A run as the report sees it."""

    run_dir: Path
    view: JournalView
    plan: Plan
    arms: tuple[ArmFacts, ...]
    branches: tuple[BranchFinished, ...]
    qualifications: tuple[QualificationResult, ...]
    evaluations: tuple[EvaluationFinished, ...]
    selections: tuple[SelectionVerdict, ...]
    comparisons: tuple[Comparison, ...]
    warnings: tuple[Warned, ...]
    merges: tuple[PolicyMerged, ...]
    inspections: tuple[Inspection, ...]

    @property
    def head_line(self) -> str:
        """The line that is worth keeping outside of the run."""
        return f"{self.view.run} {len(self.view.entries)} b3:{self.view.head}"

    def against_baseline(self, arm: str, suite: str) -> Comparison | None:
        """The final comparison of an arm with the baseline."""
        return next(
            (
                each
                for each in self.comparisons
                if (each.before_arm, each.after_arm, each.suite) == (BASELINE, arm, suite)
            ),
            None,
        )

    @property
    def failed_arms(self) -> tuple[str, ...]:
        """Arms that did not qualify."""
        return tuple(each.arm for each in self.qualifications if not each.verdict.passed)


def load_facts(run_dir: Path) -> RunFacts:
    """Read a run; the chain of its journal is verified, everything else is the auditor's business.

    Raises:
        JournalError: The journal is damaged.
        PlanError: The run's plan is not the one that its journal names.
    """
    view = read_journal(run_dir)
    plan = load_plan(run_dir, view)
    return RunFacts(
        run_dir=run_dir,
        view=view,
        plan=plan,
        arms=tuple(_arm(run_dir, view, arm.name) for arm in plan.recipe.arms),
        branches=_bodies(view, BranchFinished),
        qualifications=_bodies(view, QualificationResult),
        evaluations=_bodies(view, EvaluationFinished),
        selections=tuple(body.verdict for body in _bodies(view, SelectionMade)),
        comparisons=tuple(each for body in _bodies(view, AssessmentMade) for each in body.comparisons),
        warnings=_bodies(view, Warned),
        merges=_bodies(view, PolicyMerged),
        inspections=read_inspections(run_dir, run=view.run, head=view.head)[0],
    )


def load_plan(run_dir: Path, view: JournalView) -> Plan:
    """Read the plan of a run, which was found to be the one its journal names.

    Raises:
        PlanError: It is missing, another one, or of another version.
    """
    path = run_dir / "plan.json"
    try:
        data = path.read_bytes()
    except OSError as error:
        message = f"{path}: cannot be read ({error.strerror})"
        raise PlanError(message) from error
    if derive(CONTEXT_PLAN, data) != view.plan:
        message = f"{path}: is not the plan that the journal was begun with"
        raise PlanError(message)
    try:
        return decode_record(Plan, data)
    except ValueError as error:
        message = f"{path}: not a plan of this version: {error}"
        raise PlanError(message) from error


def _bodies(view: JournalView, cls: type[T]) -> tuple[T, ...]:
    return tuple(entry.body for entry in view.entries if isinstance(entry.body, cls))


def _arm(run_dir: Path, view: JournalView, name: str) -> ArmFacts:
    families: dict[str, list[FamilyStep]] = {}
    steps: list[TrainStep] = []
    totals = TrainingTotals()
    for entry in view.entries:
        body = entry.body
        if not isinstance(body, TrainStep) or body.arm != name:
            continue
        steps.append(body)
        rewards, found = _read_step(run_dir, entry, body)
        totals = _add(totals, found)
        for rates in body.families:
            families.setdefault(rates.family, []).append(
                FamilyStep(
                    step=body.facts.step,
                    success=rates.successes / rates.rollouts,
                    reward=rewards.get(rates.family),
                    all_fail=rates.all_fail / rates.groups,
                    all_pass=rates.all_pass / rates.groups,
                )
            )
    return ArmFacts(
        name=name,
        steps=tuple(steps),
        families={family: tuple(points) for family, points in sorted(families.items())},
        totals=totals,
    )


def _read_step(run_dir: Path, entry: Entry, body: TrainStep) -> tuple[dict[str, float], TrainingTotals]:
    """Mean reward by family and totals of a step; nothing where its evidence is not at hand."""
    path = next((each.path for each in entry.artifacts if each.b3 == body.facts.evidence), None)
    rewards: dict[str, list[float]] = {}
    totals = TrainingTotals()
    for record in _lines(run_dir / path) if path is not None else ():
        rollout = record.rollout
        if record.reward is not None:
            rewards.setdefault(rollout.family, []).append(record.reward)
        totals = _add(
            totals,
            TrainingTotals(
                rollouts=1,
                tokens_generated=rollout.tokens_generated,
                tokens_retained=rollout.tokens_retained,
                tool_errors=rollout.tool_errors,
                invalid_calls=rollout.invalid_calls,
            ),
        )
    return {family: sum(values) / len(values) for family, values in rewards.items()}, totals


def _lines(path: Path) -> Iterator[TrainedRollout]:
    """Yield the rollouts of an evidence file up to the first that cannot be read; the auditor names that one."""
    try:
        with path.open("rb") as stream:
            for line in stream:
                yield TrainedRollout.model_validate_json(line, strict=True)
    except (OSError, ValueError):
        return


def _add(one: TrainingTotals, other: TrainingTotals) -> TrainingTotals:
    return TrainingTotals(
        rollouts=one.rollouts + other.rollouts,
        tokens_generated=one.tokens_generated + other.tokens_generated,
        tokens_retained=one.tokens_retained + other.tokens_retained,
        tool_errors=one.tool_errors + other.tool_errors,
        invalid_calls=one.invalid_calls + other.invalid_calls,
    )
