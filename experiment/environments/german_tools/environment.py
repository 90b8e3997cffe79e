"""The German lookup and calculator world as the rollout loop sees it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from experiment.environments.base import STANDARD, NativeCall, Script, ScriptedTurn, ToolResult
from experiment.environments.generation import generate_distinct, require_tier
from experiment.environments.german_tools.episodes import (
    FAMILIES,
    LEFT,
    NUMBER_FORMATS,
    WORLD,
    task_space,
    write_number,
)
from experiment.environments.german_tools.task import (
    ANSWER_MARK,
    CALCULATOR,
    LOOKUP,
    TOOL_PARAMETERS,
    Executed,
    Task,
    execute,
    judge,
    parse_task,
    solve,
)
from experiment.errors import FaultError, UsageError
from experiment.records.episode import Episode, ToolSpec
from experiment.records.rollout import Score
from experiment.sealing.seeds import derive_seed

TOOLS = (
    ToolSpec(
        name=LOOKUP,
        description="Wert zu einem Schlüssel",
        parameters=(("schluessel", "Schlüssel"),),
    ),
    ToolSpec(
        name=CALCULATOR,
        description="Rechnet genau",
        parameters=(("a", "Zahl"), ("b", "Zahl"), ("operation", "plus, minus, mal oder geteilt")),
    ),
)


class GermanSession:
    """One rollout's log of executed calls over one table."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._log: list[Executed] = []

    def call(self, name: str, arguments: Mapping[str, str]) -> ToolResult:
        """Execute a declared tool and log the call with its reply.

        Raises:
            FaultError: The caller dispatched a call that the world does not declare.
        """
        if tuple(sorted(arguments)) != TOOL_PARAMETERS.get(name):
            msg = f"world {WORLD}: call of '{name}' with parameters {sorted(arguments)} is not declared"
            raise FaultError(msg)
        executed = execute(self._task, name, arguments)
        self._log.append(executed)
        return ToolResult(text=executed.reply.text, is_error=executed.reply.is_error)

    def native_calls(self) -> Sequence[NativeCall]:
        """Return the executed calls in order."""
        return tuple(
            NativeCall(call.name, call.arguments, ToolResult(call.reply.text, call.reply.is_error))
            for call in self._log
        )

    def close(self) -> None:
        """Do nothing: a session holds nothing but its log."""

    def verify(self, final_text: str) -> Score:
        """Judge the rollout from its log and the text of its last turn."""
        judgement = judge(self._task, self._log, final_text)
        return Score(
            success=judgement.success,
            format=judgement.format,
            malformed_answer=judgement.malformed_answer,
        )


class GermanTools:
    """Look values up, calculate once, answer in the frozen form.

    Args:
        families: Families to draw from in turn; empty means all.
        number_formats: Formats that both operands are drawn from, each on its own.

    Raises:
        UsageError: An unknown or repeated family or format, or no format.
    """

    def __init__(self, families: tuple[str, ...] = (), number_formats: tuple[str, ...] = ("integer",)) -> None:
        self._families = _check_choice("world.families", families or FAMILIES, FAMILIES)
        self._formats = _check_choice("world.number_formats", number_formats, NUMBER_FORMATS)

    @property
    def name(self) -> str:
        """Name of the world, as in the recipe."""
        return WORLD

    @property
    def families(self) -> tuple[str, ...]:
        """The families drawn from, easiest first."""
        return self._families

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """`nachschlagen` and `rechne`."""
        return TOOLS

    @property
    def habits(self) -> Mapping[str, Script]:
        """`skip_calculation` and `repeat_calculation`."""
        return {"skip_calculation": self.skip_calculation, "repeat_calculation": self.repeat_calculation}

    def generate(
        self, *, prefix: str, count: int, seed: int, taken: frozenset[str], tier: str = STANDARD
    ) -> tuple[Episode, ...]:
        """Make `count` episodes with ids `prefix-0000…`, families in turn, none with a content in `taken`.

        Raises:
            UsageError: A family has fewer distinct tasks than asked for, or a tier other than the one there is.
        """
        require_tier(WORLD, (STANDARD,), tier)
        spaces = tuple(task_space(family, self._formats) for family in self._families)
        return generate_distinct(WORLD, spaces, prefix=prefix, count=count, seed=seed, taken=taken)

    def open(self, episode: Episode) -> GermanSession:
        """Start a fresh session.

        Raises:
            UsageError: The episode belongs to another world, or its task contradicts itself.
        """
        return GermanSession(_read_task(episode))

    def solve(self, episode: Episode) -> tuple[ScriptedTurn, ...]:
        """Return the required calls, one per turn, and the exact answer."""
        task = _read_task(episode)
        return (*_tool_turns(solve(task)), _answer_turn(task.answer))

    def skip_calculation(self, episode: Episode) -> tuple[ScriptedTurn, ...]:
        """Return a bad habit: the looked-up value is claimed as the answer without calculating.

        In `direct` there is nothing to calculate, so a wrong value is claimed without a lookup.
        """
        task = _read_task(episode)
        if task.operation is None:
            return (_answer_turn(self._guess_wrong(task, episode.seed)),)
        lookups = [call for call in solve(task) if call.name == LOOKUP]
        return (*_tool_turns(lookups), _answer_turn(lookups[0].reply.text))

    def repeat_calculation(self, episode: Episode) -> tuple[ScriptedTurn, ...]:
        """Return a bad habit: the last required call is made twice before the exact answer."""
        task = _read_task(episode)
        calls = solve(task)
        return (*_tool_turns([*calls, calls[-1]]), _answer_turn(task.answer))

    def _guess_wrong(self, task: Task, seed: int) -> str:
        values = {write_number(value, number_format) for number_format in self._formats for value in LEFT}
        wrong = sorted(values - {task.answer})
        return wrong[derive_seed(seed, "guess") % len(wrong)]


def _tool_turns(calls: Sequence[Executed]) -> tuple[ScriptedTurn, ...]:
    return tuple(ScriptedTurn(text="", calls=((call.name, call.arguments),)) for call in calls)


def _answer_turn(number: str) -> ScriptedTurn:
    return ScriptedTurn(text=f"{ANSWER_MARK}{number}", calls=())


def _read_task(episode: Episode) -> Task:
    if episode.world != WORLD:
        msg = f"episode '{episode.id}' belongs to world {episode.world}, not to {WORLD}"
        raise UsageError(msg)
    try:
        return parse_task(episode.task_json)
    except ValueError as error:
        msg = f"episode '{episode.id}': {error}"
        raise UsageError(msg) from error


def _check_choice(key: str, chosen: tuple[str, ...], allowed: tuple[str, ...]) -> tuple[str, ...]:
    """Return the choice in the order of `allowed`."""
    unknown = sorted(set(chosen) - set(allowed))
    if unknown or not chosen or len(set(chosen)) != len(chosen):
        msg = f"`{key}` is {list(chosen)}: it takes one or more of {list(allowed)}, each once"
        raise UsageError(msg)
    return tuple(choice for choice in allowed if choice in chosen)
