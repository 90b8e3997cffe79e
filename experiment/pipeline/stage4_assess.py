"""Stage 4: the one final measurement, after selection and never again."""

from __future__ import annotations

from itertools import combinations

from experiment.decisions.assessment import check_planned, compare
from experiment.journal.progress import fold_progress
from experiment.pipeline.context import RunContext
from experiment.pipeline.evaluations import BASELINE, PolicyRef, play_keys
from experiment.pipeline.inspection import export_samples
from experiment.records.entry import AssessmentMade, EvaluationFinished
from experiment.records.plan import Plan
from experiment.records.recipe import Recipe
from experiment.records.verdict import Comparison, EvaluationKey, SelectionVerdict, Suite

SUITES: tuple[Suite, ...] = ("agent", "retention")


def assess(context: RunContext) -> tuple[Comparison, ...]:
    """Leave the final comparisons and the reviewer's samples in the journal, and return the comparisons.

    Raises:
        FaultError: A worker broke, or an episode has no verdict.
        StoppedError: A stop was requested.
    """
    for entry in context.journal.entries:
        if isinstance(entry.body, AssessmentMade):
            export_samples(context)
            return entry.body.comparisons
    progress = fold_progress(context.journal.entries)
    selections = [progress.selections[arm.name].verdict for arm in context.plan.recipe.arms]
    policies = [PolicyRef(BASELINE, 0), *(PolicyRef(each.arm, each.assessed_step) for each in selections)]
    detail = ", ".join(policy.label for policy in policies)
    context.watcher.stage("assess", f"final episodes, once: {detail}")
    keys = {policy: final_keys(context.plan.recipe, policy) for policy in policies}
    results = play_keys(context, "final", keys)
    comparisons = compare_all(context.plan, selections, results)
    context.append("stats.result", AssessmentMade(comparisons=comparisons))
    export_samples(context)
    return comparisons


def final_keys(recipe: Recipe, policy: PolicyRef) -> tuple[EvaluationKey, ...]:
    """What a policy plays in the end: both suites, at every generation seed."""
    seeds = {"agent": recipe.assessment.seeds, "retention": recipe.assessment.retention_seeds}
    return tuple(
        EvaluationKey(arm=policy.arm, step=policy.step, suite=suite, stage="final", seed=seed)
        for suite in SUITES
        for seed in seeds[suite]
    )


def compare_all(
    plan: Plan, selections: list[SelectionVerdict], results: dict[EvaluationKey, EvaluationFinished]
) -> tuple[Comparison, ...]:
    """Every arm against the baseline on both suites, then every pair of arms on the agent suite."""
    recipe = plan.recipe
    planned = {
        "agent": [episode.id for episode in plan.final],
        "retention": [episode.id for episode in plan.retention_final],
    }

    def results_of(policy: PolicyRef, suite: Suite) -> list[EvaluationFinished]:
        found = [results[key] for key in final_keys(recipe, policy) if key.suite == suite]
        check_planned(found, planned[suite])
        return found

    def compare_pair(before: PolicyRef, after: PolicyRef, suite: Suite, *, promoted: bool) -> Comparison:
        return compare(
            results_of(before, suite),
            results_of(after, suite),
            root_seed=recipe.seed,
            resamples=recipe.assessment.resamples,
            confidence=recipe.assessment.confidence,
            promoted=promoted,
        )

    baseline = PolicyRef(BASELINE, 0)
    against_baseline = [
        compare_pair(baseline, PolicyRef(each.arm, each.assessed_step), suite, promoted=each.selected_step is not None)
        for each in selections
        for suite in SUITES
    ]
    between_arms = [
        compare_pair(
            PolicyRef(one.arm, one.assessed_step),
            PolicyRef(other.arm, other.assessed_step),
            "agent",
            promoted=one.selected_step is not None and other.selected_step is not None,
        )
        for one, other in combinations(selections, 2)
    ]
    return (*against_baseline, *between_arms)
