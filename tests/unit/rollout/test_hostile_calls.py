"""Calls as hostile or unlucky policies write them, and tools that misbehave: no other rollout is touched."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from experiment.decisions.selection import DevResult, decide
from experiment.policies.base import SampledTurn, TurnRequest
from experiment.records.rollout import Score
from experiment.rollout.alignment import verify_alignment
from experiment.rollout.episode import Attempt, PlayedRollout, RolloutLoop
from experiment.rollout.evidence import item_outcomes
from experiment.sealing.canonical import encode, encode_record
from tests.doubles.char_stage import CHAT, EPISODES, SAMPLING, WORLD, Turn, play, seed, solution, turn_ids
from tests.doubles.function_world import FunctionWorld, Tools


def call(name: str, **arguments: str) -> str:
    """A call as a turn's text."""
    return f"<tool_call>\n{encode({'name': name, 'arguments': arguments}).decode()}\n</tool_call>"


def statuses(played: PlayedRollout) -> list[str]:
    return [event.status for turn in played.record.turns for event in turn.calls]


UNREADABLE = (
    ('{"name":"calc","arguments":{"a":1,}}', "invalid_json"),
    ('{"name":"calc"}', "incomplete"),
    ("{}", "incomplete"),
    ('{"arguments":{}}', "incomplete"),
    ("", "invalid_json"),
    ('{"name":"calc","arguments":{"a":"1"}}{"name":"calc","arguments":{"a":"1"}}', "invalid_json"),
)


def test_six_unreadable_calls_leave_the_four_healthy_rollouts_of_their_batch_as_they_are() -> None:
    scripts: list[list[Turn]] = [[f"<tool_call>{raw}</tool_call>", "Antwort: 1"] for raw, _ in UNREADABLE]
    healthy = [solution(episode) for episode in EPISODES[6:10]]
    played = play([*scripts, *healthy])
    for each, (raw, status) in zip(played[:6], UNREADABLE, strict=True):
        verify_alignment(each, CHAT, WORLD.tools)
        assert statuses(each) == [status], raw
        # Apart from errors that the world itself reports.
        assert (each.record.invalid_calls, each.record.tool_errors, each.native_calls) == (1, 0, ())
        assert each.record.end == "answer"
    assert played[6:] == play([*[["Antwort: 1"]] * 6, *healthy])[6:]
    assert [each.record.score for each in played[6:]] == [Score(success=True, format=1.0, malformed_answer=False)] * 4


def table() -> Tools:
    """A table of nine rows, and a calculator."""
    base = sqlite3.connect(":memory:", check_same_thread=False)
    base.execute("CREATE TABLE t (id INTEGER)")
    base.executemany("INSERT INTO t VALUES (?)", [(number,) for number in range(1, 10)])

    def run_sql(statement: str) -> str:
        return str(base.execute(statement).fetchall())

    def calculator(a: str, b: str) -> str:
        return str(int(a) + int(b))

    return {"run_sql": run_sql, "calculator": calculator}


def test_misspelled_tool_is_an_invalid_call_that_the_ranking_sees() -> None:
    world = FunctionWorld(table)
    assert [tool.name for tool in world.tools] == ["run_sql", "calculator"]
    clean = [call("calculator", a="1", b="2"), "Antwort: 1"]
    for odd in (call("run_SQL", statement="SELECT 1"), call("calculator ", a="1", b="2")):
        (odd_one,) = play([[odd, "Antwort: 1"]], world=world)
        (clean_one,) = play([clean], world=world)
        verify_alignment(odd_one, CHAT, world.tools)
        assert (statuses(odd_one), odd_one.native_calls) == (["unknown_tool"], ())
        assert odd_one.record.turns[0].calls[0].observation == "Fehler: Dieses Werkzeug gibt es nicht."
        maths = item_outcomes([clean_one.record])
        misspelled, correct = (
            DevResult(step, item_outcomes([each.record]), maths) for step, each in ((64, odd_one), (128, clean_one))
        )
        (failed,) = play([["Antwort: 2"]], world=world)
        baseline = DevResult(0, item_outcomes([failed.record]), maths)
        verdict = decide("grpo", baseline, [misspelled, correct], 256)
        # Equal successes: were the refusal logged as a success, the earlier step would be ahead.
        assert [(score.step, score.tool_errors) for score in verdict.candidates] == [(128, 0), (64, 1)]


def test_results_follow_the_order_of_the_calls_even_where_calls_share_tool_arguments_or_id() -> None:
    world = FunctionWorld(table)
    turn = "\n".join(
        (
            call("calculator", a="1", b="1"),
            call("run_sql", statement="SELECT max(id) FROM t"),
            call("calculator", a="2", b="2"),
        )
    )
    shared = '<tool_call>{"id":"call_1","name":"calculator","arguments":{"a":"A","b":"0"}}</tool_call>'
    twice = shared.replace("A", "7") + shared.replace("A", "8")
    (played,) = play([[turn, twice, "Antwort: 1"]], world=world)
    verify_alignment(played, CHAT, world.tools)
    shown = [[event.observation for event in each.calls] for each in played.record.turns]
    assert shown == [["2", "[(9,)]", "4"], ["7", "8"], []]
    assert [native.result.text for native in played.native_calls] == ["2", "[(9,)]", "4", "7", "8"]


class Cutting:
    """Plays one turn, cut after so many tokens."""

    def __init__(self, turn: str, tokens: int) -> None:
        self._ids = turn_ids(turn)[:tokens]

    def sample(self, requests: Sequence[TurnRequest]) -> list[SampledTurn]:
        return [SampledTurn(self._ids, (0.0,) * len(self._ids), "length") for _ in requests]


