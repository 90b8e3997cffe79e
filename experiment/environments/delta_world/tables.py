"""Tables as the generator knows them: columns, rows, and the statements that make each version."""

# ruff: noqa: S608 - every name and value in these statements is the generator's own

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal

Value = int | str | Decimal | date | datetime | None
"""A cell; instants are in UTC."""
Row = tuple[Value, ...]

TABLE = "{table}"
"""Stands for the table's own full name in a statement."""
KEPT_FOREVER: Mapping[str, str] = {
    "delta.deletedFileRetentionDuration": "interval 36500 days",
    "delta.logRetentionDuration": "interval 36500 days",
}
"""Without these, old commit times would let the first checkpoint delete the history that a task asks for."""

_SQL_TYPES = {"integer": "INT", "long": "BIGINT", "string": "STRING", "date": "DATE", "timestamp": "TIMESTAMP"}


@dataclass(frozen=True, slots=True)
class Column:
    """A column; the type is spelled as in the table's log (`integer`, `decimal(10,2)`)."""

    name: str
    type: str

    @property
    def sql_type(self) -> str:
        """The type as SQL spells it."""
        return _SQL_TYPES.get(self.type, self.type.upper())


@dataclass(frozen=True, slots=True)
class Commit:
    """One version of a table."""

    statement: str
    """SQL that makes exactly this version; `{table}` is the table."""
    rows: tuple[Row, ...]
    """All rows after it."""


@dataclass(frozen=True, slots=True)
class FixtureTable:
    """A table before the agent sees it."""

    folder: str
    columns: tuple[Column, ...]
    commits: tuple[Commit, ...]
    """Version 0 first."""
    properties: tuple[tuple[str, str], ...]
    clustering: tuple[str, ...] = ()

    @property
    def rows(self) -> tuple[Row, ...]:
        """The rows of the last version."""
        return self.commits[-1].rows

    @property
    def version(self) -> int:
        """The last version."""
        return len(self.commits) - 1


@dataclass(slots=True)
class Ledger:
    """Writes a table's history twice: as statements, and as the rows that each must leave."""

    folder: str
    columns: tuple[Column, ...]
    properties: Mapping[str, str] = field(default_factory=dict)
    clustering: tuple[str, ...] = ()
    commits: list[Commit] = field(default_factory=list)

    def __post_init__(self) -> None:
        listed = ", ".join(f"{column.name} {column.sql_type}" for column in self.columns)
        cluster = f" CLUSTER BY ({', '.join(self.clustering)})" if self.clustering else ""
        settings = ", ".join(f"'{key}' = '{value}'" for key, value in self._all_properties())
        self._commit(f"CREATE TABLE {TABLE} ({listed}) USING DELTA{cluster} TBLPROPERTIES ({settings})", ())

    @property
    def rows(self) -> tuple[Row, ...]:
        """The rows so far."""
        return self.commits[-1].rows if self.commits else ()

    @property
    def version(self) -> int:
        """The last version so far."""
        return len(self.commits) - 1

    def insert(self, rows: Sequence[Row]) -> None:
        """Append rows."""
        self._commit(f"INSERT INTO {TABLE} VALUES {self._values(rows)}", (*self.rows, *rows))

    def overwrite(self, rows: Sequence[Row]) -> None:
        """Replace all rows."""
        self._commit(f"INSERT OVERWRITE {TABLE} VALUES {self._values(rows)}", tuple(rows))

    def delete(self, column: str, value: Value) -> None:
        """Delete the rows that hold `value`."""
        place = self.place(column)
        kept = tuple(row for row in self.rows if row[place] != value)
        self._commit(f"DELETE FROM {TABLE} WHERE {column} = {self.literal(column, value)}", kept)

    def update(self, column: str, value: Value, where: str, equals: Value) -> None:
        """Set `column` to `value` in the rows whose `where` holds `equals`."""
        rows = change(self.rows, self.place(column), lambda _: value, lambda row: row[self.place(where)] == equals)
        setting = f"{column} = {self.literal(column, value)}"
        self._commit(f"UPDATE {TABLE} SET {setting} WHERE {where} = {self.literal(where, equals)}", rows)

    def optimize(self) -> None:
        """Rewrite the files without a change of content."""
        self._commit(f"OPTIMIZE {TABLE}", self.rows)

    def place(self, column: str) -> int:
        """Return the column's position."""
        return [each.name for each in self.columns].index(column)

    def literal(self, column: str, value: Value) -> str:
        """Return `value` as SQL writes it for the column."""
        return write_literal(value, self.columns[self.place(column)].sql_type)

    def close(self) -> FixtureTable:
        """Return the finished table."""
        return FixtureTable(
            folder=self.folder,
            columns=self.columns,
            commits=tuple(self.commits),
            properties=self._all_properties(),
            clustering=self.clustering,
        )

    def _all_properties(self) -> tuple[tuple[str, str], ...]:
        return tuple(sorted({**KEPT_FOREVER, **self.properties}.items()))

    def _values(self, rows: Iterable[Row]) -> str:
        types = [column.sql_type for column in self.columns]
        return ", ".join(
            f"({', '.join(write_literal(value, kind) for value, kind in zip(row, types, strict=True))})" for row in rows
        )

    def _commit(self, statement: str, rows: tuple[Row, ...]) -> None:
        self.commits.append(Commit(statement, rows))


def write_literal(value: Value, sql_type: str) -> str:
    """Return a value as an SQL literal of the type."""
    if value is None:
        return f"CAST(NULL AS {sql_type})"
    if isinstance(value, datetime):
        return f"TIMESTAMP'{value.astimezone(UTC):%Y-%m-%d %H:%M:%S}Z'"
    if isinstance(value, date):
        return f"DATE'{value.isoformat()}'"
    if isinstance(value, str):
        return f"'{value}'"
    return f"CAST({value} AS {sql_type})" if isinstance(value, Decimal) else str(value)


def change(
    rows: Iterable[Row], place: int, new: Callable[[Row], Value], where: Callable[[Row], bool]
) -> tuple[Row, ...]:
    """Return the rows with another value at `place` wherever `where` holds."""
    return tuple((*row[:place], new(row), *row[place + 1 :]) if where(row) else row for row in rows)


def write_value(value: Value) -> str | int | None:
    """Return a cell as canonical JSON can hold it; different cells of one column stay different."""
    return value if value is None or isinstance(value, int) else str(value)
