"""The endpoint that plays rollouts again answers by what it is told, the same each time, and says what differs."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from typing import Any

import pytest

from experiment.environments.nemo_gym.replay_policy import ReplayedTurn, ReplayPolicy

CALLS = ReplayedTurn((("a", "{}"), ("b", '{"x":"1"}')), ("out a", "out b"), "", (1, 2), (3, 4), (-0.5, -0.25))
LAST = ReplayedTurn((), (), "Antwort: 5", (1, 2, 3, 4, 9), (5,), (-0.125,))
PROMPT = [{"role": "user", "content": "Frage"}]


@pytest.fixture
def policy() -> Iterator[ReplayPolicy]:
    policy = ReplayPolicy.start()
    yield policy
    policy.stop()


def ask(policy: ReplayPolicy, items: list[Any], key: str = "e/0", path: str = "/v1/responses") -> tuple[int, Any]:
    connection = http.client.HTTPConnection(*policy.place, timeout=10)
    body = json.JSONEncoder().encode({"metadata": {"episode_key": key}, "input": items})
    connection.request("POST", path, body)
    response = connection.getresponse()
    status, reply = response.status, json.loads(response.read())
    connection.close()
    return status, reply


def outputs(*texts: str) -> list[dict[str, Any]]:
    return [
        {"type": "function_call_output", "call_id": f"turn_0_{number}", "output": text}
        for number, text in enumerate(texts)
    ]


def test_turns_follow_from_what_is_echoed_and_repeat(policy: ReplayPolicy) -> None:
    replay = policy.add("e/0", [CALLS, LAST])
    status, first = ask(policy, PROMPT)
    assert (status, first["output"][1]["generation_token_ids"]) == (200, [3, 4])
    assert "prompt_token_ids" not in first["output"][0]
    assert ask(policy, PROMPT) == (200, first)
    status, last = ask(policy, [*PROMPT, *first["output"], *outputs("out a", "out b")])
    assert (status, last["output"][0]["content"][0]["text"]) == (200, "Antwort: 5")
    assert last["output"][0]["prompt_token_ids"] == [1, 2, 3, 4, 9]
    assert replay.differences == []


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("generation_token_ids", [3, 5]),
        ("prompt_token_ids", [1]),
        ("generation_log_probs", [-0.5, -0.3]),
        ("arguments", "{ }"),
        ("name", "c"),
    ],
)
def test_other_echo_is_refused_and_named(policy: ReplayPolicy, field: str, value: object) -> None:
    replay = policy.add("e/0", [CALLS, LAST])
    _, first = ask(policy, PROMPT)
    first["output"][1][field] = value
    status, _ = ask(policy, [*PROMPT, *first["output"], *outputs("out a", "out b")])
    assert status == 400
    assert replay.differences == [f"turn 0: call 'b' comes back with another {field}"]


@pytest.mark.parametrize(
    ("shown", "message"),
    [
        (("out a", "other"), "turn 0: call 1 is answered 'other', not 'out b'"),
        (("out a",), "turn 0: 3 items for 2 calls and their outputs"),
        ((), "turn 0: 2 items for 2 calls and their outputs"),
    ],
)
def test_other_output_is_refused_and_named(policy: ReplayPolicy, shown: tuple[str, ...], message: str) -> None:
    replay = policy.add("e/0", [CALLS, LAST])
    _, first = ask(policy, PROMPT)
    assert ask(policy, [*first["output"], *outputs(*shown)])[0] == 400
    assert replay.differences == [message]


def test_turn_too_many_is_refused(policy: ReplayPolicy) -> None:
    replay = policy.add("e/0", [CALLS])
    _, first = ask(policy, PROMPT)
    assert ask(policy, [*first["output"], *outputs("out a", "out b")])[0] == 400
    assert replay.differences == ["the agent asks for turn 1 of 1"]


def test_unknown_rollout_and_other_path_are_refused(policy: ReplayPolicy) -> None:
    policy.add("e/0", [LAST])
    assert ask(policy, PROMPT, key="e/1")[0] == 400
    assert ask(policy, PROMPT, path="/v1/chat")[0] == 404
    policy.remove("e/0")
    assert ask(policy, PROMPT)[0] == 400
