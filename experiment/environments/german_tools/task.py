"""One task of the German lookup and calculator world: table, tools and verifier (standard library only).

The world has no state but the log of executed calls, so everything here is a pure function. The verifier
knows the calls a task requires and compares them with the log; it never believes the agent's text.
"""

from __future__ import annotations

import decimal
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from experiment.environments.german_tools.numbers import (
    Flaw,
    GermanNumberError,
    calculate,
    format_number,
    parse_number,
)

LOOKUP = "nachschlagen"
CALCULATOR = "rechne"
TOOL_PARAMETERS: dict[str, tuple[str, ...]] = {LOOKUP: ("schluessel",), CALCULATOR: ("a", "b", "operation")}
OPERATIONS = ("plus", "minus", "mal", "geteilt")
ANSWER_MARK = "Antwort: "

_FLAWS: dict[Flaw, str] = {
    "not a number": "ist keine Zahl",
    "ambiguous": "ist mehrdeutig",
    "too long": "ist zu lang",
}

Arguments = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Reply:
    """What a tool answers: a German number, or an error text that the agent is shown."""

    text: str
    is_error: bool


@dataclass(frozen=True, slots=True)
class Executed:
    """One call that reached the world; `arguments` are sorted by parameter name."""

    name: str
    arguments: Arguments
    reply: Reply


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verifier's view; `format` is 1 exactly where `success` is true."""

    success: bool
    format: float
    malformed_answer: bool


@dataclass(frozen=True, slots=True)
class Task:
    """A table and what has to be done with it."""

    table: tuple[tuple[str, str], ...]
    """(key, German number), sorted by key."""
    lookups: tuple[str, ...]
    """Keys to look up, in this order."""
    operation: str | None
    """One calculation after the lookups; None where a looked-up value is the answer."""
    given: str | None
    """Right operand that the prompt states; None where it is the second looked-up value."""
    answer: str
    """Canonical German number."""


def parse_task(text: str) -> Task:
    """Return the task described by an episode's `task_json`, checked for consistency.

    Raises:
        ValueError: A field is missing, unknown or of another type, a key to look up is not in the table, the
            operation does not have two operands, or the answer is not what table and operation yield.
    """
    fields = json.loads(text)
    if not isinstance(fields, dict) or sorted(fields) != ["answer", "given", "lookups", "operation", "table"]:
        msg = "task needs exactly the fields answer, given, lookups, operation and table"
        raise ValueError(msg)
    table, lookups = fields["table"], fields["lookups"]
    if not isinstance(table, dict) or not isinstance(lookups, list):
        msg = "task needs an object `table` and an array `lookups`"
        raise ValueError(msg)  # noqa: TRY004  (the text is wrong, not the caller)
    optional = [fields[name] for name in ("given", "operation") if fields[name] is not None]
    if not all(isinstance(value, str) for value in [*table.values(), *lookups, *optional]):
        msg = "task has a key, number or operation that is no string"
        raise ValueError(msg)
    task = Task(tuple(sorted(table.items())), tuple(lookups), fields["operation"], fields["given"], fields["answer"])
    _check_task(task)
    return task


def _check_task(task: Task) -> None:
    operands = len(task.lookups) + (task.given is not None)
    if not task.lookups or operands != (1 if task.operation is None else 2):
        msg = f"task has the wrong number of operands ({operands}) for operation {task.operation}"
        raise ValueError(msg)
    result = solve(task)[-1].reply
    if result.text != task.answer or format_number(parse_number(task.answer)) != task.answer:
        msg = f"task states the answer '{task.answer}', but its table yields '{result.text}'"
        raise ValueError(msg)


def solve(task: Task) -> tuple[Executed, ...]:
    """Return the calls that the task requires, in order, with their replies; the last reply is the answer."""
    calls = [execute(task, LOOKUP, {"schluessel": key}) for key in task.lookups]
    if task.operation is not None:
        operands = [call.reply.text for call in calls] + ([] if task.given is None else [task.given])
        arguments = {"operation": task.operation, "a": operands[0], "b": operands[1]}
        calls.append(execute(task, CALCULATOR, arguments))
    return tuple(calls)


