"""Distinct episodes from a counted task space: each task has a number, and a walk visits every number once."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from experiment.errors import UsageError
from experiment.records.episode import Episode, Message
from experiment.sealing.canonical import encode
from experiment.sealing.digests import CONTEXT_EPISODE, derive
from experiment.sealing.seeds import derive_seed

_SPARE_BITS = 63 - 53
"""An episode's seed is a number that JSON carries exactly."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A task before it gets an id."""

    family: str
    messages: tuple[Message, ...]
    task: dict[str, object]
    """Everything the world needs to play and judge it."""
    essence: dict[str, object]
    """The part of the task that makes it another task; the rest is noise such as distractors."""


@dataclass(frozen=True, slots=True)
class Space:
    """All tasks of one family, numbered from 0."""

    family: str
    size: int
    draft: Callable[[int, int], Draft]
    """(number, episode seed) -> task; the seed decides nothing but noise."""


def generate_distinct(
    world: str, spaces: tuple[Space, ...], *, prefix: str, count: int, seed: int, taken: frozenset[str]
) -> tuple[Episode, ...]:
    """Make `count` episodes, the spaces in turn, all different in content and none with a content in `taken`.

    Ids have no influence on the tasks: another `prefix` gives the same ones.

    Raises:
        UsageError: A space has no task left.
    """
    seen = set(taken)
    episodes: list[Episode] = []
    for index in range(count):
        space = spaces[index % len(spaces)]
        episode_seed = derive_seed(seed, f"{world} episode", index) >> _SPARE_BITS
        episode = _find_new(world, space, f"{prefix}-{index:04d}", episode_seed, seen)
        if episode is None:
            msg = (
                f"world {world}, family {space.family}: its {space.size} distinct tasks are used up at episode "
                f"{index} of {count} ('{prefix}', {len(taken)} contents already taken)"
            )
            raise UsageError(msg, remedy="Ask for fewer episodes, or allow more families or number formats.")
        seen.add(episode.content)
        episodes.append(episode)
    return tuple(episodes)


def require_tier(world: str, tiers: tuple[str, ...], tier: str) -> None:
    """Return only where the world has the tier.

    Raises:
        UsageError: It has not.
    """
    if tier not in tiers:
        msg = f"world {world} has no tier '{tier}', it has {', '.join(tiers)}"
        raise UsageError(msg, remedy="Correct or remove `tier` in the recipe's [episodes] or [retention] section.")


def make_episode(world: str, draft: Draft, *, episode_id: str, seed: int) -> Episode:
    """Return the frozen episode of a draft; its content digest knows neither id, seed nor noise."""
    prompt = [[message.role, message.content] for message in draft.messages]
    return Episode(
        id=episode_id,
        world=world,
        family=draft.family,
        seed=seed,
        messages=draft.messages,
        task_json=encode(draft.task).decode("utf-8"),
        content=derive(CONTEXT_EPISODE, encode([world, draft.family, prompt, draft.essence])),
    )


def _find_new(world: str, space: Space, episode_id: str, seed: int, seen: set[str]) -> Episode | None:
    for number in _walk(space.size, seed):
        episode = make_episode(world, space.draft(number, seed), episode_id=episode_id, seed=seed)
        if episode.content not in seen:
            return episode
    return None


def _walk(size: int, seed: int) -> Iterator[int]:
    """Yield 0 … size - 1 once each; the stride keeps neighbours, which differ in little, apart."""
    stride = 1 + derive_seed(seed, "stride") % size
    while math.gcd(stride, size) != 1:
        stride += 1
    start = derive_seed(seed, "task")
    for step in range(size):
        yield (start + step * stride) % size
