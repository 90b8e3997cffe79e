"""Delta tables written by pyarrow alone, and workspaces over plain folders: what the verifier reads, without Spark."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from experiment.environments.delta_world.kind import Expected
from experiment.environments.delta_world.replay import CLUSTERING, LOG, TableLog, replay
from experiment.environments.delta_world.tables import Column, FixtureTable, Row
from experiment.environments.delta_world.task import Layout
from experiment.environments.delta_world.workspace import Shown, Table
from experiment.errors import FaultError
from experiment.sealing.canonical import encode

_ARROW = {
    "integer": pyarrow.int32(),
    "long": pyarrow.int64(),
    "string": pyarrow.string(),
    "date": pyarrow.date32(),
    "timestamp": pyarrow.timestamp("us", tz="UTC"),
    "double": pyarrow.float64(),
}


def arrow_type(name: str) -> pyarrow.DataType:
    """Return the type of a column's cells."""
    if match := re.fullmatch(r"decimal\((\d+),(\d+)\)", name):
        return pyarrow.decimal128(int(match[1]), int(match[2]))
    return _ARROW[name]


def write_json(value: object) -> str:
    """Return JSON text."""
    return encode(value).decode("utf-8")


class TableWriter:
    """Appends commits to one table's log."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log_folder = folder / LOG

    @property
    def log(self) -> TableLog:
        """The table's state."""
        log = replay(self.folder)
        assert log is not None
        return log

    def create(self, table: FixtureTable) -> None:
        """Write every version of a fixture's table."""
        self.log_folder.mkdir(parents=True)
        actions = [
            {"protocol": {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["clustering"]}},
            self._metadata([(c.name, c.type, c.name) for c in table.columns], dict(table.properties)),
        ]
        if table.clustering:
            actions.append(self._domain(table.clustering))
        self.commit("CREATE TABLE", actions)
        for before, commit in zip(table.commits, table.commits[1:], strict=False):
            if commit.statement.startswith("INSERT INTO") and commit.rows[: len(before.rows)] == before.rows:
                self.append(commit.rows[len(before.rows) :])
            else:
                self.set_rows(commit.rows, clustered="OPTIMIZE" in commit.statement)

    def commit(self, operation: str, actions: Iterable[Mapping[str, Any]]) -> None:
        """Write the next commit."""
        version = len(list(self.log_folder.glob("*.json")))
        lines = [{"commitInfo": {"timestamp": 1, "operation": operation, "operationParameters": {}}}, *actions]
        text = "".join(f"{write_json(line)}\n" for line in lines)
        (self.log_folder / f"{version:020d}.json").write_text(text, encoding="utf-8")

    def append(self, rows: Sequence[Row], **add: Any) -> None:
        """Add one file with the rows."""
        self.commit("WRITE", [self.add_file(rows, **add)])

    def set_rows(self, rows: Sequence[Row], operation: str = "WRITE", *, clustered: bool = False) -> None:
        """Replace all files by one; `clustered` marks it as laid out by the table's clustering columns."""
        log = self.log
        marks: dict[str, Any] = {}
        if clustered:
            physical = {field.name: field.physical for field in log.fields}
            order = write_json([physical[name] for name in log.clustering])
            marks = {"clusteringProvider": "liquid", "tags": {"ZCUBE_ZORDER_BY": order}}
        removes = [{"remove": {"path": file.path, "dataChange": True}} for file in log.files.values()]
        self.commit(operation, [*removes, self.add_file(rows, **marks)])

    def add_file(self, rows: Sequence[Row], **add: Any) -> dict[str, Any]:
        """Write a data file of the table's present columns, and return the action that adds it."""
        fields = self.log.fields
        name = f"part-{len(list(self.folder.glob('*.parquet'))):05d}.parquet"
        cells = list(zip(*rows, strict=True)) if rows else [()] * len(fields)
        arrays = [pyarrow.array(column, arrow_type(field.type)) for column, field in zip(cells, fields, strict=True)]
        data = pyarrow.table(arrays, names=[field.physical for field in fields])
        pyarrow.parquet.write_table(data, self.folder / name)
        body = {"path": name, "partitionValues": {}, "size": 1, "modificationTime": 1, "dataChange": True, **add}
        return {"add": body}

    def set_columns(self, columns: Sequence[tuple[str, str, str]], **properties: str) -> None:
        """Change the columns (name, type, physical name) and add properties."""
        self.commit("CHANGE", [self._metadata(columns, {**self.log.properties, **properties})])

    def set_properties(self, properties: Mapping[str, str]) -> None:
        """Replace all properties."""
        columns = [(field.name, field.type, field.physical) for field in self.log.fields]
        self.commit("SET TBLPROPERTIES", [self._metadata(columns, properties)])

    def cluster_by(self, names: Sequence[str]) -> None:
        """Name the clustering columns, and rewrite nothing."""
        self.commit("CLUSTER BY", [self._domain(names)])

    def _domain(self, names: Sequence[str]) -> dict[str, Any]:
        text = write_json({"clusteringColumns": [[name] for name in names]})
        return {"domainMetadata": {"domain": CLUSTERING, "configuration": text, "removed": False}}

    def _metadata(self, columns: Sequence[tuple[str, str, str]], properties: Mapping[str, str]) -> dict[str, Any]:
        fields = [
            {
                "name": name,
                "type": kind,
                "nullable": True,
                "metadata": {} if name == physical else {"delta.columnMapping.physicalName": physical},
            }
            for name, kind, physical in columns
        ]
        schema = write_json({"type": "struct", "fields": fields})
        body = {"id": "table", "schemaString": schema, "partitionColumns": [], "configuration": dict(properties)}
        return {"metaData": body}


