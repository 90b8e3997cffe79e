"""The samples that a named reviewer reads: preselected episodes as they were played, made from the evidence alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from experiment.records.inspection import Sample, SampledAnswer

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from experiment.records.entry import EvaluationFinished
    from experiment.records.episode import Episode
    from experiment.records.plan import Plan
    from experiment.records.rollout import Rollout
    from experiment.records.verdict import Suite


def inspected_items(plan: Plan) -> dict[Suite, tuple[str, ...]]:
    """The episodes that are inspected: the first of each final set, so that nobody chose them by their outcome."""
    number = plan.recipe.assessment.inspected
    return {
        "agent": tuple(episode.id for episode in plan.final[:number]),
        "retention": tuple(episode.id for episode in plan.retention_final[:number]),
    }


def inspected_evaluations(
    plan: Plan, evaluations: Iterable[EvaluationFinished]
) -> list[tuple[str, Suite, EvaluationFinished]]:
    """The evaluations that samples are taken from, each with its policy's label and its suite.

    They are those of the final stage at the first generation seed, the baseline's first, then by the plan's arms.
    """
    assessment = plan.recipe.assessment
    first = {"agent": assessment.seeds[0], "retention": assessment.retention_seeds[0]}
    order = ["baseline", *(arm.name for arm in plan.recipe.arms)]
    chosen = [each for each in evaluations if each.key.stage == "final" and each.key.seed == first[each.key.suite]]
    return [
        (f"{each.key.arm}@{each.key.step}" if each.key.step else each.key.arm, each.key.suite, each)
        for each in sorted(chosen, key=lambda each: (order.index(each.key.arm), each.key.suite))
    ]


def build_samples(plan: Plan, played: Mapping[tuple[str, Suite], Sequence[Rollout]]) -> tuple[Sample, ...]:
    """Return the samples in the plan's order, each with every policy's answer side by side.

    Args:
        plan: The plan.
        played: By (policy, suite): rollouts of the final set at the first generation seed; policies keep their order.

    Raises:
        KeyError: A policy has not played an inspected episode.
    """
    by_item = {(policy, suite, each.episode): each for (policy, suite), all_ in played.items() for each in all_}
    policies = list(dict.fromkeys(policy for policy, _ in played))
    episodes = {"agent": plan.final, "retention": plan.retention_final}
    return tuple(
        _sample(suite, episode, [(policy, by_item[policy, suite, episode.id]) for policy in policies])
        for suite, items in inspected_items(plan).items()
        for episode in episodes[suite][: len(items)]
    )


def _sample(suite: Suite, episode: Episode, answers: Sequence[tuple[str, Rollout]]) -> Sample:
    return Sample(
        suite=suite,
        episode=episode.id,
        family=episode.family,
        messages=episode.messages,
        answers=tuple(
            SampledAnswer(
                policy=policy,
                turns=tuple(
                    (turn.text, tuple(event.observation for event in turn.calls if event.observation))
                    for turn in rollout.turns
                ),
                end=rollout.end,
                success=rollout.score is not None and rollout.score.success,
            )
            for policy, rollout in answers
        ),
    )
