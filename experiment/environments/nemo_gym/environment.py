"""A world whose sessions live in a NeMo Gym resources server, driven directly: seed, tools, verify.

What the agent sees is what a tool's reply holds, byte for byte, in the way of Gym's own agent. Replies to tools:

| status | is |
|---|---|
| 200 to 299 | the result |
| 400, 403, 404, 422 | the tool's refusal, which the agent sees, as an error of the world |
| 404 in the words of a missing route, any other | a broken service |

Bytes that are no UTF-8 are shown as U+FFFD; of a reply beyond the client's limit the start is shown.
"""

from __future__ import annotations

import http.client
from collections.abc import Mapping, Sequence

from experiment.environments.base import STANDARD, NativeCall, Script, ScriptedTurn, ToolResult
from experiment.environments.nemo_gym.client import GymClient, Reply
from experiment.environments.nemo_gym.messages import make_response, write_arguments
from experiment.environments.nemo_gym.tasks import WORLD, GymTasks, Probe
from experiment.environments.scripted import play_script
from experiment.errors import FaultError, ServiceError, UsageError
from experiment.records.episode import Episode, ToolSpec
from experiment.records.rollout import Score
from experiment.sealing.canonical import encode

_REFUSALS = frozenset({400, 403, 404, 422})
_NO_ROUTE = b'{"detail":"Not Found"}'
_SHOWN = 200


class GymSession:
    """One rollout's session in the resources server, with cookies of its own."""

    def __init__(self, client: GymClient, tasks: GymTasks, episode: Episode) -> None:
        self._client = client
        self._tasks = tasks
        self._parameters = {tool.name: sorted(name for name, _ in tool.parameters) for tool in tasks.tools}
        self._row = encode(tasks.row(episode))
        self._cookies: dict[str, str] = {}
        self._log: list[NativeCall] = []
        self._written: list[str] = []
        self._is_judged = False
        _require_success(self._post("/seed_session", self._row), "/seed_session")

    def call(self, name: str, arguments: Mapping[str, str]) -> ToolResult:
        """Execute a declared tool and log the call with its result.

        Raises:
            ServiceError: The service broke.
            FaultError: The caller dispatched a call that the world does not declare.
        """
        if sorted(arguments) != self._parameters.get(name):
            msg = f"world {WORLD}: call of '{name}' with parameters {sorted(arguments)} is not declared"
            raise FaultError(msg)
        written = write_arguments(self._tasks.arguments(name, arguments))
        reply = self._post(f"/{name}", written.encode("utf-8"))
        is_refusal = reply.status in _REFUSALS and reply.body != _NO_ROUTE
        if not is_refusal:
            _require_success(reply, f"/{name}")
        result = ToolResult(text=reply.body.decode("utf-8", "replace"), is_error=is_refusal)
        self._log.append(NativeCall(name, tuple(sorted(arguments.items())), result))
        self._written.append(written)
        return result

    def native_calls(self) -> Sequence[NativeCall]:
        """Return the executed calls in order."""
        return tuple(self._log)

    def verify(self, final_text: str) -> Score:
        """Have the server judge the rollout; the session ends with that.

        Raises:
            ServiceError: The service broke, or executed other calls than were made here.
            FaultError: The rollout has been judged before.
        """
        verdict = self.judge(final_text)
        executed = self._tasks.read_log(verdict)
        if executed is not None and executed != tuple(self._log):
            msg = f"the NeMo Gym service executed {len(executed)} calls, which are not the {len(self._log)} made here"
            raise ServiceError(msg)
        return self._tasks.read_score(verdict, final_text)

    def judge(self, final_text: str) -> Mapping[str, object]:
        """Return the server's whole verdict; the session ends with that.

        Raises:
            ServiceError: The service broke.
            FaultError: The rollout has been judged before.
        """
        if self._is_judged:
            msg = f"world {WORLD}: a rollout is judged once, and not when it has been closed"
            raise FaultError(msg)
        self._is_judged = True
        response = encode(make_response(self._log, self._written, final_text))
        # The row is canonical JSON, an object that is not empty.
        reply = self._post("/verify", b'{"response":' + response + b"," + self._row[1:])
        _require_success(reply, "/verify")
        verdict = reply.read_object()
        if verdict is None:
            msg = f"the NeMo Gym service answers /verify with {reply.body[:_SHOWN]!r}"
            raise ServiceError(msg)
        return verdict

    def close(self) -> None:
        """Have the server forget a session that will not be judged, where it can; a second call does nothing.

        Raises:
            ServiceError: The service broke.
        """
        if self._is_judged or not self._tasks.can_close:
            return
        self._is_judged = True
        _require_success(self._post("/close_session", b"{}"), "/close_session")

    def _post(self, path: str, body: bytes) -> Reply:
        reply = self._client.post(path, body, self._cookies)
        self._cookies.update(reply.cookies)
        return reply


class GymWorld:
    """A world behind a NeMo Gym service.

    Episodes and scripts need no service; `open` does.

    Args:
        tasks: What the world knows without the service.
        client: The running service.
    """

    def __init__(self, tasks: GymTasks, client: GymClient | None = None) -> None:
        self._tasks = tasks
        self._client = client

    @property
    def name(self) -> str:
        """Name of the world, as in the recipe."""
        return WORLD

    @property
    def families(self) -> tuple[str, ...]:
        """The families drawn from, easiest first."""
        return self._tasks.families

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """The tools that the policy may call; no other name reaches the service."""
        return self._tasks.tools

    @property
    def habits(self) -> Mapping[str, Script]:
        """The bad habits that a policy can be taught, by name."""
        return self._tasks.habits

    def generate(
        self, *, prefix: str, count: int, seed: int, taken: frozenset[str], tier: str = STANDARD
    ) -> tuple[Episode, ...]:
        """Make `count` episodes with ids `prefix-0000…`, families in turn, none with a content in `taken`.

        Raises:
            UsageError: There are fewer distinct tasks than asked for, or no such tier.
        """
        return self._tasks.generate(prefix=prefix, count=count, seed=seed, taken=taken, tier=tier)

    def open(self, episode: Episode) -> GymSession:
        """Seed a fresh session of the service.

        Raises:
            ServiceError: The service broke.
            UsageError: There is no service.
        """
        if self._client is None:
            msg = f"episode '{episode.id}' cannot be played: world {WORLD} was built without a service"
            raise UsageError(msg, remedy="Make Gym's environment with `make gym-env`.")
        return GymSession(self._client, self._tasks, episode)

    def solve(self, episode: Episode) -> tuple[ScriptedTurn, ...]:
        """The scripted solver's turns, which the verifier accepts.

        Raises:
            UsageError: The tasks have no solver.
        """
        return self._tasks.solve(episode)


def play_probe(world: GymWorld, probe: Probe) -> None:
    """Play a rollout whose verdict is known.

    Raises:
        ServiceError: The verdict is another, or the service broke.
    """
    score = play_script(world, probe.episode, probe.turns).score
    if probe.success is not None and score.success != probe.success:
        msg = f"the NeMo Gym service judges the self-test '{probe.episode.id}' as {score.success}, not {probe.success}"
        raise ServiceError(msg)


def _require_success(reply: Reply, path: str) -> None:
    if not http.client.OK <= reply.status < http.client.MULTIPLE_CHOICES:
        msg = f"the NeMo Gym service answers {path} with status {reply.status}: {reply.body[:_SHOWN]!r}"
        raise ServiceError(msg)
