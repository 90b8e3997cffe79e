"""The rows of a replayed table from its data files."""

from __future__ import annotations

import re
from collections import Counter
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from urllib.parse import unquote

import pyarrow
import pyarrow.parquet

from experiment.environments.delta_world.replay import DataFile, Field, NeedsSparkError, TableLog

_HARMLESS = frozenset({"columnMapping", "typeWidening", "typeWidening-preview", "timestampNtz", "deletionVectors"})
"""Reader features under which a data file without a deletion vector means what it says."""
_TYPES = {
    "boolean": pyarrow.bool_(),
    "byte": pyarrow.int8(),
    "short": pyarrow.int16(),
    "integer": pyarrow.int32(),
    "long": pyarrow.int64(),
    "float": pyarrow.float32(),
    "double": pyarrow.float64(),
    "string": pyarrow.string(),
    "binary": pyarrow.binary(),
    "date": pyarrow.date32(),
    "timestamp": pyarrow.timestamp("us", tz="UTC"),
    "timestamp_ntz": pyarrow.timestamp("us"),
}
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")
_NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"

UNHELD = (ArithmeticError, LookupError, NotImplementedError, ValueError)
"""What Arrow raises for a cell that Python has no value for: a year before 1, bytes that are no text, an odd zone."""


def read_rows(folder: Path, log: TableLog) -> pyarrow.Table:
    """Return the table's rows under its own column names and types.

    Raises:
        NeedsSparkError: The table uses something that is not on the list of harmless features.
    """
    unknown = sorted(log.reader_features - _HARMLESS)
    if unknown:
        msg = f"reader features {unknown}"
        raise NeedsSparkError(msg)
    mode = log.properties.get("delta.columnMapping.mode", "none")
    if mode not in {"none", "name"}:
        msg = f"column mapping by {mode}"
        raise NeedsSparkError(msg)
    schema = pyarrow.schema([(each.name, _arrow_type(each)) for each in log.fields])
    try:
        parts = [_read_file(folder, file, log, schema) for file in log.files.values()]
    except (OSError, pyarrow.ArrowException, ValueError) as error:
        msg = f"a data file cannot be read ({type(error).__name__}: {error})"
        raise NeedsSparkError(msg) from error
    return pyarrow.concat_tables(parts) if parts else schema.empty_table()


def count_rows(table: pyarrow.Table) -> Counter[tuple[object, ...]]:
    """Return how often each row occurs; cells are plain Python values, instants in UTC.

    Raises:
        UNHELD: One of these, where a cell has no Python value.
    """
    columns = [[_plain(value) for value in column.to_pylist()] for column in table.columns]
    return Counter(zip(*columns, strict=True)) if columns else Counter()


def _plain(value: object) -> object:
    """Return a cell that compares equal where the table's cells are equal.

    Floats become their text, under which NaN equals itself and the two zeros differ.
    """
    if isinstance(value, datetime):
        return value.astimezone(UTC) if value.tzinfo else value
    if value is None or isinstance(value, bool | int | str | bytes | Decimal | date):
        return value
    return repr(value)


def _arrow_type(column: Field) -> pyarrow.DataType:
    if match := _DECIMAL.fullmatch(column.type):
        return pyarrow.decimal128(int(match[1]), int(match[2]))
    if column.type not in _TYPES:
        msg = f"column {column.name} of type {column.type or 'nested'}"
        raise NeedsSparkError(msg)
    return _TYPES[column.type]


def _read_file(folder: Path, file: DataFile, log: TableLog, schema: pyarrow.Schema) -> pyarrow.Table:
    if file.deletion_vector:
        msg = f"file {file.path} has a deletion vector"
        raise NeedsSparkError(msg)
    data = pyarrow.parquet.read_table(
        _locate(folder, file.path), partitioning=None, coerce_int96_timestamp_unit="us", use_threads=False
    )
    columns = []
    for column, kind in zip(log.fields, schema.types, strict=True):
        if column.name in log.partitioned_by:
            columns.append(_partition_value(file.partition.get(column.physical), kind, data.num_rows))
        elif column.physical in data.column_names:
            columns.append(data.column(column.physical).cast(kind))
        else:
            columns.append(pyarrow.nulls(data.num_rows, kind))
    return pyarrow.table(columns, schema=schema)


def _locate(folder: Path, path: str) -> Path:
    """Return a data file's place, which must be below the table's folder."""
    place = (folder / unquote(path)).resolve()
    if not place.is_relative_to(folder.resolve()):
        msg = f"file {path} lies outside the table's folder"
        raise NeedsSparkError(msg)
    return place


def _partition_value(text: str | None, kind: pyarrow.DataType, count: int) -> pyarrow.Array:
    if text is None or text in {"", _NULL_PARTITION}:
        return pyarrow.nulls(count, kind)
    if not (pyarrow.types.is_string(kind) or pyarrow.types.is_integer(kind) or pyarrow.types.is_date(kind)):
        msg = f"partition column of type {kind}"
        raise NeedsSparkError(msg)
    return pyarrow.repeat(pyarrow.scalar(text).cast(kind), count)
