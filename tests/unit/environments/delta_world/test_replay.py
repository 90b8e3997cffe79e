"""The log replay: what state a table's log gives, which rows its files hold, and what is left to Spark."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from experiment.environments.delta_world.replay import LOG, NeedsSparkError, TableLog, replay
from experiment.environments.delta_world.rows import count_rows, read_rows
from experiment.environments.delta_world.tables import Column, Ledger, Row
from tests.doubles.delta_tables import TableWriter, write_json

COLUMNS = (Column("id", "integer"), Column("name", "string"))
PLAIN = [("id", "integer", "id"), ("name", "string", "name")]


def make_table(folder: Path, *batches: tuple[Row, ...]) -> TableWriter:
    ledger = Ledger("t", COLUMNS)
    for batch in batches:
        ledger.insert(batch)
    writer = TableWriter(folder / "t")
    writer.create(ledger.close())
    return writer


def rows_of(writer: TableWriter, version: int | None = None) -> list[tuple[object, ...]]:
    log = replay(writer.folder, version)
    assert log is not None
    return sorted(count_rows(read_rows(writer.folder, log)).elements(), key=str)


def edit(writer: TableWriter, name: str, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the last action of that name in the log."""
    for path in sorted(writer.log_folder.glob("*.json"), reverse=True):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        found = [line[name] for line in lines if name in line]
        if found:
            change(found[-1])
            path.write_text("".join(write_json(line) + "\n" for line in lines))
            return
    raise AssertionError(name)


def write_checkpoint(writer: TableWriter, parts: int = 1) -> None:
    """Write a classic checkpoint of the present state, and delete the commits that it covers."""
    log = writer.log
    maps = pyarrow.map_(pyarrow.string(), pyarrow.string())
    metadata = {
        "id": log.table_id,
        "schemaString": write_json(
            {"fields": [{"name": f.name, "type": f.type, "metadata": {}} for f in log.fields], "type": "struct"}
        ),
        "partitionColumns": [],
        "configuration": list(log.properties.items()),
    }
    adds = [
        {"path": f.path, "partitionValues": [], "tags": list(f.tags.items()) or None, "clusteringProvider": f.provider}
        for f in log.files.values()
    ]
    domains = [{"domain": d, "configuration": c, "removed": False} for d, c in log.domains.items()]
    rows: list[dict[str, Any]] = [{"protocol": {"minReaderVersion": 1}}, {"metaData": metadata}]
    rows += [{"add": add} for add in adds] + [{"domainMetadata": domain} for domain in domains]
    schema = pyarrow.schema(
        {
            "protocol": pyarrow.struct({"minReaderVersion": pyarrow.int32()}),
            "metaData": pyarrow.struct(
                {
                    "id": pyarrow.string(),
                    "schemaString": pyarrow.string(),
                    "partitionColumns": pyarrow.list_(pyarrow.string()),
                    "configuration": maps,
                }
            ),
            "add": pyarrow.struct(
                {
                    "path": pyarrow.string(),
                    "partitionValues": maps,
                    "tags": maps,
                    "clusteringProvider": pyarrow.string(),
                }
            ),
            "remove": pyarrow.struct({"path": pyarrow.string()}),
            "domainMetadata": pyarrow.struct(
                {"domain": pyarrow.string(), "configuration": pyarrow.string(), "removed": pyarrow.bool_()}
            ),
        }.items()
    )
    for part in range(parts):
        chosen = rows[part::parts]
        name = f"{log.version:020d}.checkpoint" + (f".{part + 1:010d}.{parts:010d}" if parts > 1 else "") + ".parquet"
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(chosen, schema), writer.log_folder / name)
    for version in range(log.version):
        (writer.log_folder / f"{version:020d}.json").unlink()


def same(left: TableLog, right: TableLog) -> bool:
    names = ("version", "fields", "partitioned_by", "properties", "files", "domains", "clustering")
    return all(getattr(left, name) == getattr(right, name) for name in names)


