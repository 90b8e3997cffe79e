"""The frozen grammar of German numbers, shared by table, calculator and verifier (standard library only).

A text is a number where a German reader has exactly one reading for it:

    number   = [minus] whole [ "," decimals ]
    minus    = "-" | "−" (U+2212)
    whole    = "0" | digits without a leading zero | groups
    groups   = 1 to 3 digits without a leading zero, then one or more of: separator and exactly 3 digits
    separator = "." | U+00A0 | U+202F (narrow no-break space), the same one throughout
    decimals = one or more digits

| text | reading |
|---|---|
| `1.234` | 1234: the point groups, it never marks decimals |
| `1,5`, `1.234,50`, `3,0` | 1.5, 1234.5, 3: zeros at the end change nothing |
| `1,234`, `12,345`, `-999,000` | refused as ambiguous: an English reader sees thousands |
| `0,234`, `1234,567`, `1.234,567`, `1,2340` | valid: no English thousands look like this |
| `1.5`, `1.2345`, `12.03.2026`, `0.234`, `1 234` | refused |
| `+3`, `,5`, `5,`, `007`, `1e5`, ` 3`, `3 €`, other scripts' digits | refused |

The canonical form groups by points from four digits on, drops zeros at the end of the decimals, and never
writes `-0`; a number of at most three whole digits (but not 0) with exactly three decimals gets a fourth
decimal, a zero, because it would be ambiguous otherwise.
"""

from __future__ import annotations

import decimal
import re
from decimal import Decimal
from typing import Literal

MAX_WHOLE_DIGITS = 15
MAX_DECIMALS = 6
_MAX_CHARS = 40

_NUMBER = re.compile(
    r"(?P<minus>[-\u2212])?"
    r"(?P<whole>0|[1-9][0-9]{0,2}(?:(?P<mark>[.\u00a0\u202f])[0-9]{3}(?:(?P=mark)[0-9]{3})*)|[1-9][0-9]*)"
    r"(?:,(?P<decimals>[0-9]+))?"
)
_AMBIGUOUS = re.compile(r"[-\u2212]?[1-9][0-9]{0,2},[0-9]{3}")
_EXACT = decimal.Context(prec=64, traps=[decimal.Inexact, decimal.InvalidOperation, decimal.DivisionByZero])

Flaw = Literal["not a number", "ambiguous", "too long"]


class GermanNumberError(ValueError):
    """A text that is no number by the grammar, or a number that is longer than the bounds."""

    def __init__(self, flaw: Flaw) -> None:
        super().__init__(flaw)
        self.flaw: Flaw = flaw


def parse_number(text: str) -> Decimal:
    """Return the exact value of a German number.

    Raises:
        GermanNumberError: `text` does not follow the grammar, is ambiguous, or has more than
            `MAX_WHOLE_DIGITS` whole digits or `MAX_DECIMALS` decimals.
    """
    if len(text) > _MAX_CHARS:
        raise GermanNumberError("too long")
    if _AMBIGUOUS.fullmatch(text):
        raise GermanNumberError("ambiguous")
    match = _NUMBER.fullmatch(text)
    if match is None:
        raise GermanNumberError("not a number")
    whole = re.sub(r"[^0-9]", "", match["whole"])
    decimals = match["decimals"] or "0"
    if len(whole) > MAX_WHOLE_DIGITS or len(decimals) > MAX_DECIMALS:
        raise GermanNumberError("too long")
    value = Decimal(f"{whole}.{decimals}")
    return value.copy_negate() if match["minus"] and value else value


def format_number(value: Decimal) -> str:
    """Return the canonical form of a finite `value`; `parse_number` reads it back exactly.

    Raises:
        GermanNumberError: The number is longer than the bounds.
    """
    # Before any digit is written: 1e400000000 would be a text of 400 MB.
    if value and not -MAX_DECIMALS <= value.adjusted() < MAX_WHOLE_DIGITS:
        raise GermanNumberError("too long")
    whole, _, decimals = (f"{value.copy_abs():f}" if value else "0").partition(".")
    decimals = decimals.rstrip("0")
    if len(decimals) > MAX_DECIMALS:
        raise GermanNumberError("too long")
    if len(decimals) == 3 and len(whole) <= 3 and whole != "0":  # noqa: PLR2004  (thousands have three digits)
        decimals += "0"
    sign = "-" if value < 0 else ""
    grouped = f"{int(whole):,}".replace(",", ".")
    return f"{sign}{grouped},{decimals}" if decimals else f"{sign}{grouped}"


def calculate(operation: str, a: Decimal, b: Decimal) -> Decimal:
    """Return the exact result of `plus`, `minus`, `mal` or `geteilt`.

    Args:
        operation: One of the four words.
        a: Left operand, within the grammar's bounds.
        b: Right operand, within the grammar's bounds.

    Raises:
        KeyError: There is no such operation.
        ZeroDivisionError: Division by zero.
        decimal.Inexact: The quotient has no finite decimal form.
    """
    context = _EXACT.copy()
    operations = {
        "plus": context.add,
        "minus": context.subtract,
        "mal": context.multiply,
        "geteilt": context.divide,
    }
    if operation == "geteilt" and not b:
        msg = "division by zero"
        raise ZeroDivisionError(msg)
    return operations[operation](a, b)
