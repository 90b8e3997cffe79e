"""Results and errors as the agent reads them."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pytest

from experiment.environments.delta_world.formatting import Limits, bound, format_error, format_table


class _Column:
    """A column of Arrow as far as formatting reads it; pyarrow is no base package."""

    def __init__(self, values: Sequence[object]) -> None:
        self.values = list(values)

    def to_pylist(self) -> list[object]:
        return self.values

    def __getitem__(self, number: int) -> Any:
        value = self.values[number]
        return type("Scalar", (), {"as_py": lambda _: value})()


class _Table:
    def __init__(self, **columns: Sequence[object]) -> None:
        self.column_names = list(columns)
        self.columns = [_Column(values) for values in columns.values()]
        self.num_columns = len(columns)
        self.num_rows = len(next(iter(columns.values()))) if columns else 0

    def column(self, number: int) -> _Column:
        return self.columns[number]

    def slice(self, start: int, count: int) -> _Table:
        cut = {
            name: column.values[start : start + count]
            for name, column in zip(self.column_names, self.columns, strict=True)
        }
        return _Table(**cut)


def _show(table: _Table, limits: Limits | None = None) -> str:
    return format_table(table, limits or Limits(), lambda text: text.replace("/secret", "dbfs:"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "NULL"),
        (True, "true"),
        (7, "7"),
        (1.5, "1.5"),
        (float("nan"), "NaN"),
        (float("-inf"), "-Infinity"),
        (Decimal("12.340"), "12.340"),
        (b"\x01\xff", "0x01ff"),
        (datetime.date(2024, 6, 1), "2024-06-01"),
        (datetime.datetime(2024, 6, 1, 2, 30, tzinfo=datetime.UTC), "2024-06-01 02:30:00"),
        (datetime.datetime(2024, 6, 1, 2, 30, 0, 120000, tzinfo=datetime.UTC), "2024-06-01 02:30:00.12"),
        ([1, None], "[1, NULL]"),
        ([], "[]"),
        ([("a", 1), ("b", None)], "{a -> 1, b -> NULL}"),
        ({"x": 1, "y": [True]}, "{x: 1, y: [true]}"),
        ("two\nlines", "two\\nlines"),
    ],
)
def test_value_is_written(value: object, text: str) -> None:
    assert _show(_Table(a=[value], b=[0])) == f"a | b\n{text} | 0\n(1 row)"


def test_statement_without_result_says_so() -> None:
    assert _show(_Table()) == "OK"


def test_only_the_first_rows_are_shown_and_the_rest_is_mentioned() -> None:
    limits = Limits(rows=2)
    assert _show(_Table(a=[1, 2]), limits) == "a\n1\n2\n(2 rows)"
    assert _show(_Table(a=[1, 2, 3]), limits) == "a\n1\n2\n(first 2 rows; there are more)"


def test_value_is_cleaned_before_it_is_cut() -> None:
    assert _show(_Table(a=["/secret/path", "x"]), Limits(cell_chars=9)) == "a\ndbfs:/pat…\nx\n(2 rows)"


def test_single_text_of_many_lines_keeps_them() -> None:
    assert _show(_Table(plan=["== Plan ==\nScan /secret\n"])) == "plan\n== Plan ==\nScan dbfs:"


def test_text_is_bounded() -> None:
    assert bound("12345", Limits(text_chars=5)) == "12345"
    assert bound("123456", Limits(text_chars=5)) == "12345\n… (1 more characters)"


def test_error_has_neither_stack_nor_plan() -> None:
    plan = ";\n'Project ['a]\n+- Relation\n"
    stack = "\n\nJVM stacktrace:\nx\n\tat y.z(A.scala:1)"
    for text in ("[X] no such column. SQLSTATE: 1; line 1 pos 7", "first\nsecond"):
        for rest in ("", plan, stack, plan + stack):
            assert format_error(ValueError(text + rest)) == f"ValueError: {text}"


def test_refusal_of_the_server_reads_as_the_one_before_it() -> None:
    error = RuntimeError("(java.lang.SecurityException) [INSUFFICIENT_PERMISSIONS] no. SQLSTATE: 42501")
    assert format_error(error) == "[INSUFFICIENT_PERMISSIONS] no. SQLSTATE: 42501"
