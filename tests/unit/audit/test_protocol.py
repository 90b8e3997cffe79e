"""Journals whose chain is sound and whose story is not the one that the plan froze."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from experiment.audit.case import Case
from experiment.audit.evaluations import check_evaluations
from experiment.audit.findings import Notes
from experiment.audit.plan_rules import check_plan_rules
from experiment.audit.protocol import Protocol
from experiment.audit.steps import StepChecks
from experiment.records.entry import Resume, StepRedone, TrainStarted
from experiment.records.plan import Plan
from tests.doubles.small_run import SmallRun

Edit = Callable[[SmallRun], None]


def case_of(story: SmallRun, *, close: bool = True, plan: Plan | None = None) -> Case:
    return Case(run_dir=story.run_dir, view=story.view(close=close), plan=plan or story.plan, notes=Notes())


def ids(case: Case) -> list[str]:
    return [finding.id for finding in case.notes.report().findings]


def walk(case: Case) -> list[str]:
    """The checks that need the records alone."""
    check_plan_rules(case.plan, case.notes)
    Protocol(case).walk()
    return ids(case)


def audit(case: Case) -> list[str]:
    """The checks that read evidence as well."""
    walk(case)
    StepChecks(case, "protocol").check_all()
    check_evaluations(case, "protocol")
    return ids(case)


def move(type_: str, number: int, before: str) -> Edit:
    """Move the n-th record of a type to just before the first of another."""

    def edit(story: SmallRun) -> None:
        record = story.records.pop(story.position(type_, number))
        story.records.insert(story.position(before), record)

    return edit


def drop(type_: str, number: int = 0) -> Edit:
    return lambda story: story.records.pop(story.position(type_, number)) and None


def double(type_: str, number: int = 0) -> Edit:
    def edit(story: SmallRun) -> None:
        index = story.position(type_, number)
        story.records.insert(index + 1, story.records[index])

    return edit


def change(type_: str, number: int = 0, **fields: Any) -> Edit:
    return lambda story: story.replace(story.position(type_, number), **fields)


def change_facts(number: int = 0, **fields: Any) -> Edit:
    def edit(story: SmallRun) -> None:
        index = story.position("train.step", number)
        body: Any = story.records[index][1]
        story.replace(index, facts=body.facts.model_copy(update=fields))

    return edit


def change_key(type_: str, number: int = 0, **fields: Any) -> Edit:
    def edit(story: SmallRun) -> None:
        index = story.position(type_, number)
        body: Any = story.records[index][1]
        story.replace(index, key=body.key.model_copy(update=fields))

    return edit


def lose_an_item(story: SmallRun) -> None:
    index = story.position("final.result")
    body: Any = story.records[index][1]
    story.replace(index, outcomes=body.outcomes[1:])


def play_an_item_twice(story: SmallRun) -> None:
    index = story.position("dev.result")
    body: Any = story.records[index][1]
    story.replace(index, outcomes=(body.outcomes[0], *body.outcomes[:-1]))


def swap_step_evidence(story: SmallRun) -> None:
    """Step 2 shows step 1's rollouts."""
    first, second = story.position("train.step", 0), story.position("train.step", 1)
    body: Any = story.records[second][1]
    borrowed: Any = story.records[first][1]
    story.records[second] = ("train.step", body, story.records[first][2])
    story.replace(second, facts=body.facts.model_copy(update={"evidence": borrowed.facts.evidence}))


def redo_differently(story: SmallRun) -> None:
    index = story.position("train.step", 1)
    body: Any = story.records[index][1]
    redone = StepRedone(arm=body.arm, step=body.facts.step, evidence="0" * 64)
    story.records.insert(index + 1, ("train.redone", redone, ()))


def fail_a_qualification(story: SmallRun) -> None:
    index = story.position("qual.result")
    body: Any = story.records[index][1]
    story.replace(index, verdict=body.verdict.model_copy(update={"passed": False}))


RESUMED = Resume(closes=(), moved=(), pid=1, host="host", reason="killed")


def go_on_without_saying_from_where(story: SmallRun) -> None:
    story.records.insert(story.position("train.step", 1), ("resume", RESUMED, ()))


def change_environment(**fields: Any) -> Edit:
    def edit(story: SmallRun) -> None:
        index = story.position("env.observed")
        body: Any = story.records[index][1]
        story.replace(index, environment=body.environment.model_copy(update=fields))

    return edit


