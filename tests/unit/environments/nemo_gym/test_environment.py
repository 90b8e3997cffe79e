"""What a session makes of a server's replies: results, refusals, and everything that is no verdict."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from experiment.environments.base import ToolResult
from experiment.environments.german_tools.environment import GermanTools
from experiment.environments.nemo_gym.client import Reply
from experiment.environments.nemo_gym.environment import GymSession, GymWorld, play_probe
from experiment.environments.nemo_gym.tasks import GermanTasks, Probe
from experiment.errors import FaultError, ServiceError, UsageError

TASKS = GermanTasks(GermanTools())
(EPISODE,) = TASKS.generate(prefix="e", count=1, seed=1, taken=frozenset())
SCORE = {"success": False, "format": 0.5, "malformed_answer": False}
VERDICT = {**SCORE, "reward": 0.0, "executed": []}


def reply(body: bytes = b"{}", status: int = 200, *, is_whole: bool = True, **cookies: str) -> Reply:
    return Reply(status=status, body=body, is_whole=is_whole, cookies=tuple(cookies.items()))


def written(value: object) -> bytes:
    return json.JSONEncoder().encode(value).encode()


class Answers:
    """A client that answers each path with one reply."""

    def __init__(self, **replies: Reply) -> None:
        self.replies = {"seed_session": reply(), **replies}
        self.sent: list[tuple[str, Any, dict[str, str]]] = []

    def post(self, path: str, body: bytes, cookies: Mapping[str, str]) -> Reply:
        self.sent.append((path, json.loads(body), dict(cookies)))
        return self.replies[path[1:]]


def session(**replies: Reply) -> tuple[GymSession, Answers]:
    client = Answers(**replies)
    return GymWorld(TASKS, client).open(EPISODE), client


def test_newest_cookies_go_with_every_request() -> None:
    opened, client = session(
        seed_session=reply(a="1", b="1"), nachschlagen=reply(b"12", a="2"), verify=reply(written(VERDICT))
    )
    opened.call("nachschlagen", {"schluessel": "Mehl"})
    with pytest.raises(ServiceError):
        opened.verify("x")
    assert [cookies for _, _, cookies in client.sent] == [{}, {"a": "1", "b": "1"}, {"a": "2", "b": "1"}]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (reply("1.234 €\n".encode()), ToolResult("1.234 €\n", is_error=False)),
        (reply(b"", 204), ToolResult("", is_error=False)),
        (reply(b"no", 400), ToolResult("no", is_error=True)),
        (reply(b'{"detail":"no such person"}', 404), ToolResult('{"detail":"no such person"}', is_error=True)),
        (reply(b"\xff\xfe12\xc3"), ToolResult("\ufffd\ufffd12\ufffd", is_error=False)),
        (reply(b"cut \xe2\x82", is_whole=False), ToolResult("cut \ufffd", is_error=False)),
    ],
)
def test_reply_to_a_tool_is_what_the_agent_sees(given: Reply, expected: ToolResult) -> None:
    opened, _ = session(nachschlagen=given)
    assert opened.call("nachschlagen", {"schluessel": "Mehl"}) == expected
    (logged,) = opened.native_calls()
    assert (logged.name, logged.arguments, logged.result) == ("nachschlagen", (("schluessel", "Mehl"),), expected)


@pytest.mark.parametrize(
    "given", [reply(b"", 500), reply(b"", 503), reply(b"", 302), reply(b"", 409), reply(b'{"detail":"Not Found"}', 404)]
)
def test_broken_reply_to_a_tool_is_a_fault_and_no_call(given: Reply) -> None:
    opened, _ = session(nachschlagen=given)
    with pytest.raises(ServiceError, match=f"status {given.status}"):
        opened.call("nachschlagen", {"schluessel": "Mehl"})
    assert opened.native_calls() == ()


def test_session_that_cannot_be_seeded_is_a_fault() -> None:
    with pytest.raises(ServiceError, match="/seed_session with status 422"):
        session(seed_session=reply(b"", 422))


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("seed_session", {}), ("verify", {}), ("nachschlagen", {}), ("nachschlagen", {"a": "1"}), ("../x", {}), ("", {})],
)
def test_only_declared_calls_reach_the_service(name: str, arguments: dict[str, str]) -> None:
    opened, client = session()
    with pytest.raises(FaultError, match="is not declared"):
        opened.call(name, arguments)
    assert [path for path, _, _ in client.sent] == ["/seed_session"]


def test_verifier_gets_the_row_and_the_whole_response() -> None:
    executed = [{"name": "nachschlagen", "arguments": {"schluessel": "Öl"}, "text": "12", "is_error": False}]
    opened, client = session(nachschlagen=reply(b"12"), verify=reply(written({**VERDICT, "executed": executed})))
    opened.call("nachschlagen", {"schluessel": "Öl"})
    score = opened.verify("Antwort: 12")
    assert score.model_dump() == SCORE
    _, body, _ = client.sent[-1]
    assert {name: value for name, value in body.items() if name != "response"} == client.sent[0][1]
    assert [item["type"] for item in body["response"]["output"]] == ["function_call", "function_call_output", "message"]
    call, output, message = body["response"]["output"]
    assert (call["arguments"], call["call_id"], output["output"]) == ('{"schluessel":"Öl"}', output["call_id"], "12")
    assert message["content"][0]["text"] == "Antwort: 12"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (reply(written(VERDICT), 500), "status 500"),
        (reply(b"not JSON"), "answers /verify with"),
        (reply(b"[]"), "answers /verify with"),
        (reply(written(VERDICT), is_whole=False), "answers /verify with"),
        (reply(b"{}"), "no log of its calls"),
        (reply(written({**VERDICT, "executed": [{"name": "x"}]})), "no log of its calls"),
        (reply(written({**VERDICT, "executed": [5]})), "no log of its calls"),
        (reply(written({**VERDICT, "reward": None})), "no finite reward"),
        (reply(written({**VERDICT, "reward": True})), "no finite reward"),
        (reply(written({**VERDICT, "reward": float("nan")})), "no finite reward"),
        (reply(written({**VERDICT, "reward": 1.0})), r"reward 1\.0 and success False"),
        (reply(written({**VERDICT, "success": "no"})), "is no score"),
        (reply(written({**VERDICT, "format": None})), "is no score"),
    ],
)
def test_what_is_no_verdict_is_a_fault_and_never_a_score(given: Reply, message: str) -> None:
    opened, _ = session(verify=given)
    with pytest.raises(ServiceError, match=message):
        opened.verify("Antwort: 1")
    with pytest.raises(FaultError, match="judged once"):
        opened.verify("Antwort: 1")


def test_session_is_closed_where_the_server_can() -> None:
    opened, client = session(close_session=reply())
    opened.close()
    opened.close()
    assert [path for path, _, _ in client.sent] == ["/seed_session", "/close_session"]


def test_log_of_the_server_has_to_be_that_of_the_client() -> None:
    opened, _ = session(nachschlagen=reply(b"12"), verify=reply(written(VERDICT)))
    opened.call("nachschlagen", {"schluessel": "Mehl"})
    with pytest.raises(ServiceError, match="executed 0 calls, which are not the 1 made here"):
        opened.verify("Antwort: 12")


def test_probe_with_another_verdict_is_a_fault() -> None:
    world = GymWorld(TASKS, Answers(verify=reply(written(VERDICT))))
    play_probe(world, Probe(EPISODE, (), success=False))
    play_probe(world, Probe(EPISODE, (), success=None))
    with pytest.raises(ServiceError, match="as False, not True"):
        play_probe(world, Probe(EPISODE, (), success=True))


def test_world_without_a_service_makes_and_solves_episodes() -> None:
    world = GymWorld(TASKS)
    here = GermanTools()
    made = world.generate(prefix="e", count=6, seed=4, taken=frozenset())
    assert made == here.generate(prefix="e", count=6, seed=4, taken=frozenset())
    assert [world.solve(each) for each in made] == [here.solve(each) for each in made]
    assert (world.name, world.tools, world.families) == ("nemo_gym", here.tools, here.families)
    with pytest.raises(UsageError, match="without a service"):
        world.open(made[0])
