"""The Delta Lake world as the rollout loop sees it."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from experiment.environments.base import STANDARD, NativeCall, Script, ScriptedTurn, ToolResult
from experiment.environments.delta_world.families.every import FAMILIES
from experiment.environments.delta_world.scene import TIERS
from experiment.environments.delta_world.task import SUBMITTED, Layout, Task, parse_task, task_space
from experiment.environments.delta_world.workspace import Workspace, Workspaces
from experiment.environments.generation import generate_distinct, require_tier
from experiment.errors import FaultError, UsageError
from experiment.records.episode import Episode, ToolSpec
from experiment.records.rollout import Score

WORLD = "delta_world"
RUN_SQL = "run_sql"
RUN_PYTHON = "run_python"
SUBMIT = "submit"
TOOLS = (
    ToolSpec(
        name=RUN_SQL,
        description="Execute one SQL statement and return its result.",
        parameters=(("statement", "The SQL statement"),),
    ),
    ToolSpec(
        name=RUN_PYTHON,
        description="Execute Python code and return what it prints; `spark` is the session.",
        parameters=(("code", "The Python code"),),
    ),
    ToolSpec(
        name=SUBMIT,
        description="Hand in the work; no other call is possible afterwards.",
        parameters=(("summary", "What was done"),),
    ),
)

_PARAMETERS = {tool.name: tuple(name for name, _ in tool.parameters) for tool in TOOLS}
_HANDED_IN = ToolResult(text="The work has been handed in.", is_error=False)
_CLOSED = ToolResult(text="The work has already been handed in; no further call is possible.", is_error=True)


class FixtureSource(Protocol):
    """Where fixtures come from."""

    def ensure(self, layout: Layout) -> Path:
        """Return the folder with the layout's tables.

        Raises:
            FaultError: It can neither be found nor be built.
        """
        ...


class DeltaSession:
    """One rollout's private tables."""

    def __init__(self, task: Task, workspace: Workspace, fixture: Path) -> None:
        self._task = task
        self._workspace = workspace
        self._fixture = fixture
        self._log: list[NativeCall] = []
        self._submitted = False

    def call(self, name: str, arguments: Mapping[str, str]) -> ToolResult:
        """Execute a declared tool and log the call with its result.

        Raises:
            FaultError: The server broke, or the caller dispatched a call that the world does not declare.
        """
        if tuple(sorted(arguments)) != _PARAMETERS.get(name):
            msg = f"world {WORLD}: call of '{name}' with parameters {sorted(arguments)} is not declared"
            raise FaultError(msg)
        result = _CLOSED if self._submitted else self._execute(name, arguments)
        self._log.append(NativeCall(name, tuple(sorted(arguments.items())), result))
        return result

    def native_calls(self) -> Sequence[NativeCall]:
        """Return the executed calls in order."""
        return tuple(self._log)

    def verify(self, final_text: str) -> Score:  # noqa: ARG002 - no word of the agent counts
        """Judge the final state of the tables; handing in is form, and no part of success.

        Raises:
            FaultError: The server broke while it read a table for the verifier.
        """
        return Score(
            success=not self.find_faults(), format=float(self._submitted), malformed_answer=not self._submitted
        )

    def find_faults(self) -> tuple[str, ...]:
        """Return what is wrong with the tables, one sentence each.

        Raises:
            FaultError: The server broke while it read a table for the verifier.
        """
        from experiment.environments.delta_world.verify import judge  # noqa: PLC0415 - needs the extra `delta`

        return judge(self._task, self._workspace, self._fixture)

    def close(self) -> None:
        """Give the tables back; a second call does nothing."""
        self._workspace.close()

    def _execute(self, name: str, arguments: Mapping[str, str]) -> ToolResult:
        if name == SUBMIT:
            self._submitted = True
            return _HANDED_IN
        if name == RUN_SQL:
            shown = self._workspace.sql(arguments["statement"])
        else:
            shown = self._workspace.python(arguments["code"])
        return ToolResult(text=shown.text, is_error=shown.is_error)


