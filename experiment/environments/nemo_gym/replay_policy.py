"""A policy endpoint on the loopback interface that plays finished rollouts again, for NeMo Gym's own agent.

A request names its rollout in `metadata`, and says by what it echoes how far the rollout is; the same request always
gets the same reply. Whatever does not fit is noted for the rollout and answered with status 400, which the agent passes
on and never repeats.
"""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from experiment.environments.nemo_gym.messages import envelope, make_call, make_message
from experiment.sealing.canonical import encode

KEY = "episode_key"
TOKEN_FIELDS = ("prompt_token_ids", "generation_token_ids", "generation_log_probs")


@dataclass(frozen=True, slots=True)
class ReplayedTurn:
    """What the policy said in one turn and what it was shown for it."""

    calls: tuple[tuple[str, str], ...]
    """(tool, arguments as JSON text); empty in the last turn."""
    outputs: tuple[str, ...]
    """Per call what the world answered."""
    text: str
    prompt_ids: tuple[int, ...]
    sampled_ids: tuple[int, ...]
    logprobs: tuple[float, ...]


@dataclass(slots=True)
class Replay:
    """One rollout to play again."""

    turns: tuple[ReplayedTurn, ...]
    differences: list[str] = field(default_factory=list)


class ReplayPolicy:
    """The endpoint; `start` makes one, `stop` ends it."""

    def __init__(self, server: ThreadingHTTPServer) -> None:
        self._server = server
        self._replays: dict[str, Replay] = {}

    @classmethod
    def start(cls) -> ReplayPolicy:
        """Return an endpoint that listens at a port that the kernel chose."""
        server = _Server(("127.0.0.1", 0), _Handler)
        policy = cls(server)
        server.policy = policy
        threading.Thread(target=server.serve_forever, daemon=True, name="replay-policy").start()
        return policy

    @property
    def place(self) -> tuple[str, int]:
        """Host and port, for the configuration of the agent."""
        return "127.0.0.1", self._server.server_address[1]

    def add(self, key: str, turns: Sequence[ReplayedTurn]) -> Replay:
        """Have the endpoint play `turns` for requests with this key."""
        self._replays[key] = Replay(tuple(turns))
        return self._replays[key]

    def remove(self, key: str) -> None:
        """Forget a rollout."""
        self._replays.pop(key, None)

    def stop(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()

    def answer(self, body: bytes) -> tuple[int, dict[str, Any]]:
        """Return status and reply to a request."""
        try:
            request = json.loads(body)
            key, items = request["metadata"][KEY], request["input"]
            replay = self._replays[key]
        except (ValueError, KeyError, TypeError) as error:
            return 400, {"error": f"no rollout to replay: {error!r}"}
        echoed = [item for item in items if item.get("type") in {"function_call", "function_call_output"}]
        number, problem = _compare_echo(replay.turns, echoed)
        if problem or number >= len(replay.turns):
            replay.differences.append(problem or f"the agent asks for turn {number} of {len(replay.turns)}")
            return 400, {"error": replay.differences[-1]}
        return 200, envelope(f"{key}-{number}", make_items(number, replay.turns[number]))


def make_items(number: int, turn: ReplayedTurn) -> list[dict[str, object]]:
    """Return a turn's items; the last one carries its token ids."""
    items = [make_call(f"turn_{number}_{index}", *call) for index, call in enumerate(turn.calls)]
    items = items or [make_message(f"turn_{number}", turn.text)]
    values = (list(turn.prompt_ids), list(turn.sampled_ids), list(turn.logprobs))
    items[-1] |= dict(zip(TOKEN_FIELDS, values, strict=True))
    return items


def _compare_echo(turns: Sequence[ReplayedTurn], echoed: Sequence[Mapping[str, object]]) -> tuple[int, str]:
    """Return which turn is asked for, and the first difference in what came before; empty where there is none."""
    position = 0
    for number, turn in enumerate(turns):
        if position == len(echoed):
            return number, ""
        problem = compare_turn(number, turn, echoed[position : position + 2 * len(turn.calls)])
        if problem or not turn.calls:
            return number, problem or f"the agent goes on after the last message, turn {number}"
        position += 2 * len(turn.calls)
    return len(turns), ""


def compare_turn(number: int, turn: ReplayedTurn, echoed: Sequence[Mapping[str, object]]) -> str:
    """Return the first difference of a turn's calls, ids and outputs from what came back; empty where there is none."""
    items, count = make_items(number, turn), len(turn.calls)
    if len(echoed) != 2 * count:
        return f"turn {number}: {len(echoed)} items for {count} calls and their outputs"
    for item, back in zip(items, echoed[:count], strict=True):
        wrong = sorted(name for name, value in item.items() if back.get(name) != value)
        if wrong:
            return f"turn {number}: call '{item['name']}' comes back with another {', '.join(wrong)}"
    for index, (expected, back) in enumerate(zip(turn.outputs, echoed[count:], strict=True)):
        if back.get("call_id") != f"turn_{number}_{index}" or back.get("output") != expected:
            return f"turn {number}: call {index} is answered {back.get('output')!r}, not {expected!r}"
    return ""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    policy: ReplayPolicy

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - as the library has it
        """Say nothing: an agent that hangs up is noticed where its result is missing."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1

    def do_POST(self) -> None:
        """Answer one request for a turn."""
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        server: Any = self.server
        status, reply = server.policy.answer(body) if self.path == "/v1/responses" else (404, {"error": self.path})
        data = encode(reply)
        self.send_response(status, http.client.responses[status])
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
        self.wfile.flush()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as the library has it
        """Say nothing."""
