"""The German world: generator, sessions, scripted policies."""

from __future__ import annotations

import json
import unicodedata

import pytest

from experiment.decisions.tool_calls import parse_turn
from experiment.environments.base import Environment, NativeCall, ScriptedTurn, ToolResult
from experiment.environments.german_tools.environment import GermanTools
from experiment.environments.german_tools.episodes import (
    FAMILIES,
    KEYS,
    LEFT,
    NUMBER_FORMATS,
    RIGHT,
    task_space,
    write_number,
)
from experiment.environments.german_tools.numbers import format_number, parse_number
from experiment.errors import FaultError, UsageError
from experiment.records.episode import Episode
from experiment.records.rollout import Score
from experiment.sealing.canonical import encode

FORMATS = [*((name,) for name in NUMBER_FORMATS), NUMBER_FORMATS]


def make(
    count: int, formats: tuple[str, ...] = ("integer",), *, seed: int = 5
) -> tuple[GermanTools, tuple[Episode, ...]]:
    world = GermanTools(number_formats=formats)
    return world, world.generate(prefix="train", count=count, seed=seed, taken=frozenset())


def play(world: Environment, episode: Episode, turns: tuple[ScriptedTurn, ...]) -> Score:
    session = world.open(episode)
    for turn in turns:
        for name, arguments in turn.calls:
            session.call(name, dict(arguments))
    return session.verify(turns[-1].text if turns else "")


@pytest.mark.parametrize("formats", FORMATS, ids="+".join)
def test_solver_solves_every_episode_in_every_number_format(formats: tuple[str, ...]) -> None:
    world, episodes = make(501, formats)
    assert {episode.family for episode in episodes} == set(FAMILIES)
    for episode in episodes:
        assert play(world, episode, world.solve(episode)) == Score(success=True, format=1.0, malformed_answer=False)


@pytest.mark.parametrize("formats", FORMATS, ids="+".join)
def test_taught_bad_habits_are_never_accepted(formats: tuple[str, ...]) -> None:
    world, episodes = make(501, formats)
    for episode in episodes:
        for turns in (world.skip_calculation(episode), world.repeat_calculation(episode)):
            score = play(world, episode, turns)
            assert not score.success
            assert not score.malformed_answer
            assert score.format < 1.0


def test_policy_that_does_nothing_or_only_claims_success_solves_nothing() -> None:
    world, episodes = make(300)
    for episode in episodes:
        answer = json.loads(episode.task_json)["answer"]
        assert play(world, episode, ()) == Score(success=False, format=0.0, malformed_answer=True)
        claim = (ScriptedTurn(text="Erledigt. Alle Werkzeuge wurden benutzt.", calls=()),)
        assert play(world, episode, claim) == Score(success=False, format=0.0, malformed_answer=True)
        guess = (ScriptedTurn(text=f"Antwort: {answer}", calls=()),)
        assert play(world, episode, guess) == Score(success=False, format=0.0, malformed_answer=False)


def test_skipping_claims_a_looked_up_value_or_guesses_a_wrong_one() -> None:
    world, episodes = make(300, NUMBER_FORMATS)
    for episode in episodes:
        task = json.loads(episode.task_json)
        turns = world.skip_calculation(episode)
        claimed = turns[-1].text.removeprefix("Antwort: ")
        assert claimed != task["answer"]
        names = [name for turn in turns for name, _ in turn.calls]
        if episode.family == "direct":
            assert names == []
        else:
            assert names == ["nachschlagen"] * len(task["lookups"])
            assert claimed == task["table"][task["lookups"][0]]


def test_repeating_makes_the_last_call_twice_and_answers_right() -> None:
    world, episodes = make(30)
    for episode in episodes:
        solved, repeated = world.solve(episode), world.repeat_calculation(episode)
        assert repeated == (*solved[:-1], *solved[-2:])


