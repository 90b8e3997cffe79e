"""The German world with a lenient verifier, so that a tiny untaught policy gets mixed rewards; it can also break."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from experiment.environments.base import NativeCall, Session, ToolResult
from experiment.environments.german_tools.environment import GermanTools
from experiment.environments.german_tools.task import parse_answer
from experiment.errors import FaultError
from experiment.records.episode import Episode
from experiment.records.rollout import Score


class LenientWorld(GermanTools):
    """Any number is a success where it is even.

    Args:
        broken_keys: Looking one of these keys up breaks the world.
    """

    def __init__(self, broken_keys: frozenset[str] = frozenset()) -> None:
        super().__init__()
        self._broken_keys = broken_keys

    def open(self, episode: Episode) -> Session:
        """Start a fresh session."""
        return LenientSession(super().open(episode), self._broken_keys)


@dataclass(frozen=True, slots=True)
class LenientSession:
    """A session of the German world, judged by its length and its number."""

    inner: Session
    broken_keys: frozenset[str]

    def call(self, name: str, arguments: Mapping[str, str]) -> ToolResult:
        """Execute, or break."""
        if arguments.get("schluessel") in self.broken_keys:
            message = "the world broke as planned"
            raise FaultError(message)
        return self.inner.call(name, arguments)

    def native_calls(self) -> Sequence[NativeCall]:
        """The executed calls."""
        return self.inner.native_calls()

    def close(self) -> None:
        """Close the inner session."""
        self.inner.close()

    def verify(self, final_text: str) -> Score:
        """Judge the shape of the rollout."""
        value = parse_answer(final_text)
        share = (min(len(self.native_calls()), 2) + len(final_text) % 3) / 4
        return Score(success=value is not None and value % 2 == 0, format=share, malformed_answer=value is None)