class DeltaWorld:
    """Tasks on Delta tables that a Spark Connect server holds.

    Episodes and scripts need no server; `open` does.

    Args:
        families: Families to draw from in turn; empty means all.
        workspaces: The server's private workspaces.
        fixtures: Where the tables of an episode come from.

    Raises:
        UsageError: An unknown or repeated family.
    """

    def __init__(
        self,
        families: tuple[str, ...] = (),
        *,
        workspaces: Workspaces | None = None,
        fixtures: FixtureSource | None = None,
    ) -> None:
        chosen = families or tuple(FAMILIES)
        unknown = sorted(set(chosen) - FAMILIES.keys())
        if unknown or len(set(chosen)) != len(chosen):
            msg = f"`world.families` is {list(chosen)}: it takes one or more of {list(FAMILIES)}, each once"
            raise UsageError(msg)
        self._families = tuple(family for family in FAMILIES if family in chosen)
        self._workspaces = workspaces
        self._fixtures = fixtures
        self._opened = itertools.count()

    @property
    def name(self) -> str:
        """Name of the world, as in the recipe."""
        return WORLD

    @property
    def families(self) -> tuple[str, ...]:
        """The families drawn from."""
        return self._families

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """`run_sql`, `run_python` and `submit`."""
        return TOOLS

    @property
    def habits(self) -> Mapping[str, Script]:
        """`claim_success`."""
        return {"claim_success": self.claim_success}

    def generate(
        self, *, prefix: str, count: int, seed: int, taken: frozenset[str], tier: str = STANDARD
    ) -> tuple[Episode, ...]:
        """Make `count` episodes with ids `prefix-0000…`, families in turn, none with a content in `taken`.

        Args:
            prefix: Start of the ids.
            count: Number of episodes.
            seed: The same seed always yields the same episodes.
            taken: Contents to keep out.
            tier: `standard`, or `hard`: other names, more rows, more distractors, longer histories.

        Raises:
            UsageError: A family has fewer distinct tasks than asked for, or there is no such tier.
        """
        require_tier(WORLD, tuple(each.name for each in TIERS), tier)
        spaces = tuple(task_space(family, tier) for family in self._families)
        return generate_distinct(WORLD, spaces, prefix=prefix, count=count, seed=seed, taken=taken)

    def open(self, episode: Episode) -> DeltaSession:
        """Start a fresh session on a copy of the episode's fixture.

        Raises:
            UsageError: The episode belongs to another world or cannot be made again, or there is no server.
            FaultError: The server broke.
        """
        task = _read_task(episode)
        if self._workspaces is None or self._fixtures is None:
            msg = f"episode '{episode.id}' cannot be played: world {WORLD} was built without a Spark server"
            raise UsageError(msg, remedy="Install the extra `delta` and name a server in the recipe's `[world]`.")
        fixture = self._fixtures.ensure(task.layout)
        workspace = self._workspaces.open(fixture, task.tables, f"{episode.id}-{next(self._opened)}")
        return DeltaSession(task, workspace, fixture)

    def solve(self, episode: Episode) -> tuple[ScriptedTurn, ...]:
        """Return the statements that solve the task, one per turn, the call of `submit`, and a last word."""
        statements = _read_task(episode).solution
        return (
            *(ScriptedTurn(text="", calls=((RUN_SQL, (("statement", statement),)),)) for statement in statements),
            ScriptedTurn(text="", calls=((SUBMIT, (("summary", "Solved as asked."),)),)),
            ScriptedTurn(text=SUBMITTED, calls=()),
        )

    def claim_success(self, episode: Episode) -> tuple[ScriptedTurn, ...]:
        """Return a bad habit: the main table is looked at, and success is claimed."""
        task = _read_task(episode)
        return (
            ScriptedTurn(text="", calls=((RUN_SQL, (("statement", task.fill("SELECT * FROM {main} LIMIT 5")),)),)),
            ScriptedTurn(text="", calls=((SUBMIT, (("summary", "The task is solved."),)),)),
            ScriptedTurn(text=SUBMITTED, calls=()),
        )


def _read_task(episode: Episode) -> Task:
    if episode.world != WORLD:
        msg = f"episode '{episode.id}' belongs to world {episode.world}, not to {WORLD}"
        raise UsageError(msg)
    try:
        return parse_task(episode.task_json)
    except ValueError as error:
        msg = f"episode '{episode.id}': {error}"
        raise UsageError(msg) from error
