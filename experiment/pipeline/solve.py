"""Proves a recipe's worlds sound: the scripted solver solves every episode, doing nothing solves none."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from experiment.environments.base import Environment, ScriptedTurn
from experiment.environments.catalogue import build_retention, build_world
from experiment.records.episode import Episode
from experiment.records.recipe import Recipe


@dataclass(frozen=True, slots=True)
class SolveResult:
    """What scripted policies achieved."""

    lines: tuple[str, ...]
    is_sound: bool
    """Every episode is solved by the solver and none by the policy that does nothing."""


def solve_all(recipe: Recipe) -> SolveResult:
    """Play all episodes that the recipe generates, in both worlds.

    Raises:
        UsageError: The recipe asks for more distinct episodes than there are.
    """
    world, retention = build_world(recipe.world), build_retention()
    lines, sound = [], True
    for label, source in (
        ("train", recipe.episodes.train),
        ("dev", recipe.episodes.dev),
        ("final", recipe.episodes.final),
    ):
        episodes = world.generate(prefix=label, count=source.count, seed=source.seed, taken=frozenset())
        line, is_sound = _solve_set(world, label, episodes)
        lines.append(line)
        sound = sound and is_sound
    for label, origin in (("retention-dev", recipe.retention.dev), ("retention-final", recipe.retention.final)):
        if isinstance(origin, str):
            continue  # questions from a file bring their own answers
        episodes = retention.generate(prefix=label, count=origin.count, seed=origin.seed, taken=frozenset())
        line, is_sound = _solve_set(retention, label, episodes)
        lines.append(line)
        sound = sound and is_sound
    return SolveResult(tuple(lines), sound)


def _solve_set(world: Environment, label: str, episodes: Sequence[Episode]) -> tuple[str, bool]:
    started = time.perf_counter()
    solved = sum(_play(world, episode, world.solve(episode)) for episode in episodes)
    seconds = time.perf_counter() - started
    idle = sum(_play(world, episode, ()) for episode in episodes)
    line = (
        f"{label}: solver {solved}/{len(episodes)}, no-op {idle}/{len(episodes)}, "
        f"{len(episodes) / max(seconds, 1e-9):.0f} episodes/s"
    )
    return line, solved == len(episodes) and idle == 0


def _play(world: Environment, episode: Episode, turns: Sequence[ScriptedTurn]) -> bool:
    session = world.open(episode)
    for turn in turns:
        for name, arguments in turn.calls:
            session.call(name, dict(arguments))
    return session.verify(turns[-1].text if turns else "").success
