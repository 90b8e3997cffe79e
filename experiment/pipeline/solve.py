"""Proves a recipe's worlds sound: the scripted solver solves every episode, doing nothing or claiming success none."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from experiment.environments.base import Environment, Script
from experiment.environments.catalogue import build_retention, open_worlds
from experiment.environments.scripted import play_script
from experiment.pipeline.context import Watcher
from experiment.records.episode import Episode
from experiment.records.recipe import EpisodeSet, Recipe

_THREADS = 4
"""Episodes that are played side by side in one world."""


@dataclass(frozen=True, slots=True)
class SolveResult:
    """What scripted policies achieved."""

    lines: tuple[str, ...]
    is_sound: bool
    """Every episode is solved by the solver and none by any other policy."""


@dataclass(slots=True)
class _Tally:
    """Successes of each policy on some episodes."""

    label: str
    episodes: int = 0
    seconds: float = 0.0
    """What the solver took."""
    solved: dict[str, int] = field(default_factory=dict)

    def line(self) -> str:
        """The tally on one line."""
        counts = ", ".join(f"{policy} {count}/{self.episodes}" for policy, count in self.solved.items())
        return f"{self.label}: {counts}, {self.episodes / max(self.seconds, 1e-9):.3g} episodes/s"

    def is_sound(self) -> bool:
        """Whether the solver, which is the first policy, solved all and the others nothing."""
        first, *others = self.solved.values()
        return first == self.episodes and not any(others)


def solve_all(recipe: Recipe, watcher: Watcher, log_dir: Path, gym_python: Path | None = None) -> SolveResult:
    """Play all episodes that the recipe generates, in both worlds.

    Args:
        recipe: The recipe; `compute.workers` services are used side by side.
        watcher: Is told how far the work is.
        log_dir: Where the world's services, if it has any, have their files and logs.
        gym_python: Interpreter of NeMo Gym's environment; None takes the one that `make gym-env` makes.

    Raises:
        UsageError: The recipe asks for more distinct episodes than there are, or something is missing here.
        ServiceError: What the world is played in broke.
    """
    tallies = []
    with open_worlds(recipe.world, log_dir, recipe.compute.workers, gym_python) as worlds:
        sets = {"train": recipe.episodes.train, "dev": recipe.episodes.dev, "final": recipe.episodes.final}
        for label, source in sets.items():
            tallies.append(_solve_set(worlds, label, _generate(worlds[0], label, source), watcher))
    retention = build_retention()
    for label, origin in (("retention-dev", recipe.retention.dev), ("retention-final", recipe.retention.final)):
        if not isinstance(origin, str):  # questions from a file bring their own answers
            tallies.append(_solve_set([retention], label, _generate(retention, label, origin), watcher))
    total = _Tally(f"all {len(sets)} sets of {recipe.world.name}")
    for each in tallies[: len(sets)]:
        total.episodes, total.seconds = total.episodes + each.episodes, total.seconds + each.seconds
        total.solved = {policy: total.solved.get(policy, 0) + count for policy, count in each.solved.items()}
    return SolveResult(tuple(each.line() for each in (*tallies, total)), all(each.is_sound() for each in tallies))


def _generate(world: Environment, label: str, source: EpisodeSet) -> tuple[Episode, ...]:
    return world.generate(prefix=label, count=source.count, seed=source.seed, taken=frozenset(), tier=source.tier)


def _solve_set(worlds: Sequence[Environment], label: str, episodes: Sequence[Episode], watcher: Watcher) -> _Tally:
    world, tally = worlds[0], _Tally(label, len(episodes))
    policies: dict[str, Script] = {"solver": world.solve, "no-op": lambda _episode: (), **world.habits}
    for policy, script in policies.items():
        started = time.perf_counter()
        tally.solved[policy] = 0
        with ThreadPoolExecutor(_THREADS * len(worlds)) as pool:
            jobs = [
                pool.submit(_play, worlds[number % len(worlds)], each, script) for number, each in enumerate(episodes)
            ]
            for number, job in enumerate(jobs, start=1):
                tally.solved[policy] += job.result()
                watcher.progress(f"{label}-{policy}", f"{label}: {policy}", number, len(jobs))
        if policy == "solver":
            tally.seconds = time.perf_counter() - started
    return tally


def _play(world: Environment, episode: Episode, script: Script) -> bool:
    return play_script(world, episode, script(episode)).score.success