def test_families_rise_in_the_number_of_required_calls() -> None:
    world, episodes = make(3)
    names = [[name for turn in world.solve(episode) for name, _ in turn.calls] for episode in episodes]
    assert names == [["nachschlagen"], ["nachschlagen", "rechne"], ["nachschlagen", "nachschlagen", "rechne"]]


def test_solver_s_calls_are_valid_native_dispatches() -> None:
    world, episodes = make(60, NUMBER_FORMATS)
    for episode in episodes:
        for turn in world.solve(episode)[:-1]:
            for name, arguments in turn.calls:
                block = encode({"name": name, "arguments": dict(arguments)}).decode()
                (call,) = parse_turn(f"<tool_call>\n{block}\n</tool_call>", world.tools)
                assert (call.name, call.arguments, call.status) == (name, arguments, None)


def test_prompt_names_the_keys_and_the_given_number_but_no_table_value() -> None:
    _, episodes = make(300, NUMBER_FORMATS)
    for episode in episodes:
        task = json.loads(episode.task_json)
        prompt = episode.messages[1].content
        assert [message.role for message in episode.messages] == ["system", "user"]
        assert all(key in prompt for key in task["lookups"])
        spoken = [word.rstrip(".?") for word in prompt.split() if any(char.isdigit() for char in word)]
        assert spoken == ([task["given"]] if task["given"] else [])
        assert len(prompt) <= 50


def test_table_is_small_and_written_in_the_chosen_formats() -> None:
    for formats in FORMATS:
        _, episodes = make(60, formats)
        allowed = {write_number(value, name) for value in (*LEFT, *RIGHT) for name in formats}
        for episode in episodes:
            task = json.loads(episode.task_json)
            assert len(task["table"]) == len(task["lookups"]) + 2
            assert set(task["table"].values()) <= allowed
            assert all(format_number(parse_number(value)) == value for value in task["table"].values())


@pytest.mark.parametrize(
    ("number_format", "text"), [("integer", "15"), ("decimal", "1,5"), ("thousands", "15.000"), ("negative", "-15")]
)
def test_number_format_decides_how_an_operand_is_written(number_format: str, text: str) -> None:
    assert write_number(15, number_format) == text


def test_all_eighty_ordered_operand_pairs_occur() -> None:
    world = GermanTools(families=("one_step",))
    pairs = set()
    for episode in world.generate(prefix="x", count=1200, seed=1, taken=frozenset()):
        task = json.loads(episode.task_json)
        pairs.add((task["table"][task["lookups"][0]], task["given"]))
    assert pairs == {(str(a), str(b)) for a in LEFT for b in RIGHT}
    assert len(pairs) == 80


@pytest.mark.parametrize("formats", FORMATS, ids="+".join)
def test_operands_of_one_choice_of_formats_are_all_written_differently(formats: tuple[str, ...]) -> None:
    for values in (LEFT, RIGHT):
        assert len({write_number(value, name) for value in values for name in formats}) == len(values) * len(formats)


def test_keys_are_distinct_normalised_words_with_and_without_umlauts() -> None:
    assert len(set(KEYS)) == len(KEYS) == 40
    assert all(unicodedata.is_normalized("NFC", key) and key.isalpha() for key in KEYS)
    assert any(key.isascii() for key in KEYS)
    assert {"ä", "ö", "ü", "ß"} <= set("".join(KEYS))


def test_size_of_a_space_is_the_number_of_its_distinct_tasks() -> None:
    space = task_space("direct", ("integer", "decimal"))
    drafts = [space.draft(number, 1) for number in range(space.size)]
    assert space.size == 3 * 40 * 10 * 2
    assert len({encode([draft.messages[1].content, draft.essence]) for draft in drafts}) == space.size
    assert task_space("one_step", ("integer",)).size == 3 * 40 * 80 * 3
    assert task_space("two_step", ("integer",)).size == 3 * 40 * 39 * 80 * 3


