"""P14: the plan itself keeps what is learned from and what is measured apart."""

from __future__ import annotations

from itertools import combinations

from experiment.audit.findings import Notes
from experiment.records.plan import Plan

_PLACE = "plan.json"


def check_plan_rules(plan: Plan, notes: Notes) -> None:
    """P14: no episode is in two sets, by id or by content, and the schedule is whole."""
    sets = {
        "train": plan.train,
        "dev": plan.dev,
        "final": plan.final,
        "retention_dev": plan.retention_dev,
        "retention_final": plan.retention_final,
    }
    contents = {name: {episode.content for episode in episodes} for name, episodes in sets.items()}
    contents["supervised"] = set(plan.supervised)
    for one, other in combinations(contents, 2):
        shared = contents[one] & contents[other]
        notes.require(not shared, "P-PLAN", _PLACE, f"{one} and {other} share {len(shared)} tasks")
    for name, episodes in sets.items():
        ids = {episode.id for episode in episodes}
        notes.require(len(ids) == len(episodes), "P-PLAN", _PLACE, f"{name} holds an id twice")
    _check_schedule(plan, notes)


def _check_schedule(plan: Plan, notes: Notes) -> None:
    training = plan.recipe.training
    steps = [scheduled.step for scheduled in plan.schedule]
    notes.require(steps == list(range(1, training.steps + 1)), "P-PLAN", _PLACE, f"the schedule has steps {steps}")
    known = {episode.id for episode in plan.train}
    for scheduled in plan.schedule:
        is_whole = len(scheduled.episodes) == training.prompts_per_step and known.issuperset(scheduled.episodes)
        notes.require(is_whole, "P-PLAN", _PLACE, f"step {scheduled.step} does not sample its episodes from train")
