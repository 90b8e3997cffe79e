"""What a replay says about what Gym's agent gave back."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from experiment.environments.german_tools.environment import GermanTools
from experiment.environments.nemo_gym.client import GymAddress, Reply
from experiment.environments.nemo_gym.parity import AgentReplay
from experiment.environments.nemo_gym.replay_policy import ReplayPolicy, make_items
from experiment.environments.nemo_gym.tasks import GermanTasks
from experiment.errors import ServiceError
from experiment.rollout.episode import PlayedRollout
from tests.doubles.char_stage import EPISODES, play, solution

ADDRESS = GymAddress(server_url="http://127.0.0.1:9", agent_url="http://127.0.0.1:9", identity="x", pid=1)
Change = Callable[[dict[str, Any]], object]


class Agent:
    """An agent that gives back what it was told, but for a change."""

    def __init__(self, policy: ReplayPolicy, played: PlayedRollout, change: Change, status: int) -> None:
        self._policy, self._played, self._change, self._status = policy, played, change, status

    def post(self, path: str, body: bytes, cookies: Mapping[str, str]) -> Reply:
        (replay,) = self._policy._replays.values()
        output: list[dict[str, Any]] = []
        for number, turn in enumerate(replay.turns):
            output += make_items(number, turn)
            output += [
                {"type": "function_call_output", "call_id": f"turn_{number}_{index}", "output": text}
                for index, text in enumerate(turn.outputs)
            ]
        executed = [
            {"name": c.name, "arguments": dict(c.arguments), "text": c.result.text, "is_error": c.result.is_error}
            for c in self._played.native_calls
        ]
        score = self._played.record.score.model_dump()
        verdict = {**score, "reward": float(score["success"]), "executed": executed, "response": {"output": output}}
        self._change(verdict)
        return Reply(self._status, json.JSONEncoder().encode(verdict).encode(), is_whole=True, cookies=())


@pytest.fixture
def compare() -> Iterator[Callable[..., tuple[str, ...]]]:
    policy = ReplayPolicy.start()
    played = play([solution(episode) for episode in EPISODES[:3]])[2]

    def run(change: Change, status: int = 200) -> tuple[str, ...]:
        replay = AgentReplay(ADDRESS, GermanTasks(GermanTools()), policy)
        replay._client = Agent(policy, played, change, status)
        return replay.compare(EPISODES[2], played.record, played.native_calls)

    yield run
    policy.stop()


def output(verdict: dict[str, Any]) -> list[dict[str, Any]]:
    return verdict["response"]["output"]


def test_same_rollout_has_no_differences(compare: Callable[..., tuple[str, ...]]) -> None:
    assert compare(lambda verdict: None) == ()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda v: output(v)[1].update(output="other"), "turn 0: call 0 is answered 'other'"),
        (lambda v: output(v)[0].update(generation_token_ids=[1]), "comes back with another generation_token_ids"),
        (lambda v: output(v)[-1].update(prompt_token_ids=[1]), "the last message comes back with other token ids"),
        (lambda v: output(v).append({"type": "message"}), "the last message comes back with other token ids"),
        (lambda v: v.update(response=None), "returns no output"),
        (lambda v: v.update(executed=[]), "own log is not that of the rollout"),
        (lambda v: v.update(format=0.25), "the verdict is success=True format=0.25"),
    ],
)
def test_difference_is_named(compare: Callable[..., tuple[str, ...]], change: Change, message: str) -> None:
    (problem,) = compare(change)
    assert message in problem


def test_broken_agent_is_a_fault(compare: Callable[..., tuple[str, ...]]) -> None:
    with pytest.raises(ServiceError, match="status 500"):
        compare(lambda verdict: None, 500)
    with pytest.raises(ServiceError, match="no finite reward"):
        compare(lambda verdict: verdict.update(reward=None))
