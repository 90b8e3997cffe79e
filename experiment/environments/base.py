"""What a world has to offer: a generator, sessions, and a scripted solver.

A world is deterministic: all of its randomness comes from the episode. A session belongs to one rollout and
is never reused. The verifier reads the session's own log and the final answer, never what the agent claims to
have done.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from experiment.errors import ServiceError
from experiment.records.episode import Episode, ToolSpec
from experiment.records.rollout import Score

STANDARD: Final = "standard"
"""The tier of every world that knows no other."""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a tool call gave back."""

    text: str
    """What the agent is shown."""
    is_error: bool
    """True where the world refused or failed the call in a way the agent sees."""


@dataclass(frozen=True, slots=True)
class NativeCall:
    """One call as the world itself executed it (the native tool stream)."""

    name: str
    arguments: tuple[tuple[str, str], ...]
    """Sorted by parameter name."""
    result: ToolResult


@dataclass(frozen=True, slots=True)
class ScriptedTurn:
    """One turn of a scripted policy: tool calls, or the final text where `calls` is empty."""

    text: str
    calls: tuple[tuple[str, tuple[tuple[str, str], ...]], ...]
    """(tool name, ((parameter, value), …)) in order of execution."""


Script = Callable[[Episode], tuple[ScriptedTurn, ...]]
"""A scripted policy: the turns that it takes in an episode."""


class Session(Protocol):
    """One rollout's private instance of the world."""

    def call(self, name: str, arguments: Mapping[str, str]) -> ToolResult:
        """Execute a declared tool whose arguments have the declared names.

        Raises:
            FaultError: The world itself broke; the rollout then has no score.
        """
        ...

    def native_calls(self) -> Sequence[NativeCall]:
        """The calls this session executed, in order."""
        ...

    def verify(self, final_text: str) -> Score:
        """Judge the rollout from the session's own state and the text of its last turn."""
        ...

    def close(self) -> None:
        """Give back what the session holds; closing twice does nothing."""
        ...


class Environment(Protocol):
    """A world."""

    @property
    def name(self) -> str:
        """Name of the world, as in the recipe."""
        ...

    @property
    def families(self) -> tuple[str, ...]:
        """All task families, easiest first."""
        ...

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """The tools that the policy may call."""
        ...

    @property
    def habits(self) -> Mapping[str, Script]:
        """The bad habits that a policy can be taught, by name."""
        ...

    def generate(
        self, *, prefix: str, count: int, seed: int, taken: frozenset[str], tier: str = STANDARD
    ) -> tuple[Episode, ...]:
        """Make `count` episodes with ids `prefix-0000…`, families in turn, none with a content in `taken`.

        Raises:
            UsageError: The generator has fewer distinct tasks than asked for, or no such tier.
        """
        ...

    def open(self, episode: Episode) -> Session:
        """Start a fresh session."""
        ...

    def solve(self, episode: Episode) -> tuple[ScriptedTurn, ...]:
        """The scripted solver's turns, which the verifier accepts."""
        ...


class Watched(Protocol):
    """A service that can be asked how it is."""

    def require_whole(self) -> None:
        """Raise unless it lives, answers and nothing has broken it.

        Raises:
            ServiceError: It does not.
        """
        ...


def is_whole(service: Watched) -> bool:
    """Say whether a service can be given more work."""
    try:
        service.require_whole()
    except ServiceError:
        return False
    return True


class Services(Protocol):
    """What runs beside a driver's workers so that a world can be played; only ever the driver's own."""

    def address(self, slot: int, *, renew: bool) -> str:
        """Return, as one line, where the worker in a slot finds its service, which is then up and whole.

        Args:
            slot: The worker's place among those that run at a time, from 0.
            renew: Replace the service; the worker holds nothing of it any more.

        Raises:
            UsageError: Something is missing on this machine.
            ServiceError: The service does not start.
        """
        ...

    def stop(self) -> None:
        """Afterwards nothing of it runs; a second call does nothing."""
        ...
