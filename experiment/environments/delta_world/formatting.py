"""Writes results and errors as the agent reads them: plain, bounded, the same for the same content."""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow

_STACK = re.compile(r"\n\s*JVM stacktrace:.*|\n\s*at [\w.$]+\(.*", flags=re.DOTALL)
_PLAN = re.compile(r";\n['+:\w! ].*", flags=re.DOTALL)


@dataclass(frozen=True, slots=True)
class Limits:
    """How much the agent is shown, and how long it may wait."""

    rows: int = 50
    cell_chars: int = 300
    text_chars: int = 6000
    statement_seconds: float = 30.0
    stop_seconds: float = 20.0
    """How long a statement may take to stop after its limit; later the server counts as broken."""
    concurrent: int = 4
    """How many calls run at a time on one server; a call's time is counted from its turn."""


def format_table(table: pyarrow.Table, limits: Limits, clean: Callable[[str], str]) -> str:
    """Return the first rows as text: a line of names, a line per row, a line that counts them.

    Args:
        table: At most one row more than `limits.rows`, so that "more" is known without counting.
        limits: The bounds.
        clean: Applied to every value before it is cut.
    """
    if not table.column_names:
        return "OK"
    shown = table.slice(0, limits.rows)
    if shown.num_rows == 1 and shown.num_columns == 1 and "\n" in (only := _text(shown.column(0)[0].as_py())):
        # A text with lines of its own, such as a plan, is not squeezed into one.
        return f"{table.column_names[0]}\n{clean(only).rstrip()}"
    columns = [[_cell(clean(_text(value)), limits) for value in column.to_pylist()] for column in shown.columns]
    lines = [" | ".join(table.column_names), *(" | ".join(row) for row in zip(*columns, strict=True))]
    if table.num_rows > limits.rows:
        lines.append(f"(first {limits.rows} rows; there are more)")
    else:
        lines.append(f"({table.num_rows} row{'' if table.num_rows == 1 else 's'})")
    return "\n".join(lines)


def format_error(error: Exception) -> str:
    """Return the class and message as Spark says them, without the stack, the plan and the place in Spark's code."""
    text = _STACK.sub("", str(error))
    text = _PLAN.sub("", text)
    refusal = text.find("[INSUFFICIENT_PERMISSIONS]")
    if refusal >= 0:
        return text[refusal:].strip()
    return f"{type(error).__name__}: {text.strip()}"


def bound(text: str, limits: Limits) -> str:
    """Return at most `limits.text_chars` characters: the beginning, and how much is left out."""
    left = len(text) - limits.text_chars
    return text if left <= 0 else f"{text[: limits.text_chars]}\n… ({left} more characters)"


def _cell(text: str, limits: Limits) -> str:
    text = text.replace("\n", "\\n")
    return text if len(text) <= limits.cell_chars else f"{text[: limits.cell_chars]}…"


def _text(value: object) -> str:
    for kind, write in _WRITERS:
        if isinstance(value, kind):
            return write(value)
    return "NULL" if value is None else str(value)


def _mapping(value: Mapping[object, object]) -> str:
    return f"{{{', '.join(f'{key}: {_text(each)}' for key, each in value.items())}}}"


def _sequence(values: Iterable[object]) -> str:
    items = list(values)
    if items and all(isinstance(each, tuple) for each in items):
        # Arrow hands a map over as a list of pairs.
        return f"{{{', '.join(f'{_text(pair[0])} -> {_text(pair[1])}' for pair in items)}}}"  # type: ignore[index]
    return f"[{', '.join(map(_text, items))}]"


def _float(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return repr(value)


def _moment(value: datetime.datetime) -> str:
    text = value.replace(tzinfo=None).isoformat(sep=" ")
    return text.rstrip("0") if "." in text else text


_WRITERS: tuple[tuple[type, Callable[[Any], str]], ...] = (
    (str, str),
    (bool, lambda value: "true" if value else "false"),
    (float, _float),
    (Decimal, lambda value: f"{value:f}"),
    (bytes, lambda value: f"0x{value.hex()}"),
    (datetime.datetime, _moment),
    (Mapping, _mapping),
    (Sequence, _sequence),
)
"""How each kind of value is written; the first that fits."""
