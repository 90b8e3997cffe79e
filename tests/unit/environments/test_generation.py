"""Distinct episodes from counted spaces."""

from __future__ import annotations

import pytest

from experiment.environments.generation import Draft, Space, generate_distinct, make_episode
from experiment.errors import UsageError
from experiment.records.episode import Episode, Message


def space(family: str, size: int) -> Space:
    def draft(number: int, seed: int) -> Draft:
        essence: dict[str, object] = {"number": number}
        task: dict[str, object] = {"number": number, "noise": seed}
        return Draft(family, (Message(role="user", content=f"{number}"),), task, essence)

    return Space(family, size, draft)


def generate(
    *sizes: int, count: int, prefix: str = "x", seed: int = 1, taken: frozenset[str] = frozenset()
) -> list[Episode]:
    spaces = tuple(space(f"family{position}", size) for position, size in enumerate(sizes))
    return list(generate_distinct("w", spaces, prefix=prefix, count=count, seed=seed, taken=taken))


@pytest.mark.parametrize("size", [1, 2, 7, 12, 60])
def test_every_task_of_a_space_is_found_before_it_is_called_used_up(size: int) -> None:
    episodes = generate(size, count=size)
    assert sorted(int(episode.messages[0].content) for episode in episodes) == list(range(size))
    with pytest.raises(UsageError, match=f"family0: its {size} distinct tasks are used up at episode {size} of"):
        generate(size, count=size + 1)


def test_families_take_turns_and_ids_count() -> None:
    episodes = generate(9, 9, count=5)
    assert [episode.family for episode in episodes] == ["family0", "family1", "family0", "family1", "family0"]
    assert [episode.id for episode in episodes] == [f"x-{index:04d}" for index in range(5)]


def test_taken_contents_are_avoided_even_with_the_same_seed() -> None:
    first = generate(40, count=20)
    second = generate(40, count=20, prefix="y", taken=frozenset(episode.content for episode in first))
    assert not {episode.content for episode in first} & {episode.content for episode in second}


def test_tasks_do_not_depend_on_the_prefix_or_on_the_count() -> None:
    short, long = generate(40, 30, count=10), generate(40, 30, count=30, prefix="y")
    assert [episode.content for episode in short] == [episode.content for episode in long[:10]]


def test_another_seed_gives_other_tasks() -> None:
    assert generate(1000, count=3) != generate(1000, count=3, seed=2)


def test_content_knows_essence_family_world_and_prompt_but_neither_id_nor_noise() -> None:
    draft = space("f", 9).draft(3, 1)
    reference = make_episode("w", draft, episode_id="a", seed=1).content
    assert make_episode("w", space("f", 9).draft(3, 2), episode_id="b", seed=2).content == reference
    others = [
        make_episode("w", space("f", 9).draft(4, 1), episode_id="a", seed=1),
        make_episode("w", space("g", 9).draft(3, 1), episode_id="a", seed=1),
        make_episode("v", draft, episode_id="a", seed=1),
        make_episode(
            "w", Draft("f", (Message(role="system", content="3"),), draft.task, draft.essence), episode_id="a", seed=1
        ),
    ]
    assert len({reference, *(episode.content for episode in others)}) == 5


def test_noise_is_in_the_task_that_is_frozen() -> None:
    assert make_episode("w", space("f", 9).draft(3, 77), episode_id="a", seed=1).task_json == '{"noise":77,"number":3}'
