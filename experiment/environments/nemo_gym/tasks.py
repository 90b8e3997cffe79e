"""What a world behind a NeMo Gym service knows without the service: episodes, tools, rows and how a verdict is read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from experiment.environments.base import STANDARD, NativeCall, Script, ScriptedTurn, ToolResult
from experiment.environments.german_tools.environment import GermanTools
from experiment.environments.nemo_gym.messages import make_request
from experiment.errors import ServiceError
from experiment.records.episode import Episode, ToolSpec
from experiment.records.rollout import Score

WORLD = "nemo_gym"


@dataclass(frozen=True, slots=True)
class Probe:
    """A rollout whose verdict is known, played when a service starts."""

    episode: Episode
    turns: tuple[ScriptedTurn, ...]
    success: bool | None
    """None where nothing but a verdict is expected."""


class GymTasks(Protocol):
    """The part of a world that needs no service."""

    @property
    def families(self) -> tuple[str, ...]:
        """All task families, easiest first."""
        ...

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """The tools that the policy may call, which are routes of the server."""
        ...

    @property
    def can_close(self) -> bool:
        """Whether the server forgets a session on `/close_session`, which this version of Gym does not ask for."""
        ...

    @property
    def habits(self) -> Mapping[str, Script]:
        """The bad habits that a policy can be taught, by name."""
        ...

    def generate(
        self, *, prefix: str, count: int, seed: int, taken: frozenset[str], tier: str = STANDARD
    ) -> tuple[Episode, ...]:
        """Make episodes, as `Environment.generate` does."""
        ...

    def solve(self, episode: Episode) -> tuple[ScriptedTurn, ...]:
        """Return turns that the verifier accepts."""
        ...

    def row(self, episode: Episode) -> dict[str, object]:
        """Return the row that seeds the server's session and goes to its verifier."""
        ...

    def arguments(self, name: str, arguments: Mapping[str, str]) -> dict[str, object]:
        """Return what a tool is sent for the policy's arguments."""
        ...

    def read_score(self, verdict: Mapping[str, object], final_text: str) -> Score:
        """Return the score that a verdict stands for.

        Raises:
            ServiceError: The verdict is not one of this server.
        """
        ...

    def read_log(self, verdict: Mapping[str, object]) -> tuple[NativeCall, ...] | None:
        """Return the calls that the server says it executed; None where it says nothing.

        Raises:
            ServiceError: What it says is not a log.
        """
        ...

    def probes(self) -> tuple[Probe, ...]:
        """Return rollouts for the self-test of a service."""
        ...


class GermanTasks:
    """The German lookup and calculator world, whose sessions live in our resources server.

    Args:
        world: Makes and solves the episodes; they are the same as without a service, and so are their ids.
    """

    def __init__(self, world: GermanTools) -> None:
        self._world = world

    @property
    def families(self) -> tuple[str, ...]:
        """The families drawn from, easiest first."""
        return self._world.families

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """`nachschlagen` and `rechne`."""
        return self._world.tools

    @property
    def can_close(self) -> bool:
        """True."""
        return True

    @property
    def habits(self) -> Mapping[str, Script]:
        """Those of the world."""
        return self._world.habits

    def generate(
        self, *, prefix: str, count: int, seed: int, taken: frozenset[str], tier: str = STANDARD
    ) -> tuple[Episode, ...]:
        """Make the world's episodes.

        Raises:
            UsageError: A family has fewer distinct tasks than asked for, or a tier other than the one there is.
        """
        return self._world.generate(prefix=prefix, count=count, seed=seed, taken=taken, tier=tier)

    def solve(self, episode: Episode) -> tuple[ScriptedTurn, ...]:
        """Return the required calls, one per turn, and the exact answer."""
        return self._world.solve(episode)

    def row(self, episode: Episode) -> dict[str, object]:
        """Return the prompt with the tools, and the episode for the server."""
        return {
            "responses_create_params": make_request(episode.messages, self.tools),
            "verifier_metadata": {"episode": episode.model_dump(mode="json")},
        }

    def arguments(self, name: str, arguments: Mapping[str, str]) -> dict[str, object]:  # noqa: ARG002 - all are strings
        """Return the arguments as they are."""
        return dict(arguments)

    def read_score(self, verdict: Mapping[str, object], final_text: str) -> Score:  # noqa: ARG002 - the server saw it
        """Return the score, all of which our server states.

        Raises:
            ServiceError: A part is missing or of another type, or the reward is not that of the score.
        """
        try:
            score = Score.model_validate({name: verdict.get(name) for name in Score.model_fields})
        except ValueError as error:
            msg = f"the verdict of the NeMo Gym service is no score: {error}"
            raise ServiceError(msg) from error
        if read_reward(verdict) != float(score.success):
            msg = f"the NeMo Gym service gives reward {verdict['reward']} and success {score.success}"
            raise ServiceError(msg)
        return score

    def read_log(self, verdict: Mapping[str, object]) -> tuple[NativeCall, ...] | None:
        """Return the calls that our server executed.

        Raises:
            ServiceError: It states none, or not in the form it has.
        """
        try:
            return tuple(_read_call(each) for each in verdict["executed"])  # type: ignore[attr-defined]
        except (KeyError, TypeError, AttributeError) as error:
            msg = f"the verdict of the NeMo Gym service holds no log of its calls ({error!r})"
            raise ServiceError(msg) from error

    def probes(self) -> tuple[Probe, ...]:
        """Return a solved episode and one with a call too many."""
        right, wrong = self.generate(prefix="probe", count=2, seed=0, taken=frozenset())
        return (
            Probe(right, self._world.solve(right), success=True),
            Probe(wrong, self._world.repeat_calculation(wrong), success=False),
        )


def read_reward(verdict: Mapping[str, object]) -> float:
    """Return a verdict's reward.

    Raises:
        ServiceError: There is none, or it is no finite number.
    """
    reward = verdict.get("reward")
    if isinstance(reward, bool) or not isinstance(reward, int | float) or not math.isfinite(reward):
        msg = f"the NeMo Gym service gives no finite reward but {reward!r}"
        raise ServiceError(msg)
    return float(reward)


def _read_call(entry: Mapping[str, object]) -> NativeCall:
    arguments, text, is_error = entry["arguments"], entry["text"], entry["is_error"]
    if not isinstance(arguments, dict) or not isinstance(text, str) or not isinstance(is_error, bool):
        msg = f"entry {sorted(entry)}"
        raise TypeError(msg)
    return NativeCall(str(entry["name"]), tuple(sorted(arguments.items())), ToolResult(text, is_error))
