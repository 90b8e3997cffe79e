"""The page of known failures: every row is kept out by tests that exist, or says why it does not apply."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
PAGE = TESTS.parent / "docs" / "known-failures.md"
COLUMNS = ["failure", "elsewhere", "here", "kept out by", "seen in"]
REASON = "does not apply: "
TEST = re.compile(r"`([\w/]+\.py)::(test_\w+)`")


def tables(text: str) -> dict[str, list[list[str]]]:
    """Cells of each row, by section; the two lines that open a table are left out."""
    sections: dict[str, list[list[str]]] = {}
    title = ""
    for line in text.splitlines():
        if line.startswith("## "):
            title = line.removeprefix("## ")
        elif line.startswith("|"):
            sections.setdefault(title, []).append([cell.strip() for cell in line.strip("|").split("|")])
    return {title: rows[2:] for title, rows in sections.items()}


@cache
def functions(path: Path) -> frozenset[str]:
    """Names of the functions that a file of tests defines."""
    if not path.is_file():
        return frozenset()
    return frozenset(
        node.name for node in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(node, ast.FunctionDef)
    )


def problems(row: list[str]) -> list[str]:
    """What is wrong with a row."""
    if len(row) != len(COLUMNS) or not all(row[:3]):
        return [f"{len(row)} cells, or an empty one"]
    named = TEST.findall(row[3])
    missing = [f"{file}::{name}" for file, name in named if name not in functions(TESTS / file)]
    unread = TEST.sub("", row[3].partition(REASON)[0]).strip()
    if unread:
        return [f"neither a test nor a reason: {unread}"]
    has_reason = bool(TEST.sub("", row[3].partition(REASON)[2]).strip(" ()"))
    return missing if named or has_reason else ["names neither a test nor a reason"]


SECTIONS = tables(PAGE.read_text(encoding="utf-8"))


@pytest.mark.parametrize("section", SECTIONS)
def test_every_known_failure_is_kept_out_by_tests_that_exist(section: str) -> None:
    assert {row[0]: found for row in SECTIONS[section] if (found := problems(row))} == {}


def test_every_table_has_the_columns_that_are_read_here() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text.count("| " + " | ".join(COLUMNS) + " |") == len(SECTIONS) >= 5
    names = [row[0] for rows in SECTIONS.values() for row in rows]
    assert len(set(names)) == len(names) > 30


@pytest.mark.parametrize(
    "cell",
    [
        "",
        "does not apply:",
        "does not apply: ",
        "later",
        "`unit/test_known_failures.py::test_that_nobody_wrote`",
        "`unit/test_of_nothing.py::test_every_known_failure_is_kept_out_by_tests_that_exist`",
        "`unit/test_known_failures.py::test_every_known_failure_is_kept_out_by_tests_that_exist[Files]`",
        "`unit/test_known_failures.py::problems`",
    ],
)
def test_row_without_test_and_reason_is_noticed(cell: str) -> None:
    assert problems(["name", "elsewhere", "here", cell, ""])


@pytest.mark.parametrize(
    "cell",
    [
        "does not apply: there is no such thing here",
        "`unit/test_known_failures.py::test_row_without_test_and_reason_is_noticed`",
    ],
)
def test_row_with_test_or_reason_is_accepted(cell: str) -> None:
    assert problems(["name", "elsewhere", "here", cell, ""]) == []