LIES: dict[str, tuple[Edit, str]] = {
    "qualification before the inputs were verified": (move("inputs.verified", 0, "qual.result"), "P-ORDER"),
    "training before the last arm qualified": (move("train.start", 0, "qual.result"), "P-ORDER"),
    "training after a failed qualification": (fail_a_qualification, "P-ORDER"),
    "no qualification at all": (drop("qual.result"), "P-ORDER"),
    "a branch too few": (drop("qual.branch", 1), "P-QUALIFY"),
    "a branch twice": (double("qual.branch"), "P-TWICE"),
    "a branch with a step too few": (change("qual.branch", steps=()), "P-QUALIFY"),
    "an arm that the plan does not have": (change("train.start", arm="third"), "P-ARM"),
    "no word of what workers compute with": (drop("env.observed"), "P-ENVIRONMENT"),
    "an environment twice": (double("env.observed"), "P-TWICE"),
    "other threads than planned": (change_environment(threads=2), "P-ENVIRONMENT"),
    "another torch than planned": (change_environment(torch="2.14.0+cpu"), "P-ENVIRONMENT"),
    "kernels that need not be deterministic": (change_environment(deterministic=False), "P-ENVIRONMENT"),
    "an environment after the first branch": (move("env.observed", 0, "qual.result"), "P-ORDER"),
    "DEV of weights that nobody accounted for": (drop("merge.result"), "P-MERGE"),
    "weights accounted for twice": (double("merge.result"), "P-TWICE"),
    "weights of a state that was not sealed": (change("merge.result", step=7), "P-MERGE"),
    "no samples for a reviewer": (drop("samples.exported"), "P-SAMPLES"),
    "samples twice": (double("samples.exported"), "P-TWICE"),
    "samples before the comparison": (move("samples.exported", 0, "stats.result"), "P-ORDER"),
    "samples of chosen episodes": (change("samples.exported", agent=("final-0001",)), "P-SAMPLES"),
    "a step left out": (drop("train.step"), "P-STEP"),
    "a step twice": (double("train.step"), "P-STEP"),
    "a step before its arm started": (drop("train.start"), "P-ORDER"),
    "a step after a restart that did not say from where": (go_on_without_saying_from_where, "P-ORDER"),
    "a step after its arm finished": (move("train.stop", 0, "train.step"), "P-ORDER"),
    "a step that came out different": (redo_differently, "P-REDONE"),
    "another learning rate": (change_facts(learning_rate=0.00012345), "P-RATE"),
    "other episodes": (swap_step_evidence, "P-EPISODES"),
    "a checkpoint that was never sealed": (drop("ckpt.sealed"), "P-CHECKPOINT"),
    "a checkpoint twice": (double("ckpt.sealed"), "P-TWICE"),
    "a checkpoint of a step not done": (move("ckpt.sealed", 0, "train.step"), "P-CHECKPOINT"),
    "a candidate that is none": (change("ckpt.sealed", is_candidate=False), "P-CHECKPOINT"),
    "training from an unsealed state": (change("train.start", from_step=1, checkpoint="0" * 64), "P-CHECKPOINT"),
    "an arm that stopped early": (change("train.stop", steps=1), "P-STEP"),
    "DEV of a step that is no candidate": (change_key("dev.result", 2, step=7), "P-EVALUATION"),
    "DEV before the arm finished": (move("dev.result", 2, "train.stop"), "P-ORDER"),
    "DEV twice": (double("dev.result"), "P-TWICE"),
    "DEV after the selection": (move("select.decision", 0, "dev.result"), "P-SELECT"),
    "DEV at another seed": (change_key("dev.result", seed=99), "P-EVALUATION"),
    "DEV with an item twice": (play_an_item_twice, "P-EVALUATION"),
    "no selection": (drop("select.decision"), "P-ORDER"),
    "two selections": (double("select.decision"), "P-TWICE"),
    "final before the last selection": (move("final.result", 0, "select.decision"), "P-ORDER"),
    "final twice": (double("final.result"), "P-TWICE"),
    "final without an item": (lose_an_item, "P-EVALUATION"),
    "final of another checkpoint": (change_key("final.result", 4, step=99), "P-EVALUATION"),
    "final at another seed": (change_key("final.result", seed=99), "P-EVALUATION"),
    "a final result missing from the comparison": (drop("final.result"), "P-COMPARE"),
    "final after the comparison": (move("stats.result", 0, "final.result"), "P-ORDER"),
    "the comparison twice": (double("stats.result"), "P-TWICE"),
    "closed as assessed without a comparison": (drop("stats.result"), "P-CLOSE"),
}


def test_the_true_story_has_no_finding(story: SmallRun) -> None:
    assert audit(case_of(story)) == []


@pytest.mark.parametrize("lie", LIES)
def test_a_false_story_is_found(story: SmallRun, lie: str) -> None:
    edit, expected = LIES[lie]

    edit(story)

    assert expected in walk(case_of(story)) or expected in audit(case_of(story))


def test_every_beginning_of_the_true_story_is_consistent(story: SmallRun) -> None:
    whole = list(story.records)
    for length in range(len(whole)):
        story.records = whole[:length]
        assert walk(case_of(story, close=False)) == []


def test_a_step_done_again_with_the_same_evidence_is_accepted(story: SmallRun) -> None:
    index = story.position("train.step", 1)
    body: Any = story.records[index][1]
    redone = StepRedone(arm=body.arm, step=body.facts.step, evidence=body.facts.evidence)
    story.records.insert(index + 1, ("train.redone", redone, ()))

    assert audit(case_of(story)) == []


def test_training_that_goes_on_from_a_sealed_state_is_accepted(story: SmallRun) -> None:
    index = story.position("train.step", 1)
    sealed: Any = story.records[story.position("ckpt.sealed")][1]
    started = TrainStarted(arm=sealed.arm, from_step=sealed.step, checkpoint=sealed.tree)
    story.records[index:index] = [("resume", RESUMED, ()), ("train.start", started, ())]

    assert walk(case_of(story)) == []


def test_rollouts_sampled_with_other_seeds_are_found(story: SmallRun) -> None:
    other = story.plan.model_copy(update={"recipe": story.plan.recipe.model_copy(update={"seed": 6})})

    assert set(audit(case_of(story, plan=other))) == {"P-SEED"}


@pytest.mark.parametrize("name", ["dev", "final"])
def test_a_plan_that_trains_on_what_it_measures_is_found(story: SmallRun, name: str) -> None:
    leaked = story.plan.train[0].model_copy(update={"id": f"{name}-0000", "family": story.plan.dev[0].family})
    plan = story.plan.model_copy(update={name: (leaked, *getattr(story.plan, name)[1:])})

    assert set(walk(case_of(story, plan=plan))) == {"P-PLAN"}


def test_a_schedule_with_a_gap_is_found(story: SmallRun) -> None:
    plan = story.plan.model_copy(update={"schedule": story.plan.schedule[1:]})

    assert "P-PLAN" in walk(case_of(story, plan=plan))
