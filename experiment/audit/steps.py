"""P4, P5, R1, R2: each optimizer step against the plan's schedule and against its own rollouts."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence

from experiment.audit.case import Case
from experiment.audit.evidence import EvidenceError, Played, Trained, name_of, read_trained
from experiment.audit.findings import Level
from experiment.decisions.families import family_rates
from experiment.journal.chain import Entry
from experiment.records.entry import BranchFinished, StepFacts, TrainStep
from experiment.records.plan import ScheduledStep
from experiment.sealing.seeds import derive_seed

_ADVANTAGE_TOLERANCE = 1e-3
"""The trainer scales advantages in float32, and adds 1e-4 to the spread."""


class StepChecks:
    """Checks every step that the journal reports."""

    def __init__(self, case: Case, level: Level) -> None:
        self._case = case
        self._recompute = level == "recompute"
        self._schedule = {scheduled.step: scheduled for scheduled in case.plan.schedule}
        self._rollouts = 0

    def check_all(self) -> None:
        """Check the steps of training and of the qualification's branches."""
        for entry in self._case.view.entries:
            body = entry.body
            if isinstance(body, TrainStep):
                trained = self._check_step(entry, f"{body.arm}, step {body.facts.step}", body.facts)
                if self._recompute and trained is not None:
                    self._check_summary(body, trained)
            elif isinstance(body, BranchFinished):
                for facts in body.steps:
                    self._check_step(entry, f"{body.arm} ({body.branch} branch), step {facts.step}", facts)
        self._case.notes.fact("training rollouts read", self._rollouts)

    def _check_step(self, entry: Entry, place: str, facts: StepFacts) -> list[Trained] | None:
        scheduled = self._schedule.get(facts.step)
        if scheduled is None:
            self._case.notes.find("P-STEP", place, "the plan has no such step")
            return None
        # P4: equal floats, because the plan holds the whole table.
        self._case.notes.require(
            facts.learning_rate == scheduled.learning_rate,
            "P-RATE",
            place,
            f"learning rate {facts.learning_rate!r}, planned was {scheduled.learning_rate!r}",
        )
        path = self._case.evidence(entry, facts.evidence)
        if path is None:
            return None
        try:
            trained = read_trained(path)
        except (EvidenceError, OSError) as error:
            self._case.notes.find("R-EVIDENCE", f"{place}, evidence", str(error))
            return None
        self._rollouts += len(trained)
        self._check_material(place, scheduled, [each.played for each in trained])
        if self._recompute:
            self._check_facts(place, facts, trained)
        return trained

    def _check_material(self, place: str, scheduled: ScheduledStep, played: Sequence[Played]) -> None:
        """P5: the planned episodes, each with the planned number of rollouts, played with the plan's seeds."""
        recipe = self._case.plan.recipe
        group = range(recipe.training.rollouts_per_prompt)
        planned = [(episode, rollout) for episode in scheduled.episodes for rollout in group]
        found = [(each.episode, each.rollout) for each in played]
        self._case.notes.require(
            found == planned, "P-EPISODES", place, f"trained on other rollouts than planned: {_first(found, planned)}"
        )
        for each in played:
            seeds = tuple(
                f"{derive_seed(recipe.seed, 'train', scheduled.step, each.episode, each.rollout, turn):016x}"
                for turn in range(len(each.seeds))
            )
            self._case.notes.require(
                each.seeds == seeds, "P-SEED", f"{place}, {name_of(each)}", "was not sampled with the plan's seeds"
            )

    def _check_facts(self, place: str, facts: StepFacts, trained: Sequence[Trained]) -> None:
        """R1, R2: rollouts agree with themselves; rewards, advantages and counts follow from them."""
        notes, recipe = self._case.notes, self._case.plan.recipe
        for each in trained:
            for problem in each.played.problems:
                notes.find("R-EVIDENCE", f"{place}, {name_of(each.played)}", problem)
            notes.require(
                each.reward == _reward(each.played, recipe.training.format_weight),
                "R-STEP",
                f"{place}, {name_of(each.played)}",
                "the reward is not the verifier's",
            )
        size = recipe.training.rollouts_per_prompt
        for start in range(0, len(trained), size):
            self._check_advantages(place, trained[start : start + size])
        reported = dict(facts.metrics)
        for name, value in self._metrics(trained).items():
            if name not in facts.not_finite:
                notes.require(
                    reported.get(name) == value, "R-STEP", place, f"`{name}` is {reported.get(name)!r}, not {value!r}"
                )

    def _metrics(self, trained: Sequence[Trained]) -> dict[str, float]:
        """The metrics that follow from the evidence alone."""
        rewards = [each.reward for each in trained if each.reward is not None]
        judged = [each.played.outcome for each in trained if each.played.outcome is not None]
        limit = self._case.plan.recipe.health.max_gap_nats
        return {
            "corrupted_rollouts": float(sum(each.worst_gap > limit for each in trained)),
            "gap_max_nats": max((each.worst_gap for each in trained), default=0.0),
            "observation_tokens": float(sum(each.learned for each in trained)),
            "reward": math.fsum(rewards) / len(rewards) if rewards else 0.0,
            "rollouts": float(len(trained)),
            "sampled_tokens": float(sum(each.played.generated for each in trained)),
            "strict": sum(each.success for each in judged) / len(judged) if judged else 0.0,
        }

    def _check_advantages(self, place: str, group: Sequence[Trained]) -> None:
        """R2: advantages are the rewards centred and scaled within their group; without a verdict they are zero."""
        rewards = [each.reward for each in group if each.reward is not None]
        mean = statistics.fmean(rewards) if rewards else 0.0
        spread = statistics.stdev(rewards) if len(rewards) > 1 else 0.0
        for each in group:
            expected = 0.0 if each.reward is None else (each.reward - mean) / (spread + 1e-4)
            self._case.notes.require(
                math.isclose(each.advantage, expected, rel_tol=_ADVANTAGE_TOLERANCE, abs_tol=_ADVANTAGE_TOLERANCE),
                "R-STEP",
                f"{place}, {name_of(each.played)}",
                f"advantage {each.advantage!r} does not follow from the group's rewards ({expected!r})",
            )

    def _check_summary(self, body: TrainStep, trained: Sequence[Trained]) -> None:
        """R2: the rates by family and the ends of the rollouts follow from the evidence."""
        place = f"{body.arm}, step {body.facts.step}"
        played = [each.played for each in trained]
        ends = tuple(sorted(Counter(each.end for each in played).items()))
        results = [(each.family, each.outcome is not None and each.outcome.success) for each in played]
        rates = family_rates(results, self._case.plan.recipe.training.rollouts_per_prompt)
        self._case.notes.require(body.ends == ends, "R-STEP", place, f"`ends` is {body.ends}, not {ends}")
        self._case.notes.require(
            body.divergences == _divergences(trained),
            "R-STEP",
            place,
            "`divergences` does not follow from the rollouts",
        )
        self._case.notes.require(
            body.families == rates, "R-STEP", place, "`families` does not follow from the rollouts"
        )


def _reward(played: Played, format_weight: float) -> float | None:
    if played.outcome is None:
        return None
    return float(played.outcome.success) + format_weight * played.format


def _divergences(trained: Sequence[Trained]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(Counter(name for each in trained for name in each.played.divergences).items()))


def _first(found: Sequence[object], planned: Sequence[object]) -> str:
    """Describe the first position at which two lists differ."""
    position = next((i for i, (a, b) in enumerate(zip(found, planned, strict=False)) if a != b), None)
    if position is None:
        return f"{len(found)} rollouts instead of {len(planned)}"
    return f"{found[position]} instead of {planned[position]} at position {position}"
