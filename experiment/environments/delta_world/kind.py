"""A kind of task: what it lays out, what it asks for, what must be true at the end, and how it is done."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from experiment.environments.delta_world.scene import Scene
from experiment.environments.delta_world.tables import Column, FixtureTable, Ledger, Row, Value

MAIN = "main"
"""Folder of the table that a task is about."""


@dataclass(frozen=True, slots=True)
class Expected:
    """What must hold for one table at the end; what is not named here must be as it was.

    Rows are compared without order. Column names, types and order are compared. Properties that the table had
    must still have their values, and the first commit must still be the table's own.
    """

    folder: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    clustering: tuple[str, ...] = ()
    """Clustering columns."""
    clustered: bool = False
    """Every file of the table was written by a clustering of exactly these columns."""
    keeps_files: bool = False
    """No file that the table had was rewritten."""
    restored: bool = False
    """The table's history shows a RESTORE after the version that the agent found."""
    constraint: tuple[str, str] | None = None
    """(name, expression) of a CHECK constraint."""


@dataclass(frozen=True, slots=True)
class Posed:
    """A task over laid-out tables; `{main}` and other folders stand for the tables' full names."""

    prompts: tuple[str, ...]
    """Wordings of the same task."""
    expected: tuple[Expected, ...]
    """Tables that may or must change; all others must be as they were."""
    statements: tuple[str, ...]
    """SQL that solves the task."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of task."""

    name: str
    family: str
    details: int
    """Number of tasks that can be posed over the same tables."""
    lay: Callable[[Scene], tuple[FixtureTable, ...]]
    """Main table first; depends on the scene alone."""
    pose: Callable[[Scene, tuple[FixtureTable, ...], int], Posed]
    """(scene, tables, detail) -> task."""
    companions: tuple[tuple[str, str], ...] = ()
    """(folder, suffix of the table's name) of the tables beside the main one."""


def begin(scene: Scene, folder: str = MAIN, **properties: str) -> Ledger:
    """Return a table with two loads and the tier's ordinary commits."""
    ledger = Ledger(folder, scene.columns, {f"delta.{key}": value for key, value in properties.items()})
    fill(scene, ledger)
    return ledger


def fill(scene: Scene, ledger: Ledger) -> None:
    """Load the table twice, and go on with the tier's ordinary commits."""
    count = scene.count()
    ledger.insert(scene.make_rows(count // 2, 1))
    ledger.insert(scene.make_rows(count - count // 2, 1 + count // 2))
    for _ in range(scene.tier.upkeep):
        append(scene, ledger)


def append(scene: Scene, ledger: Ledger, count: int = 3) -> None:
    """Load a few rows with new keys."""
    ledger.insert(scene.make_rows(count, next_key(ledger)))


def next_key(ledger: Ledger) -> int:
    """Return the smallest key that is larger than all keys; 1 for an empty table."""
    return 1 + max((key for key in (row[0] for row in ledger.rows) if isinstance(key, int)), default=0)


def unchanged(table: FixtureTable) -> Expected:
    """Expect the table as it is."""
    return Expected(table.folder, table.columns, table.rows, table.clustering)


def values(table: FixtureTable, place: int) -> list[Value]:
    """Return the different values of a column, in the order of their first rows."""
    return list(dict.fromkeys(row[place] for row in table.rows))
