"""The state of a Delta table from its log, without Spark.

The log's JSON commits are replayed from the first one, or from a classic checkpoint where older commits are gone.
Rows are read only where every feature of the table is on the list of those that do not change what a data file
means, or are handled here (column mapping by name, type widening, partitions). Everything else is
`NeedsSparkError`, never a guess.

Source: https://github.com/delta-io/delta/blob/master/PROTOCOL.md (log, checkpoints, column mapping).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pyarrow.parquet

LOG = "_delta_log"
CLUSTERING = "delta.clustering"
"""Domain of a log that names the clustering columns."""

_COMMIT = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(?:\.\d{10}\.(\d{10}))?\.parquet")
_IMPLIED_FEATURES: Mapping[int, frozenset[str]] = {
    1: frozenset(),
    2: frozenset({"columnMapping"}),
    3: frozenset(),
}
"""What a reader of a protocol version must know besides the listed features."""


class NeedsSparkError(Exception):
    """The table uses something that only Spark may interpret; the message names it."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """An active data file."""

    path: str
    """As in the log: URL-encoded, relative to the table's folder."""
    partition: Mapping[str, str | None]
    provider: str | None
    """What clustered the file."""
    tags: Mapping[str, str]
    deletion_vector: bool


@dataclass(frozen=True, slots=True)
class Field:
    """A column of the table."""

    name: str
    type: str
    """Empty for a nested type."""
    physical: str
    """The column's name in data files."""


@dataclass(frozen=True, slots=True)
class Operation:
    """What a commit says about itself."""

    version: int
    name: str
    parameters: Mapping[str, object]


@dataclass(slots=True)
class TableLog:
    """A table's state at one version."""

    version: int
    reader_features: frozenset[str] = frozenset()
    fields: tuple[Field, ...] = ()
    partitioned_by: tuple[str, ...] = ()
    properties: dict[str, str] = field(default_factory=dict)
    table_id: str = ""
    files: dict[tuple[str, str], DataFile] = field(default_factory=dict)
    """By path and deletion vector."""
    domains: dict[str, str] = field(default_factory=dict)
    operations: list[Operation] = field(default_factory=list)
    """Of the commits that were replayed, in order."""

    @property
    def clustering(self) -> tuple[str, ...]:
        """Names of the clustering columns, as users call them."""
        if CLUSTERING not in self.domains:
            return ()
        logical = {each.physical: each.name for each in self.fields}
        listed = json.loads(self.domains[CLUSTERING]).get("clusteringColumns", [])
        return tuple(".".join(logical.get(part, part) for part in path) for path in listed)


def replay(folder: Path, version: int | None = None) -> TableLog | None:
    """Return the table's state at its last version, or at `version`; None where there is no table.

    Raises:
        NeedsSparkError: The log cannot be replayed from what is there, or its files cannot be read.
    """
    try:
        return _replay(folder / LOG, version)
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        msg = f"the log cannot be read ({type(error).__name__}: {error})"
        raise NeedsSparkError(msg) from error


def _replay(log: Path, version: int | None) -> TableLog | None:
    if not log.is_dir():
        return None
    names = sorted(path.name for path in log.iterdir())
    commits = {int(match[1]): log / name for name in names if (match := _COMMIT.fullmatch(name))}
    if not commits:
        return None
    last = max(commits) if version is None else version
    start, state = _begin(log, names, commits, last)
    for number in range(start, last + 1):
        if number not in commits:
            msg = f"commit {number} of the log is missing"
            raise NeedsSparkError(msg)
        for line in commits[number].read_text(encoding="utf-8").splitlines():
            _apply(state, json.loads(line), number)
    state.version = last
    return state


def _begin(log: Path, names: Sequence[str], commits: Mapping[int, Path], last: int) -> tuple[int, TableLog]:
    """Return the first commit to replay, and the state before it."""
    if 0 in commits:
        return 0, TableLog(version=-1)
    parts: dict[int, list[tuple[str, int]]] = {}
    for name in names:
        if (match := _CHECKPOINT.fullmatch(name)) and int(match[1]) <= last:
            parts.setdefault(int(match[1]), []).append((name, int(match[2] or 1)))
    for number in sorted(parts, reverse=True):
        if len(parts[number]) == parts[number][0][1]:
            state = TableLog(version=number)
            for name, _ in parts[number]:
                _load_checkpoint(state, log / name)
            return number + 1, state
    msg = "the log's first commit is missing and there is no readable checkpoint"
    raise NeedsSparkError(msg)