def test_every_version_has_its_own_rows(tmp_path: Path) -> None:
    writer = make_table(tmp_path, ((1, "a"), (2, "b")), ((3, "c"),))
    writer.set_rows([(9, "z")])
    assert rows_of(writer) == [(9, "z")]
    assert rows_of(writer, 2) == [(1, "a"), (2, "b"), (3, "c")]
    assert rows_of(writer, 1) == [(1, "a"), (2, "b")]
    assert rows_of(writer, 0) == []


def test_folder_without_a_log_is_no_table(tmp_path: Path) -> None:
    assert replay(tmp_path) is None
    (tmp_path / LOG).mkdir()
    assert replay(tmp_path) is None


@pytest.mark.parametrize("parts", [1, 3])
def test_checkpoint_stands_for_the_commits_that_are_gone(tmp_path: Path, parts: int) -> None:
    writer = make_table(tmp_path, ((1, "a"),), ((2, "b"),))
    writer.cluster_by(["name"])
    writer.set_rows([(1, "a"), (2, "b"), (3, "c")], clustered=True)
    writer.append([(4, "d")])
    before = writer.log
    write_checkpoint(writer, parts)
    assert same(writer.log, before)
    writer_after = before.version + 1
    (writer.log_folder / f"{writer_after:020d}.json").write_text(
        write_json({"remove": {"path": next(iter(before.files.values())).path}}) + "\n"
    )
    assert rows_of(writer) == [(4, "d")]


def test_incomplete_checkpoint_is_not_used(tmp_path: Path) -> None:
    writer = make_table(tmp_path, ((1, "a"),), ((2, "b"),))
    write_checkpoint(writer, 3)
    next(writer.log_folder.glob("*.0000000002.0000000003.parquet")).unlink()
    with pytest.raises(NeedsSparkError, match="no readable checkpoint"):
        replay(writer.folder)


def test_missing_commit_is_left_to_spark(tmp_path: Path) -> None:
    writer = make_table(tmp_path, ((1, "a"),), ((2, "b"),))
    (writer.log_folder / f"{1:020d}.json").unlink()
    with pytest.raises(NeedsSparkError, match="commit 1"):
        replay(writer.folder)


def test_renamed_column_keeps_its_values(tmp_path: Path) -> None:
    writer = make_table(tmp_path, ((1, "a"),))
    writer.set_columns([("id", "integer", "id"), ("label", "string", "name")], **{"delta.columnMapping.mode": "name"})
    writer.append([(2, "b")])
    assert rows_of(writer) == [(1, "a"), (2, "b")]
    assert [field.name for field in writer.log.fields] == ["id", "label"]


def test_added_column_is_null_in_older_files_and_a_dropped_one_is_gone(tmp_path: Path) -> None:
    writer = make_table(tmp_path, ((1, "a"),))
    writer.set_columns([*PLAIN, ("score", "double", "score")])
    writer.append([(2, "b", 0.5)])
    assert rows_of(writer) == [(1, "a", None), (2, "b", "0.5")]
    writer.set_columns([("id", "integer", "id"), ("score", "double", "score")])
    assert rows_of(writer) == [(1, None), (2, "0.5")]


def test_widened_column_reads_narrow_and_wide_files(tmp_path: Path) -> None:
    writer = make_table(tmp_path, ((1, "a"),))
    writer.set_columns([("id", "long", "id"), ("name", "string", "name")])
    writer.append([(5_000_000_000, "b")])
    assert rows_of(writer) == [(1, "a"), (5_000_000_000, "b")]


def test_narrowed_column_is_left_to_spark(tmp_path: Path) -> None:
    writer = make_table(tmp_path, ((1, "a"),))
    writer.set_columns([("id", "long", "id"), ("name", "string", "name")])
    writer.append([(5_000_000_000, "b")])
    writer.set_columns(PLAIN)
    with pytest.raises(NeedsSparkError, match="data file"):
        rows_of(writer)


