"""Plays a scripted policy in a world: no tokens, no model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from experiment.environments.base import Environment, ScriptedTurn
from experiment.records.episode import Episode
from experiment.records.rollout import Score


@dataclass(frozen=True, slots=True)
class PlayedScript:
    """What came of a script."""

    results: tuple[tuple[str, ...], ...]
    """What each turn's calls gave back."""
    score: Score


def play_script(world: Environment, episode: Episode, turns: Sequence[ScriptedTurn]) -> PlayedScript:
    """Play the turns in a session of their own, which is closed afterwards; the last turn's text is the answer.

    Raises:
        FaultError: The world broke.
    """
    session = world.open(episode)
    try:
        results = tuple(tuple(session.call(name, dict(given)).text for name, given in turn.calls) for turn in turns)
        return PlayedScript(results, session.verify(turns[-1].text if turns else ""))
    finally:
        session.close()
