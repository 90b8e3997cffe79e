"""Freezing: a table that was written twice, at other times under other identifiers, becomes the same bytes."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pyarrow.parquet
import pytest

from experiment.environments.delta_world.fixtures import Fixtures, check_table
from experiment.environments.delta_world.freeze import _ENCODINGS, freeze_table
from experiment.environments.delta_world.moments import commit_moment
from experiment.environments.delta_world.replay import LOG, replay
from experiment.environments.delta_world.rows import count_rows, read_rows
from experiment.environments.delta_world.tables import Column, FixtureTable, Ledger
from experiment.environments.delta_world.task import Layout, lay_out
from experiment.environments.delta_world.workspace import Shown, Table
from experiment.errors import FaultError
from tests.doubles.delta_tables import FolderWorkspace, TableWriter, write_fixture, write_json


def make_table() -> FixtureTable:
    ledger = Ledger("t", (Column("id", "integer"), Column("name", "string")))
    ledger.insert([(1, "a"), (2, "b")])
    ledger.insert([(3, "c")])
    ledger.delete("name", "b")
    return ledger.close()


def turn_encodings(path: Path) -> None:
    """List the encodings of every column last first, which means the same."""
    before = path.read_bytes()
    path.write_bytes(_ENCODINGS.sub(lambda match: match[0][:1] + match[0][:0:-1], before))
    assert path.read_bytes() != before
    assert pyarrow.parquet.read_table(path).num_rows > 0


def mark(line: dict[str, dict[str, object]], moment: int, version: int) -> None:
    """Set the times and durations of a line of the log."""
    if "metaData" in line:
        line["metaData"]["createdTime"] = moment
    if "add" in line:
        line["add"]["modificationTime"] = moment + version
    if "commitInfo" in line:
        metrics = {"executionTimeMs": str(moment % 997), "numOutputRows": "3"}
        line["commitInfo"].update(timestamp=moment + version, operationMetrics=metrics)


def write_as_spark(folder: Path, letter: str, moment: int) -> None:
    """Write the table with identifiers, times, durations, orders, checksums and a checkpoint of its own."""
    writer = TableWriter(folder)
    writer.create(make_table())
    names = {
        path.name: f"part-{number:05d}-{letter * 8}-{letter * 4}-{letter * 4}-{letter * 4}-{number:012d}-c000.parquet"
        for number, path in enumerate(sorted(folder.glob("*.parquet")))
    }
    for old, new in names.items():
        (folder / old).rename(folder / new)
        (folder / f".{new}.crc").write_bytes(letter.encode())
        if letter == "b":
            turn_encodings(folder / new)
    metadata = None
    for version, path in enumerate(sorted((folder / LOG).glob("*.json"))):
        text = path.read_text()
        for old, new in names.items():
            text = text.replace(old, new)
        lines = [json.loads(line) for line in text.splitlines()]
        for line in lines:
            mark(line, moment, version)
            metadata = line.get("metaData", metadata)
        removed = [line for line in lines if "remove" in line]
        lines = [line for line in lines if "remove" not in line] + (removed[::-1] if letter == "b" else removed)
        path.write_text("".join(write_json(line) + "\n" for line in lines))
        files = [{"path": name} for name in sorted(names.values(), reverse=letter == "b")]
        checksum = write_json({"txnId": names[min(names)][11:47], "metadata": metadata, "allFiles": files})
        (folder / LOG / f"{version:020d}.crc").write_text(checksum)
    (folder / LOG / f"{2:020d}.checkpoint.parquet").write_bytes(letter.encode())
    (folder / LOG / "_last_checkpoint").write_text("{}")
    (folder / LOG / "_staged_commits").mkdir()


def digest(folder: Path) -> dict[str, tuple[int, str]]:
    """Digest and time of every file and folder."""
    return {
        path.relative_to(folder).as_posix(): (
            path.stat().st_mtime_ns,
            hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "",
        )
        for path in folder.rglob("*")
    }


def test_two_writings_become_the_same_bytes_with_the_same_times(tmp_path: Path) -> None:
    for name, letter, moment in (("one", "a", 1_700_000_000_000), ("two", "b", 1_800_000_000_123)):
        write_as_spark(tmp_path / name, letter, moment)
    assert digest(tmp_path / "one") != digest(tmp_path / "two")
    for name in ("one", "two"):
        freeze_table(tmp_path / name, "same")
    assert digest(tmp_path / "one") == digest(tmp_path / "two")


def test_frozen_table_has_its_rows_and_the_fixed_moments(tmp_path: Path) -> None:
    write_as_spark(tmp_path / "t", "c", 1_700_000_000_000)
    freeze_table(tmp_path / "t", "name")
    check_table(tmp_path / "t", make_table())
    log = replay(tmp_path / "t")
    assert log is not None
    assert count_rows(read_rows(tmp_path / "t", log)).total() == 2
    for version in range(4):
        path = tmp_path / "t" / LOG / f"{version:020d}.json"
        moment = round(commit_moment(version).timestamp())
        assert path.stat().st_mtime == moment
        info = json.loads(path.read_text().splitlines()[0])["commitInfo"]
        assert info["timestamp"] == moment * 1000
        assert info["operationMetrics"] == {"executionTimeMs": "120", "numOutputRows": "3"}


def test_checksums_repeat_the_metadata_of_the_log(tmp_path: Path) -> None:
    write_as_spark(tmp_path / "t", "d", 1_700_000_000_000)
    freeze_table(tmp_path / "t", "name")
    first = (tmp_path / "t" / LOG / f"{0:020d}.json").read_text().splitlines()
    metadata = next(line["metaData"] for line in map(json.loads, first) if "metaData" in line)
    checksums = sorted((tmp_path / "t" / LOG).glob("*.crc"))
    assert len(checksums) == 4
    assert all(json.loads(path.read_text())["metadata"] == metadata for path in checksums)


def test_another_table_gets_other_identifiers(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_as_spark(tmp_path / name, "a", 1_700_000_000_000)
        freeze_table(tmp_path / name, name)
    names = [{path.name for path in (tmp_path / name).glob("*.parquet")} for name in ("one", "two")]
    assert not names[0] & names[1]


def test_check_finds_a_version_that_holds_other_rows(tmp_path: Path) -> None:
    table = make_table()
    TableWriter(tmp_path / "t").create(table)
    check_table(tmp_path / "t", table)
    TableWriter(tmp_path / "t").append([(9, "z")])
    with pytest.raises(FaultError, match="last version"):
        check_table(tmp_path / "t", table)
    other = Ledger("t", table.columns)
    other.insert([(1, "a"), (2, "b")])
    other.insert([(3, "other")])
    other.delete("name", "b")
    TableWriter(tmp_path / "o").create(other.close())
    with pytest.raises(FaultError, match="version 2 has other rows"):
        check_table(tmp_path / "o", table)


@pytest.mark.parametrize("version", [1, 2])
def test_check_finds_a_version_that_can_no_longer_be_read(version: int, tmp_path: Path) -> None:
    table = make_table()
    TableWriter(tmp_path / "t").create(table)
    before, log = replay(tmp_path / "t", version - 1), replay(tmp_path / "t", version)
    assert before is not None
    assert log is not None
    (lost,) = log.files.keys() - before.files.keys()
    (tmp_path / "t" / lost[0]).unlink()
    last = replay(tmp_path / "t")
    assert last is not None
    assert count_rows(read_rows(tmp_path / "t", last)).total() == 2
    with pytest.raises(FaultError, match="a data file cannot be read"):
        check_table(tmp_path / "t", table)


class LayingWorkspace(FolderWorkspace):
    """Makes the tables when the first of its statements arrives."""

    layout: Layout
    fails_at = ""

    def sql(self, statement: str) -> Shown:
        """Lay the tables out, or refuse the statement that is to fail."""
        if self.fails_at and self.fails_at in statement:
            return Shown("[SOME_ERROR] no", is_error=True)
        if not self.statements:
            write_fixture(self.folder / "build", self.layout)
        return super().sql(statement)


class LayingWorkspaces:
    """Opens laying workspaces."""

    def __init__(self, root: Path, layout: Layout, fails_at: str = "") -> None:
        self.root, self.layout, self.fails_at = root, layout, fails_at
        self.opened: list[LayingWorkspace] = []
        self.patience: float | None = None

    def open(
        self, fixture: Path, tables: tuple[Table, ...], key: str, *, statement_seconds: float | None = None
    ) -> LayingWorkspace:
        """Open an empty folder."""
        self.patience = statement_seconds
        folder = self.root / f"{key}-{len(self.opened)}"
        folder.mkdir(parents=True)
        self.opened.append(LayingWorkspace(folder, tables, key))
        self.opened[-1].layout, self.opened[-1].fails_at = self.layout, self.fails_at
        return self.opened[-1]


def test_fixture_is_built_once_and_found_again(tmp_path: Path) -> None:
    layout = lay_out("upsert", "standard", 0)
    workspaces = LayingWorkspaces(tmp_path / "server", layout)
    fixtures = Fixtures(tmp_path / "cache", workspaces)
    folder = fixtures.ensure(layout)
    assert Fixtures(tmp_path / "cache", workspaces).ensure(layout) == folder
    assert len(workspaces.opened) == 1
    assert workspaces.opened[0].closed == 1
    assert workspaces.patience == 600.0
    statements = [commit.statement for table in layout.tables for commit in table.commits]
    assert len(workspaces.opened[0].statements) == 1 + len(statements)
    assert sorted(path.name for path in folder.iterdir()) == sorted(table.folder for table in layout.tables)
    kept = {path.name for path in (tmp_path / "cache").iterdir() if not path.name.endswith(".lock")}
    assert kept == {folder.name, f"{folder.name}.json"}


@pytest.mark.parametrize("harm", ["times", "content", "seal"])
def test_a_fixture_that_is_not_as_it_was_built_is_built_again(harm: str, tmp_path: Path) -> None:
    layout = lay_out("upsert", "standard", 0)
    workspaces = LayingWorkspaces(tmp_path / "server", layout)
    folder = Fixtures(tmp_path / "cache", workspaces).ensure(layout)
    commit = next(folder.rglob("00000000000000000001.json"))
    status, data = commit.stat(), commit.read_bytes()
    if harm == "times":
        os.utime(commit)
    elif harm == "content":
        commit.write_bytes(data.replace(b"WRITE", b"wrote"))
        os.utime(commit, ns=(status.st_mtime_ns, status.st_mtime_ns))
    else:
        folder.with_name(f"{folder.name}.json").unlink()
    assert Fixtures(tmp_path / "cache", workspaces).ensure(layout) == folder
    assert len(workspaces.opened) == 2
    assert (commit.stat().st_mtime_ns, commit.read_bytes()) == (status.st_mtime_ns, data)


def test_failed_statement_leaves_no_fixture(tmp_path: Path) -> None:
    layout = lay_out("upsert", "standard", 0)
    workspaces = LayingWorkspaces(tmp_path / "server", layout, fails_at="INSERT INTO workspace.build.updates")
    with pytest.raises(FaultError, match="SOME_ERROR"):
        Fixtures(tmp_path / "cache", workspaces).ensure(layout)
    assert [path for path in (tmp_path / "cache").iterdir() if path.is_dir()] == []
    assert workspaces.opened[0].closed == 1


def test_table_that_is_not_found_is_a_fault(tmp_path: Path) -> None:
    layout = lay_out("upsert", "standard", 0)
    workspaces = LayingWorkspaces(tmp_path / "server", lay_out("unclustered", "standard", 0))
    with pytest.raises(FaultError, match="0 folders"):
        Fixtures(tmp_path / "cache", workspaces).ensure(layout)


def test_time_of_a_copied_fixture_can_be_kept(tmp_path: Path) -> None:
    write_as_spark(tmp_path / "t", "c", 1_700_000_000_000)
    freeze_table(tmp_path / "t", "name")
    times = {os.stat(path).st_mtime for path in (tmp_path / "t").rglob("*.parquet")}
    assert times <= {commit_moment(version).timestamp() for version in range(4)}
