"""Scripted rollouts in the German world with the character tokenizer: a stage without any model."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import pairwise

from experiment.environments.base import Environment, ScriptedTurn
from experiment.environments.german_tools.environment import GermanTools
from experiment.policies.scripted import ScriptedPolicy
from experiment.records.episode import Episode
from experiment.records.recipe import Sampling
from experiment.rollout.chat import ChatFormat, turn_text
from experiment.rollout.episode import Attempt, PlayedRollout, RolloutLoop
from experiment.sealing.seeds import derive_seed
from tests.doubles.char_tokenizer import CharTokenizer

WORLD = GermanTools()
EPISODES = WORLD.generate(prefix="train", count=24, seed=3, taken=frozenset())
CHAT = ChatFormat(CharTokenizer(), WORLD.tools)
SAMPLING = Sampling(max_turns=6, max_turn_tokens=400, max_completion_tokens=4000, batch_size=16)

Turn = str | tuple[int, ...]
"""A turn as text, which gets its end-of-turn token, or as exactly these ids."""


def keys(episode: Episode) -> list[str]:
    """The keys that an episode's task looks up."""
    return list(json.loads(episode.task_json)["lookups"])


def values(episode: Episode) -> dict[str, str]:
    """An episode's table."""
    return dict(json.loads(episode.task_json)["table"])


def lookup(key: str) -> str:
    """A turn that looks a key up."""
    return turn_text(ScriptedTurn(text="", calls=(("nachschlagen", (("schluessel", key),)),)))


def solution(episode: Episode, world: Environment = WORLD) -> list[Turn]:
    """The scripted solver's turns."""
    return [turn_text(turn) for turn in world.solve(episode)]


def turn_ids(turn: Turn) -> tuple[int, ...]:
    """Ids of a turn."""
    return CHAT.turn_ids(ScriptedTurn(text=turn, calls=())) if isinstance(turn, str) else turn


def play(
    scripts: Sequence[Sequence[Turn]],
    *,
    world: Environment = WORLD,
    sampling: Sampling = SAMPLING,
    order: Callable[[Sequence[Episode]], Sequence[Episode]] = tuple,
) -> list[PlayedRollout]:
    """Play the n-th script on the n-th episode; `order` is the order of the attempts."""
    episodes = EPISODES[: len(scripts)]
    turns = {
        CHAT.prompt_ids(episode.messages): [turn_ids(turn) for turn in script]
        for episode, script in zip(episodes, scripts, strict=True)
    }
    loop = RolloutLoop(ScriptedPolicy(turns), CHAT, world, sampling)
    return loop.play([Attempt(episode, 0) for episode in order(episodes)], seed)


def seed(attempt: Attempt, turn: int) -> int:
    """The seed of a turn."""
    return derive_seed(5, attempt.episode.id, attempt.rollout, turn)


def runs(mask: Sequence[int]) -> list[tuple[int, int]]:
    """The mask as (value, length) of its runs."""
    edges = [0, *(at for at in range(1, len(mask)) if mask[at] != mask[at - 1]), len(mask)]
    return [(mask[start], end - start) for start, end in pairwise(edges)]