def _load_checkpoint(state: TableLog, path: Path) -> None:
    table = pyarrow.parquet.read_table(path)
    if "sidecar" in table.column_names:
        msg = f"checkpoint {path.name} has sidecar files"
        raise NeedsSparkError(msg)
    for row in table.select([name for name in _READERS if name in table.column_names]).to_pylist():
        action = {name: value for name, value in row.items() if value is not None}
        _apply(state, cast("dict[str, object]", _plain_maps(action)), state.version)


def _plain_maps(value: object) -> object:
    """Return a checkpoint's value as the JSON log writes it: maps, which arrive as pairs, become objects."""
    if isinstance(value, dict):
        return {key: _plain_maps(each) for key, each in value.items()}
    if isinstance(value, list) and value and all(isinstance(each, tuple) for each in value):
        return {key: _plain_maps(each) for key, each in value}
    return value


def _apply(state: TableLog, action: Mapping[str, object], version: int) -> None:
    for name, body in action.items():
        if name in _READERS and isinstance(body, dict):
            _READERS[name](state, body)
        elif name == "commitInfo" and isinstance(body, dict):
            parameters = body.get("operationParameters") or {}
            state.operations.append(Operation(version, str(body.get("operation")), parameters))


def _add_file(state: TableLog, body: Mapping[str, object]) -> None:
    state.files[_file_key(body)] = _read_file(body)


def _remove_file(state: TableLog, body: Mapping[str, object]) -> None:
    state.files.pop(_file_key(body), None)


def _file_key(body: Mapping[str, object]) -> tuple[str, str]:
    vector = body.get("deletionVector")
    return str(body["path"]), _vector_key(vector) if isinstance(vector, dict) else ""


def _vector_key(vector: Mapping[str, object]) -> str:
    return f"{vector.get('storageType')}{vector.get('pathOrInlineDv')}@{vector.get('offset')}"


def _read_file(body: Mapping[str, object]) -> DataFile:
    return DataFile(
        path=str(body["path"]),
        partition=cast("Mapping[str, str | None]", body.get("partitionValues") or {}),
        provider=cast("str | None", body.get("clusteringProvider")),
        tags=cast("Mapping[str, str]", body.get("tags") or {}),
        deletion_vector=body.get("deletionVector") is not None,
    )


def _read_metadata(state: TableLog, body: Mapping[str, object]) -> None:
    state.table_id = str(body["id"])
    state.partitioned_by = tuple(cast("list[str]", body.get("partitionColumns") or []))
    state.properties = dict(cast("Mapping[str, str]", body.get("configuration") or {}))
    state.fields = tuple(_read_field(each) for each in json.loads(str(body["schemaString"]))["fields"])


def _read_field(body: Mapping[str, object]) -> Field:
    name, kind = str(body["name"]), body["type"]
    metadata = cast("Mapping[str, object]", body.get("metadata") or {})
    physical = metadata.get("delta.columnMapping.physicalName", name)
    return Field(name, kind if isinstance(kind, str) else "", str(physical))


def _read_protocol(state: TableLog, body: Mapping[str, object]) -> None:
    version = cast("int", body["minReaderVersion"])
    implied = _IMPLIED_FEATURES.get(version, frozenset({f"reader version {version}"}))
    state.reader_features = implied | frozenset(cast("list[str]", body.get("readerFeatures") or []))


def _read_domain(state: TableLog, body: Mapping[str, object]) -> None:
    if body.get("removed"):
        state.domains.pop(str(body["domain"]), None)
    else:
        state.domains[str(body["domain"])] = str(body["configuration"])


_READERS = {
    "add": _add_file,
    "remove": _remove_file,
    "metaData": _read_metadata,
    "protocol": _read_protocol,
    "domainMetadata": _read_domain,
}