def test_instants_are_in_utc_whichever_way_they_are_stored(tmp_path: Path) -> None:
    moment = datetime(2024, 10, 27, 0, 30, tzinfo=UTC)
    writer = make_table(tmp_path)
    writer.set_columns([("at", "timestamp", "at")])
    writer.append([(moment,)])
    old = pyarrow.table({"at": pyarrow.array([moment.replace(tzinfo=None)], pyarrow.timestamp("ns"))})
    pyarrow.parquet.write_table(old, writer.folder / "old.parquet", use_deprecated_int96_timestamps=True)
    writer.commit("WRITE", [{"add": {"path": "old.parquet"}}])
    assert rows_of(writer) == [(moment,), (moment,)]


def test_partition_values_come_from_the_log(tmp_path: Path) -> None:
    writer = make_table(tmp_path)
    pyarrow.parquet.write_table(pyarrow.table({"name": ["a"]}), writer.folder / "a b.parquet")
    for value in ("7", None):
        writer.commit("WRITE", [{"add": {"path": "a%20b.parquet", "partitionValues": {"id": value}}}])
        edit(writer, "metaData", lambda body: body.update(partitionColumns=["id"]))
        assert rows_of(writer) == [(None if value is None else 7, "a")]


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("protocol", {"minReaderVersion": 3, "readerFeatures": ["v2Checkpoint"]}, "v2Checkpoint"),
        ("protocol", {"minReaderVersion": 3, "readerFeatures": ["somethingNew", "columnMapping"]}, "somethingNew"),
        ("protocol", {"minReaderVersion": 4}, "reader version 4"),
        ("metaData", {"configuration": {"delta.columnMapping.mode": "id"}}, "mapping by id"),
        ("add", {"deletionVector": {"storageType": "u", "pathOrInlineDv": "x", "offset": 1}}, "deletion vector"),
        ("add", {"path": "../../elsewhere.parquet"}, "outside"),
        ("add", {"path": "gone.parquet"}, "data file"),
        (
            "metaData",
            {"schemaString": '{"fields": [{"name": "s", "type": {"type": "struct", "fields": []}}]}'},
            "nested",
        ),
        ("metaData", {"schemaString": '{"fields": [{"name": "s", "type": "variant"}]}'}, "variant"),
    ],
)
def test_what_is_not_on_the_list_is_left_to_spark(
    tmp_path: Path, name: str, change: dict[str, Any], words: str
) -> None:
    writer = make_table(tmp_path, ((1, "a"),))
    edit(writer, name, lambda body: body.update(change))
    with pytest.raises(NeedsSparkError, match=words):
        rows_of(writer)


def test_feature_that_changes_no_data_file_does_not_matter(tmp_path: Path) -> None:
    writer = make_table(tmp_path, ((1, "a"),))
    edit(
        writer,
        "protocol",
        lambda body: body.update(minReaderVersion=3, readerFeatures=["deletionVectors", "typeWidening"]),
    )
    assert rows_of(writer) == [(1, "a")]


def test_damaged_log_and_damaged_file_are_left_to_spark(tmp_path: Path) -> None:
    writer = make_table(tmp_path, ((1, "a"),))
    next(writer.folder.glob("*.parquet")).write_bytes(b"PAR1 nothing")
    with pytest.raises(NeedsSparkError, match="data file"):
        rows_of(writer)
    (writer.log_folder / f"{1:020d}.json").write_text("{")
    with pytest.raises(NeedsSparkError, match="cannot be read"):
        replay(writer.folder)


def test_cells_compare_as_the_table_compares_them() -> None:
    cells = pyarrow.table({"a": [1.5, float("nan"), float("nan")], "b": [Decimal("1.50")] * 3})
    assert count_rows(cells) == {("1.5", Decimal("1.5")): 1, ("nan", Decimal("1.5")): 2}
