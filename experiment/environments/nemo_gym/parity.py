"""Proof that driving the resources server directly changes nothing: finished rollouts again, through Gym's own agent.

Gym's `simple_agent` plays the rollout with a policy endpoint that repeats every turn, token ids included. The tools
have to answer the same, the agent has to hand back the same ids, and the verifier has to give the same verdict.

Replayed are the calls that reached the world. A call that was refused before it did, or a turn that holds no other, is
not sent: the agent would make a request of it, which the rollout loop does not.
"""

from __future__ import annotations

import http.client
from collections.abc import Mapping, Sequence
from itertools import islice

from experiment.environments.base import NativeCall
from experiment.environments.nemo_gym.client import GymAddress, GymClient
from experiment.environments.nemo_gym.messages import write_arguments
from experiment.environments.nemo_gym.replay_policy import (
    KEY,
    TOKEN_FIELDS,
    ReplayedTurn,
    ReplayPolicy,
    compare_turn,
    make_items,
)
from experiment.environments.nemo_gym.tasks import GymTasks
from experiment.errors import ServiceError, UsageError
from experiment.records.episode import Episode
from experiment.records.rollout import Rollout
from experiment.sealing.arrays import decode_array
from experiment.sealing.canonical import encode

_REACHED_WORLD = frozenset({"delivered", "world_error", "undelivered"})
_SHOWN = 300


class AgentReplay:
    """Replays rollouts through the agent of a service that was started with `policy.place`.

    Args:
        address: The service.
        tasks: The world that it serves.
        policy: The endpoint that the service's agent asks.
        patience_s: How long one rollout may take.
    """

    def __init__(
        self, address: GymAddress, tasks: GymTasks, policy: ReplayPolicy, *, patience_s: float = 120.0
    ) -> None:
        if address.agent_url is None:
            msg = f"the NeMo Gym service {address.pid} hosts no agent"
            raise UsageError(msg, remedy="Start the service with a policy endpoint.")
        self._client = GymClient(address, base=address.agent_url, patience_s=patience_s)
        self._tasks = tasks
        self._policy = policy

    def compare(self, episode: Episode, rollout: Rollout, native_calls: Sequence[NativeCall]) -> tuple[str, ...]:
        """Return what differs when the agent plays the rollout, one sentence each; nothing where all is the same.

        Args:
            episode: What was played.
            rollout: The finished rollout, with a score.
            native_calls: The world's own log of it.

        Raises:
            ServiceError: The service broke.
            UsageError: The rollout has no score, or the log is not its own.
        """
        key = f"{rollout.episode}/{rollout.rollout}"
        if rollout.score is None:
            msg = f"rollout {key} has no score that a replay could be compared with"
            raise UsageError(msg)
        turns = self._turns(rollout, native_calls)
        replay = self._policy.add(key, turns)
        try:
            verdict = self._run(episode, key)
        except ServiceError:
            if replay.differences:
                return tuple(dict.fromkeys(replay.differences))
            raise
        finally:
            self._policy.remove(key)
        found = [*replay.differences, *_output_differences(turns, verdict)]
        score = self._tasks.read_score(verdict, turns[-1].text)
        if score != rollout.score:
            found.append(f"the verdict is {score}, not {rollout.score}")
        executed = self._tasks.read_log(verdict)
        if executed is not None and executed != tuple(native_calls):
            found.append("the server's own log is not that of the rollout")
        return tuple(dict.fromkeys(found))

    def close(self) -> None:
        """Close the connections that are kept."""
        self._client.close()

    def _run(self, episode: Episode, key: str) -> Mapping[str, object]:
        row = self._tasks.row(episode)
        request = row["responses_create_params"]
        row["responses_create_params"] = {**request, "metadata": {KEY: key}}  # type: ignore[dict-item]
        reply = self._client.post("/run", encode(row), {})
        verdict = reply.read_object() if reply.status == http.client.OK else None
        if verdict is None:
            msg = f"NeMo Gym's agent answers rollout {key} with status {reply.status}: {reply.body[:_SHOWN]!r}"
            raise ServiceError(msg)
        return verdict

    def _turns(self, rollout: Rollout, native_calls: Sequence[NativeCall]) -> list[ReplayedTurn]:
        context = decode_array(rollout.prompt_ids, "int32").tolist()
        natives = iter(native_calls)
        turns: list[ReplayedTurn] = []
        for number, turn in enumerate(rollout.turns):
            sampled = decode_array(turn.sampled_ids, "int32").tolist()
            reached = [event.name for event in turn.calls if event.status in _REACHED_WORLD]
            executed = list(islice(natives, len(reached)))
            if [native.name for native in executed] != reached:
                msg = f"rollout {rollout.episode}/{rollout.rollout}: its calls are not those of the world's log"
                raise UsageError(msg)
            if executed:
                turns.append(self._replayed(executed, "", context, sampled, turn.sampled_logprobs))
            if number == len(rollout.turns) - 1:
                text = turn.text if rollout.end == "answer" else ""
                turns.append(self._replayed([], text, context, sampled, turn.sampled_logprobs))
            context = [*context, *sampled, *decode_array(turn.observation_ids, "int32").tolist()]
        return turns

    def _replayed(
        self, executed: Sequence[NativeCall], text: str, context: Sequence[int], sampled: Sequence[int], logprobs: str
    ) -> ReplayedTurn:
        return ReplayedTurn(
            calls=tuple(
                (call.name, write_arguments(self._tasks.arguments(call.name, dict(call.arguments))))
                for call in executed
            ),
            outputs=tuple(call.result.text for call in executed),
            text=text,
            prompt_ids=tuple(context),
            sampled_ids=tuple(sampled),
            logprobs=tuple(decode_array(logprobs, "float32").tolist()),
        )


def _output_differences(turns: Sequence[ReplayedTurn], verdict: Mapping[str, object]) -> list[str]:
    """Return what differs in the items that the agent returns."""
    response = verdict.get("response")
    output = response.get("output") if isinstance(response, dict) else None
    if not isinstance(output, list):
        return ["the agent returns no output"]
    found, position = [], 0
    for number, turn in enumerate(turns[:-1]):
        items = output[position : position + 2 * len(turn.calls)]
        found.append(compare_turn(number, turn, items))
        position += 2 * len(turn.calls)
    rest = output[position:]
    (last,) = make_items(len(turns) - 1, turns[-1])
    if len(rest) != 1 or any(rest[0].get(name) != last[name] for name in TOKEN_FIELDS):
        found.append("the last message comes back with other token ids")
    return [each for each in found if each]
