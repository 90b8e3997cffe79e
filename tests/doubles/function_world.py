"""A world whose tools are given functions of strings; what they give back is passed on as it is, whatever it is."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from experiment.environments.base import NativeCall, ToolResult
from experiment.environments.german_tools.environment import GermanTools
from experiment.records.episode import Episode, ToolSpec
from experiment.records.rollout import Score

Tools = Mapping[str, Callable[..., Any]]


class FunctionWorld(GermanTools):
    """The German world's episodes with other tools; an answer is right where it is `Antwort: 1`.

    Args:
        make_tools: Makes the tools of one session by name; their parameters are those of the functions.
    """

    def __init__(self, make_tools: Callable[[], Tools]) -> None:
        super().__init__()
        self._make_tools = make_tools
        self.sessions: list[FunctionSession] = []

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """What the functions take."""
        return tuple(
            ToolSpec(
                name=name, description="", parameters=tuple((each, "") for each in inspect.signature(tool).parameters)
            )
            for name, tool in self._make_tools().items()
        )

    def open(self, episode: Episode) -> FunctionSession:
        """Start a session with tools of its own."""
        self.sessions.append(FunctionSession(self._make_tools()))
        return self.sessions[-1]


@dataclass
class FunctionSession:
    """One rollout's tools and the calls that they answered with a text."""

    tools: Tools
    log: list[NativeCall] = field(default_factory=list)

    def call(self, name: str, arguments: Mapping[str, str]) -> ToolResult:
        """Call the function."""
        result = ToolResult(text=self.tools[name](**arguments), is_error=False)
        if isinstance(result.text, str):
            self.log.append(NativeCall(name, tuple(sorted(arguments.items())), result))
        return result

    def native_calls(self) -> Sequence[NativeCall]:
        """The answered calls."""
        return tuple(self.log)

    def close(self) -> None:
        """Do nothing: there is nothing to give back."""

    def verify(self, final_text: str) -> Score:
        """Judge the final text alone."""
        success = final_text == "Antwort: 1"
        return Score(success=success, format=float(success), malformed_answer=not success)
