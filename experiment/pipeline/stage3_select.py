"""Stage 3: the frozen rule chooses a checkpoint of each arm, by DEV alone."""

from __future__ import annotations

from experiment.decisions.selection import DevResult, decide
from experiment.journal.progress import fold_progress
from experiment.pipeline.context import RunContext
from experiment.pipeline.evaluations import BASELINE, PolicyRef, play_keys
from experiment.records.entry import EvaluationFinished, SelectionMade
from experiment.records.recipe import Recipe
from experiment.records.verdict import EvaluationKey, SelectionVerdict


def select(context: RunContext) -> dict[str, SelectionVerdict]:
    """Leave a selection for every arm in the journal, and return them.

    Raises:
        FaultError: A worker broke, or an episode has no verdict.
        StoppedError: A stop was requested.
    """
    recipe = context.plan.recipe
    done = fold_progress(context.journal.entries).selections
    if all(arm.name in done for arm in recipe.arms):
        return {name: made.verdict for name, made in done.items()}
    steps = recipe.checkpoints.candidates
    context.watcher.stage("select", f"DEV on the baseline and on steps {', '.join(map(str, steps))} of each arm")
    policies = [PolicyRef(BASELINE, 0), *(PolicyRef(arm.name, step) for arm in recipe.arms for step in steps)]
    results = play_keys(context, "dev", {policy: dev_keys(recipe, policy) for policy in policies})
    for arm in recipe.arms:
        if arm.name in done:
            continue
        baseline = _dev_result(recipe, PolicyRef(BASELINE, 0), results)
        candidates = [_dev_result(recipe, PolicyRef(arm.name, step), results) for step in steps]
        verdict = decide(arm.name, baseline, candidates, recipe.checkpoints.diagnostic)
        context.append("select.decision", SelectionMade(verdict=verdict))
        context.watcher.note(_sentence(verdict))
    context.watcher.note(f"head {context.journal.mark()}")
    return {name: made.verdict for name, made in fold_progress(context.journal.entries).selections.items()}


def dev_keys(recipe: Recipe, policy: PolicyRef) -> tuple[EvaluationKey, EvaluationKey]:
    """What a policy plays on DEV: both suites, at the first generation seed of each."""
    seed, retention_seed = recipe.assessment.seeds[0], recipe.assessment.retention_seeds[0]
    return (
        EvaluationKey(arm=policy.arm, step=policy.step, suite="agent", stage="dev", seed=seed),
        EvaluationKey(arm=policy.arm, step=policy.step, suite="retention", stage="dev", seed=retention_seed),
    )


def _dev_result(recipe: Recipe, policy: PolicyRef, results: dict[EvaluationKey, EvaluationFinished]) -> DevResult:
    agent, retention = dev_keys(recipe, policy)
    return DevResult(step=policy.step, agent=results[agent].outcomes, retention=results[retention].outcomes)


def _sentence(verdict: SelectionVerdict) -> str:
    base = verdict.baseline
    reference = f"baseline {base.successes}/{base.items}, maths {base.retained}/{base.retention_items}"
    if verdict.selected_step is None:
        return f"{verdict.arm}: no eligible checkpoint ({reference}); step {verdict.assessed_step} is diagnostic only"
    best = verdict.candidates[0]
    found = f"{best.successes}/{best.items}, maths {best.retained}/{best.retention_items}"
    return f"{verdict.arm}: step {verdict.selected_step} selected with {found} ({reference})"