def write_fixture(folder: Path, layout: Layout) -> Path:
    """Write all tables of a layout below `folder`, and return it."""
    for table in layout.tables:
        TableWriter(folder / table.folder).create(table)
    return folder


def reach(writer: TableWriter, expected: Expected) -> None:
    """Bring a table from its fixture's state to the expected one, by commits that keep what must be kept."""
    before = writer.log
    columns = _evolve(before, expected.columns)
    if columns != [(field.name, field.type, field.physical) for field in before.fields]:
        writer.set_columns(columns, **{"delta.columnMapping.mode": "name"})
    if expected.constraint is not None:
        name, rule = expected.constraint
        writer.set_properties({**writer.log.properties, f"delta.constraints.{name}": rule})
    if expected.clustering != before.clustering:
        writer.cluster_by(expected.clustering)
    if expected.keeps_files:
        writer.append(expected.rows[before_count(writer) :])
    else:
        writer.set_rows(expected.rows, "RESTORE" if expected.restored else "WRITE", clustered=expected.clustered)


def before_count(writer: TableWriter) -> int:
    """Return how many rows the table's files hold."""
    return sum(pyarrow.parquet.read_metadata(writer.folder / path).num_rows for path, _ in writer.log.files)


def _evolve(before: TableLog, columns: Sequence[Column]) -> list[tuple[str, str, str]]:
    """Return the new columns with the physical names under which their data lies."""
    old = {field.name: field for field in before.fields}
    gone = [field.physical for field in before.fields if field.name not in {column.name for column in columns}]
    fresh = [column.name for column in columns if column.name not in old]
    renamed = dict(zip(fresh, gone, strict=True)) if len(fresh) == len(gone) else {}
    return [(c.name, c.type, old[c.name].physical if c.name in old else renamed.get(c.name, c.name)) for c in columns]


class FolderWorkspace:
    """A copied fixture; statements are written down and answered with nothing."""

    def __init__(self, folder: Path, tables: Sequence[Table], key: str) -> None:
        self.folder = folder
        self.tables = tuple(tables)
        self.key = key
        self.statements: list[str] = []
        self.closed = 0

    def sql(self, statement: str) -> Shown:
        """Write the statement down."""
        self.statements.append(statement)
        return Shown("no such statement" if "wrong" in statement else "done", is_error="wrong" in statement)

    def python(self, code: str) -> Shown:
        """Write the code down."""
        self.statements.append(f"python: {code}")
        return Shown("printed", is_error=False)

    def read(self, table: str) -> pyarrow.Table:
        """There is no server to read it."""
        msg = f"no server reads {table}"
        raise FaultError(msg)

    def close(self) -> None:
        """Remove the folder."""
        self.closed += 1
        shutil.rmtree(self.folder, ignore_errors=True)


class FolderWorld:
    """Workspaces over plain folders, and fixtures written by pyarrow; satisfies both seams of the world."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.opened: list[FolderWorkspace] = []

    def open(
        self, fixture: Path, tables: Sequence[Table], key: str, *, statement_seconds: float | None = None
    ) -> FolderWorkspace:
        """Copy the fixture; nothing here takes time."""
        del statement_seconds
        folder = self.root / "episodes" / key
        shutil.copytree(fixture, folder)
        self.opened.append(FolderWorkspace(folder, tables, key))
        return self.opened[-1]

    def ensure(self, layout: Layout) -> Path:
        """Write the fixture where it is missing."""
        folder = self.root / "fixtures" / layout.digest[:16]
        return folder if folder.is_dir() else write_fixture(folder, layout)
