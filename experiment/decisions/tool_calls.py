r"""Tool calls in sampled text, read the same way by the rollout that executes them and the audit that checks them.

The form is

    <tool_call>
    {"name": "…", "arguments": {"…": "…"}}
    </tool_call>

Tags are markup wherever they stand, inside JSON strings too (an argument that needs one writes `\u003c`): each
opening tag starts a block, which ends at the next tag or at the end of the text. Nothing is repaired: what is
not exactly one valid object does not reach the world. Text outside blocks has no meaning here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NoReturn

from experiment.records.episode import ToolSpec
from experiment.records.rollout import CallStatus
from experiment.sealing.canonical import encode

MAX_DEPTH = 16
"""Deepest nesting of a block's objects and arrays."""
MAX_BYTES = 64 * 1024
"""Largest block between its tags, in UTF-8 bytes."""
MAX_RAW_CHARS = 500
"""How much of an unreadable block is kept for the record."""

_OPEN = "<tool_call>"
_CLOSE = "</tool_call>"
_TAGS = re.compile(f"({_OPEN}|{_CLOSE})")
_SURROGATES = re.compile("[\ud800-\udfff]")
_EXACT_DIGITS = 15


@dataclass(frozen=True, slots=True)
class ParsedCall:
    """One block; `arguments` is set exactly where `status` is None and the call may be dispatched."""

    name: str
    """Empty where the block states none."""
    arguments: tuple[tuple[str, str], ...] | None
    """Sorted by parameter name."""
    arguments_json: str
    """The arguments as canonical JSON; the block's raw text, cut, where there are none or they have no such form."""
    status: CallStatus | None
    """Why the call is invalid; None where it may be dispatched."""


def parse_turn(text: str, tools: Sequence[ToolSpec]) -> tuple[ParsedCall, ...]:
    """Return every `<tool_call>` block of a turn in order, valid or classified; no text raises.

    Classes, the first that fits: `too_large` (more than `MAX_BYTES` or deeper than `MAX_DEPTH`), `invalid_json` (not
    closed, not exactly one JSON object, duplicate keys, NaN or infinity, lone surrogates), `incomplete` (no
    name that is a string, or no arguments), `unknown_tool` (no tool of exactly this name), `wrong_arguments` (not
    exactly the tool's parameters, or a value that is no string). Other fields beside name and arguments are
    ignored.
    """
    declared = {tool.name: sorted(name for name, _ in tool.parameters) for tool in tools}
    pieces = _TAGS.split(text)
    calls: list[ParsedCall] = []
    for index in range(1, len(pieces), 2):
        if pieces[index] == _OPEN:
            is_closed = index + 2 < len(pieces) and pieces[index + 2] == _CLOSE
            calls.append(_parse_block(pieces[index + 1], is_closed=is_closed, declared=declared))
    return tuple(calls)


def _parse_block(raw: str, *, is_closed: bool, declared: dict[str, list[str]]) -> ParsedCall:
    if len(raw.encode("utf-8", "surrogatepass")) > MAX_BYTES or _is_deep(raw):
        return _refuse("", raw, "too_large")
    if not is_closed:
        return _refuse("", raw, "invalid_json")
    try:
        fields = _load_object(raw)
    except ValueError:
        return _refuse("", raw, "invalid_json")
    name = fields.get("name")
    if not isinstance(name, str) or "arguments" not in fields:
        return _refuse(name if isinstance(name, str) else "", raw, "incomplete")
    return _check_call(name, fields["arguments"], raw, declared)


def _check_call(name: str, arguments: object, raw: str, declared: dict[str, list[str]]) -> ParsedCall:
    shown = _write_arguments(arguments, raw)
    if name not in declared:
        return ParsedCall(name, None, shown, "unknown_tool")
    if not isinstance(arguments, dict) or sorted(arguments) != declared[name]:
        return ParsedCall(name, None, shown, "wrong_arguments")
    if not all(isinstance(value, str) for value in arguments.values()):
        return ParsedCall(name, None, shown, "wrong_arguments")
    return ParsedCall(name, tuple(sorted(arguments.items())), shown, None)


def _refuse(name: str, raw: str, status: CallStatus) -> ParsedCall:
    return ParsedCall(name, None, _cut(raw), status)


def _write_arguments(arguments: object, raw: str) -> str:
    try:
        return encode(arguments).decode("utf-8")
    except ValueError:
        # A number beyond what canonical JSON carries; the call is invalid anyway.
        return _cut(raw)


def _cut(raw: str) -> str:
    """Return the start of the block as text that any record can hold."""
    return _SURROGATES.sub("\ufffd", raw.strip()[:MAX_RAW_CHARS])


def _load_object(raw: str) -> dict[str, object]:
    """Return the one JSON object that `raw` consists of.

    Raises:
        ValueError: Anything else.
    """
    value = json.loads(raw, object_pairs_hook=_unique, parse_constant=_refuse_constant, parse_int=_read_whole_number)
    if not isinstance(value, dict) or any(_SURROGATES.search(text) for text in _texts(value)):
        msg = "not a JSON object of valid text"
        raise ValueError(msg)
    return value


def _read_whole_number(digits: str) -> int | float:
    # `int` refuses more than 4300 digits with an error that is not about JSON; a float takes any number.
    return int(digits) if len(digits) <= _EXACT_DIGITS else float(digits)


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        msg = "duplicate key"
        raise ValueError(msg)
    return fields


def _refuse_constant(name: str) -> NoReturn:
    msg = f"{name} is not JSON"
    raise ValueError(msg)


def _texts(value: object) -> Iterator[str]:
    """Yield every string and key; the depth has been checked."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)


def _is_deep(raw: str) -> bool:
    """Return whether brackets outside strings nest deeper than `MAX_DEPTH`, so that no recursion can overflow."""
    depth = 0
    in_string = is_escaped = False
    for char in raw:
        if in_string:
            in_string = is_escaped or char != '"'
            is_escaped = char == "\\" and not is_escaped
        elif char == '"':
            in_string = True
        elif char in "[{":
            depth += 1
            if depth > MAX_DEPTH:
                return True
        elif char in "]}":
            depth -= 1
    return False
