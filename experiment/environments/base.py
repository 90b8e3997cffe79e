"""What a world has to offer: a generator, sessions, and a scripted solver.

A world is deterministic: all of its randomness comes from the episode. A session belongs to one rollout and
is never reused. The verifier reads the session's own log and the final answer, never what the agent claims to
have done.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from experiment.records.episode import Episode, ToolSpec
from experiment.records.rollout import Score


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

    def generate(self, *, prefix: str, count: int, seed: int, taken: frozenset[str]) -> tuple[Episode, ...]:
        """Make `count` episodes with ids `prefix-0000…`, families in turn, none with a content in `taken`.

        Raises:
            UsageError: The generator has fewer distinct tasks than asked for.
        """
        ...

    def open(self, episode: Episode) -> Session:
        """Start a fresh session."""
        ...

    def solve(self, episode: Episode) -> tuple[ScriptedTurn, ...]:
        """The scripted solver's turns, which the verifier accepts."""
        ...