def test_half_a_statement_is_never_executed_wherever_the_limit_falls() -> None:
    world = FunctionWorld(table)
    turn = call("run_sql", statement="DELETE FROM t WHERE id = 5")
    whole = turn_ids(turn)
    # Token by token, so also right after `DELETE FROM t`.
    for cut in range(1, len(whole)):
        loop = RolloutLoop(Cutting(turn, cut), CHAT, world, SAMPLING)
        (played,) = loop.play([Attempt(EPISODES[0], 0)], seed)
        verify_alignment(played, CHAT, world.tools)
        assert played.native_calls == ()
        assert (played.record.end, played.record.turns[0].finish) == ("length", "length")
        assert statuses(played) == ["not_executed" if cut == len(whole) - 1 else "invalid_json"]
        assert world.sessions[-1].tools["run_sql"]("SELECT count(*) FROM t") == "[(9,)]"
    (played,) = play([[turn, "Antwort: 1"]], world=world)
    assert statuses(played) == ["delivered"]
    assert world.sessions[-1].tools["run_sql"]("SELECT count(*) FROM t") == "[(8,)]"


EXPRESSIONS = ("9**9**9", "(((9**64)**64)**64)**64", "10**5000", "1/0", "0.1+0.2", "(" * 2000 + "1" + ")" * 2000)


def test_hostile_expressions_get_an_error_while_the_rollouts_beside_them_go_on() -> None:
    scripts = [[call("rechne", a=each, b="1", operation="plus"), "Antwort: 1"] for each in EXPRESSIONS]
    healthy = [solution(episode) for episode in EPISODES[6:10]]
    sampling = SAMPLING.model_copy(update={"max_turn_tokens": 5000, "max_completion_tokens": 10_000})
    played = play([*scripts, *healthy], sampling=sampling)
    for each in played[:6]:
        verify_alignment(each, CHAT, WORLD.tools)
        assert (statuses(each), each.record.end) == (["world_error"], "answer")
    said = [each.record.turns[0].calls[0].observation for each in played[:6]]
    assert said == ["Fehler: a ist keine Zahl"] * 5 + ["Fehler: a ist zu lang"]
    assert all(each.record.score and each.record.score.success for each in played[6:])


ODD: dict[str, tuple[Callable[[], Any], str]] = {
    "nothing": (lambda: None, "the tool gave back NoneType instead of text"),
    "an empty list": (list, "the tool gave back list instead of text"),
    "parts of a message": (lambda: [{"type": "image"}], "the tool gave back list instead of text"),
    "an object": (dict, "the tool gave back dict instead of text"),
    "a number": (lambda: 84, "the tool gave back int instead of text"),
    "bytes": (lambda: b"84", "the tool gave back bytes instead of text"),
    "an exit": (lambda: exit_with(0), "SystemExit: 0"),
    "an error": (lambda: exit_with("\ud800" * 5000), "SystemExit: " + "\ufffd" * 1988 + " […]"),
    "a mistake": (lambda: 1 // 0, "ZeroDivisionError: integer division or modulo by zero"),
}


def exit_with(code: object) -> None:
    raise SystemExit(code)


@pytest.mark.parametrize("name", ODD)
def test_tool_that_gives_back_no_text_ends_its_own_rollout_without_a_verdict(name: str) -> None:
    make, said = ODD[name]

    def odd() -> Any:
        return make()

    world = FunctionWorld(lambda: {"odd": odd, "even": lambda: "84"})
    broken, healthy = play([[call("odd"), "Antwort: 1"], [call("even"), "Antwort: 1"]], world=world)
    verify_alignment(broken, CHAT, world.tools)
    assert (broken.record.score, broken.record.end, statuses(broken)) == (None, "fault", ["infrastructure"])
    assert broken.record.turns[0].calls[0].observation == said
    assert encode_record(broken.record)
    assert healthy.record.score == Score(success=True, format=1.0, malformed_answer=False)


def test_interrupt_inside_a_tool_is_no_tool_error() -> None:
    def interrupted() -> str:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        play([[call("odd"), "Antwort: 1"]], world=FunctionWorld(lambda: {"odd": interrupted}))


def test_twenty_megabytes_of_tool_text_are_shown_up_to_the_limit() -> None:
    world = FunctionWorld(lambda: {"long": lambda: "ü" * 20_000_000})
    (played,) = play([[call("long"), "Antwort: 1"]], world=world)
    verify_alignment(played, CHAT, world.tools)
    assert played.record.turns[0].calls[0].observation == "ü" * SAMPLING.max_observation_chars + " […]"
    assert len(encode_record(played.record)) < 50_000
    assert played.record.end == "answer"


@pytest.mark.parametrize("name", ["reset", "verify", "call", "native_calls", "__init__", "open"])
def test_tool_named_like_a_method_of_the_session_is_a_tool_and_nothing_else(name: str) -> None:
    world = FunctionWorld(lambda: {name: lambda: "just a tool"})
    (played,) = play([[call(name), "Antwort: 1"]], world=world)
    verify_alignment(played, CHAT, world.tools)
    assert played.record.turns[0].calls[0].observation == "just a tool"
    assert [native.name for native in played.native_calls] == [name]
    (unasked,) = play([[call(name), "Antwort: 1"]])
    assert statuses(unasked) == ["unknown_tool"]
