"""One line of a question file in MGSM format, read strictly."""

from __future__ import annotations

import codecs
import json
import unicodedata
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import NoReturn

from experiment.environments.german_tools.numbers import GermanNumberError, parse_number


@dataclass(frozen=True, slots=True)
class Row:
    """A question with its number; `label` is the file's own id, where it has one."""

    label: str | None
    question: str
    answer: Decimal


def read_row(line: bytes) -> Row:
    """Return the question of one line, given without its line feed.

    Raises:
        ValueError: The line is not exactly one valid row; the message names what was found.
    """
    _check_bytes(line)
    fields = _load_object(line.decode("utf-8"))
    question = _read_text("question", fields.get("question"))
    label = fields.get("id")
    return Row(
        label=None if label is None else _read_text("id", label),
        question=question,
        answer=_read_answer(fields.get("answer_number"), fields.get("answer")),
    )


def _check_bytes(line: bytes) -> None:
    if line.startswith(codecs.BOM_UTF8):
        msg = "starts with a byte order mark"
        raise ValueError(msg)
    if b"\r" in line:
        msg = "contains a carriage return; lines end with a line feed alone"
        raise ValueError(msg)
    if not line.strip():
        msg = "is blank"
        raise ValueError(msg)


def _load_object(text: str) -> dict[str, object]:
    try:
        fields = json.loads(
            text, object_pairs_hook=_unique, parse_constant=_refuse_constant, parse_float=_read_fraction
        )
    except RecursionError:
        fields = None
    if isinstance(fields, dict):
        return fields
    msg = "is not a JSON object"
    raise ValueError(msg)


def _read_text(field: str, value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        msg = f"`{field}` is {value!r}, not a text"
        raise ValueError(msg)
    if not unicodedata.is_normalized("NFC", value):
        msg = f"`{field}` is not in Unicode normal form C"
        raise ValueError(msg)
    value.encode("utf-8")  # a lone surrogate, written as an escape, is a ValueError here
    return value


def _read_answer(number: object, answer: object) -> Decimal:
    """Return the number of a row; an `answer` in words beside `answer_number` only explains it."""
    if number is None:
        return _read_number("answer", answer)
    value = _read_number("answer_number", number)
    if answer is not None and _is_number(answer) and _read_number("answer", answer) != value:
        msg = f"`answer_number` is {number} but `answer` is {answer}"
        raise ValueError(msg)
    return value


def _is_number(value: object) -> bool:
    try:
        _read_number("answer", value)
    except ValueError:
        return False
    return True


def _read_number(field: str, value: object) -> Decimal:
    if isinstance(value, str):
        try:
            return parse_number(value)
        except GermanNumberError as error:
            msg = f"`{field}` is {value!r}: {error}"
            raise ValueError(msg) from None
    if isinstance(value, int | Decimal) and not isinstance(value, bool):
        return Decimal(value)
    msg = f"`{field}` is {value!r}, not a number"
    raise ValueError(msg)


def _read_fraction(text: str) -> Decimal:
    try:
        return Decimal(text)
    except InvalidOperation:
        msg = f"number {text[:40]} has an exponent beyond all bounds"
        raise ValueError(msg) from None


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        msg = f"has a key twice among {[key for key, _ in pairs]}"
        raise ValueError(msg)
    return fields


def _refuse_constant(name: str) -> NoReturn:
    msg = f"{name} is not JSON"
    raise ValueError(msg)