def execute(task: Task, name: str, arguments: Mapping[str, str]) -> Executed:
    """Return the call together with the tool's reply; the same call always gets the same reply.

    Raises:
        KeyError: There is no tool `name`, or an argument is missing: the caller dispatches declared calls only.
    """
    replies = {LOOKUP: _look_up, CALCULATOR: _calculate}
    reply = replies[name](task, arguments)
    return Executed(name=name, arguments=tuple(sorted(arguments.items())), reply=reply)


def parse_answer(text: str) -> Decimal | None:
    """Return the number of a text in the frozen form `Antwort: <German number>`, None for any other text."""
    if not text.startswith(ANSWER_MARK):
        return None
    try:
        return parse_number(text.removeprefix(ANSWER_MARK))
    except GermanNumberError:
        return None


def judge(task: Task, log: Sequence[Executed], final_text: str) -> Judgement:
    """Judge a finished rollout from the calls the world executed and the text of the last turn.

    Success needs exactly the required calls in the required order (operands in the order of the prompt, numbers
    compared by value), each answered without an error, nothing beyond them, and the exact answer.

    `format` is the share of milestones reached: each required call in order (other calls may lie between); no
    other call, which counts once all required ones are made; the answer line, which counts after the first
    required call; the right number, which counts once all required calls are made. A guess without tools is 0.
    """
    required = solve(task)
    reached = _count_in_order(required, log)
    is_complete = reached == len(required)
    value = parse_answer(final_text)
    milestones = [position < reached for position in range(len(required))]
    milestones.append(is_complete and len(log) == len(required))
    milestones.append(reached > 0 and value is not None)
    milestones.append(is_complete and value == parse_number(task.answer))
    return Judgement(
        success=all(milestones),
        format=sum(milestones) / len(milestones),
        malformed_answer=value is None,
    )


def _look_up(task: Task, arguments: Mapping[str, str]) -> Reply:
    value = dict(task.table).get(arguments["schluessel"])
    if value is None:
        return Reply("Fehler: Schlüssel unbekannt", is_error=True)
    return Reply(value, is_error=False)


def _calculate(_task: Task, arguments: Mapping[str, str]) -> Reply:
    operation = arguments["operation"]
    if operation not in OPERATIONS:
        return Reply("Fehler: Operation unbekannt", is_error=True)
    operands: list[Decimal] = []
    for name in ("a", "b"):
        try:
            operands.append(parse_number(arguments[name]))
        except GermanNumberError as error:
            return Reply(f"Fehler: {name} {_FLAWS[error.flaw]}", is_error=True)
    try:
        return Reply(format_number(calculate(operation, operands[0], operands[1])), is_error=False)
    except ZeroDivisionError:
        return Reply("Fehler: Division durch null", is_error=True)
    except decimal.Inexact:
        return Reply("Fehler: Ergebnis nicht exakt", is_error=True)
    except GermanNumberError:
        return Reply("Fehler: Ergebnis zu lang", is_error=True)


def _count_in_order(required: Sequence[Executed], log: Sequence[Executed]) -> int:
    """Return how many required calls occur in the log in their order, from the first on."""
    reached = 0
    for call in log:
        if reached < len(required) and _is_same(required[reached], call):
            reached += 1
    return reached


def _is_same(required: Executed, call: Executed) -> bool:
    if call.reply.is_error or call.name != required.name:
        return False
    if call.name == LOOKUP:
        return call.arguments == required.arguments
    return _read_calculation(call) == _read_calculation(required)


def _read_calculation(call: Executed) -> tuple[Decimal, Decimal, str]:
    arguments = dict(call.arguments)
    return parse_number(arguments["a"]), parse_number(arguments["b"]), arguments["operation"]