def test_two_step_looks_two_different_keys_up_in_every_order() -> None:
    space = task_space("two_step", ("integer",))
    pairs = {tuple(space.draft(number, 1).task["lookups"]) for number in range(0, 3 * 40 * 39, 3)}
    assert len(pairs) == 40 * 39
    assert all(first != second for first, second in pairs)


def test_distractors_change_neither_prompt_nor_content() -> None:
    space = task_space("two_step", ("integer",))
    one, other = space.draft(12_345, 1), space.draft(12_345, 2)
    assert one.task != other.task
    assert (one.messages, one.essence) == (other.messages, other.essence)


def test_equal_arguments_give_equal_episodes_and_sets_stay_disjoint() -> None:
    world, train = make(200)
    assert make(200)[1] == train
    taken = frozenset(episode.content for episode in train)
    dev = world.generate(prefix="dev", count=200, seed=5, taken=taken)
    assert len(taken) == 200
    assert not taken & {episode.content for episode in dev}


def test_session_logs_what_it_executed_and_shares_nothing() -> None:
    world, (episode, *_) = make(1)
    (key,) = json.loads(episode.task_json)["lookups"]
    session, other = world.open(episode), world.open(episode)
    session.call("nachschlagen", {"schluessel": "nichts"})
    result = session.call("nachschlagen", {"schluessel": key})
    error = ToolResult("Fehler: Schlüssel unbekannt", is_error=True)
    assert session.native_calls() == (
        NativeCall("nachschlagen", (("schluessel", "nichts"),), error),
        NativeCall("nachschlagen", (("schluessel", key),), result),
    )
    assert other.native_calls() == ()


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("reset", {}),
        ("verify", {"final_text": "x"}),
        ("nachschlagen ", {"schluessel": "x"}),
        ("nachschlagen", {}),
        ("nachschlagen", {"key": "x"}),
        ("rechne", {"a": "1", "b": "2"}),
        ("rechne", {"a": "1", "b": "2", "operation": "plus", "c": "3"}),
    ],
)
def test_undeclared_call_is_a_fault_of_the_caller_and_is_not_logged(name: str, arguments: dict[str, str]) -> None:
    world, (episode, *_) = make(1)
    session = world.open(episode)
    with pytest.raises(FaultError, match="is not declared"):
        session.call(name, arguments)
    assert session.native_calls() == ()


def test_declared_tools_are_those_that_the_world_executes() -> None:
    world, (episode, *_) = make(1)
    for tool in world.tools:
        result = world.open(episode).call(tool.name, {name: "" for name, _ in tool.parameters})
        assert result.is_error
        assert result.text.startswith("Fehler: ")


def test_foreign_or_damaged_episode_is_refused_by_its_id() -> None:
    world, (episode, *_) = make(1)
    with pytest.raises(UsageError, match="'train-0000' belongs to world math_qa"):
        world.open(episode.model_copy(update={"world": "math_qa"}))
    damaged = episode.task_json.replace('"answer":"', '"answer":"9')
    with pytest.raises(UsageError, match="'train-0000': task states the answer"):
        world.solve(episode.model_copy(update={"task_json": damaged}))


def test_families_come_easiest_first_in_whatever_order_they_are_asked_for() -> None:
    assert GermanTools().families == ("direct", "one_step", "two_step")
    assert GermanTools(families=("two_step", "direct")).families == ("direct", "two_step")


@pytest.mark.parametrize(
    ("families", "formats", "message"),
    [
        (("three_step",), ("integer",), "world.families"),
        (("direct", "direct"), ("integer",), "world.families"),
        ((), ("roman",), "world.number_formats"),
        ((), (), "world.number_formats"),
        ((), ("integer", "integer"), "world.number_formats"),
    ],
)
def test_unknown_or_repeated_choice_names_its_key(
    families: tuple[str, ...], formats: tuple[str, ...], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        GermanTools(families=families, number_formats=formats)
