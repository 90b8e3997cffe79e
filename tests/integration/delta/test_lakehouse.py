"""What Delta Lake does where an agent expects otherwise: refused merges, removed files, values that do not fit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="the extra `delta` is not installed")

from experiment.environments.base import ToolResult
from experiment.environments.delta_world.client import SparkWorkspaces
from experiment.environments.delta_world.environment import DeltaSession, DeltaWorld
from experiment.environments.delta_world.fixtures import Fixtures
from experiment.environments.delta_world.replay import replay
from experiment.environments.delta_world.server import Server
from experiment.environments.delta_world.task import parse_task
from tests.integration.delta.test_families import CACHE, make

MERGE = "MERGE INTO {main} t USING {updates} s ON t.{key} = s.{key} "
TOO_MANY = "[DELTA_MULTIPLE_SOURCE_ROW_MATCHING_TARGET_ROW_IN_MERGE]"
ODD = "INSERT INTO {main} SELECT * EXCEPT (value), %s AS value FROM {main} LIMIT 1"


@pytest.fixture(scope="module")
def world(workspaces: SparkWorkspaces) -> DeltaWorld:
    return DeltaWorld(workspaces=workspaces, fixtures=Fixtures(CACHE / "fixtures", workspaces))


class Played:
    """A session of one kind's first task, driven by statements with placeholders."""

    def __init__(self, world: DeltaWorld, kind: str, detail: int = 0) -> None:
        episode = make(kind, detail=detail)
        self.task = parse_task(episode.task_json)
        self.session: DeltaSession = world.open(episode)

    def run(self, statement: str) -> ToolResult:
        text = self.task.fill(statement)
        columns = self.task.layout.tables[0].columns
        for mark, place in (("{key}", 0), ("{amount}", 2)):
            text = text.replace(mark, columns[place].name)
        return self.session.call("run_sql", {"statement": text})

    def solve(self) -> None:
        for statement in self.task.solution:
            self.run(statement)

    def version(self) -> int:
        log = replay(self.session._workspace.folder / "main")
        assert log is not None
        return log.version

    def end(self) -> bool:
        """Whether the tables are as the task wants them."""
        try:
            return self.session.verify("").success
        finally:
            self.session.close()


@pytest.mark.parametrize(
    "statement",
    [
        MERGE + "WHEN MATCHED THEN UPDATE SET t.{amount} = s.{amount}",
        MERGE + "WHEN MATCHED AND s.seq > 3 THEN UPDATE SET t.{amount} = s.{amount} WHEN NOT MATCHED THEN INSERT *",
    ],
)
def test_merge_of_doubled_rows_is_refused_to_the_agent_and_changes_nothing(
    statement: str, world: DeltaWorld, server: Server
) -> None:
    played = Played(world, "upsert")
    before = played.version()
    shown = played.run(statement)
    assert shown.is_error
    assert TOO_MANY in shown.text
    assert played.version() == before
    server.require_whole()
    played.solve()
    assert played.end()


@pytest.mark.parametrize("action", ["WHEN NOT MATCHED THEN INSERT *", "WHEN MATCHED THEN DELETE"])
def test_merge_that_takes_doubled_rows_as_they_are_is_not_accepted(action: str, world: DeltaWorld) -> None:
    played = Played(world, "upsert")
    shown = played.run(MERGE + action)
    assert not shown.is_error, shown.text
    assert not played.end()


def test_files_that_the_agent_removed_cannot_be_restored_and_the_table_is_whole(
    world: DeltaWorld, server: Server
) -> None:
    played = Played(world, "restore_overwrite")
    folder: Path = played.session._workspace.folder / "main"
    before = sorted(path.name for path in folder.glob("*.parquet"))
    assert not played.run("VACUUM {main}").is_error
    assert "RETENTION_PERIOD_TOO_SHORT" in played.run("VACUUM {main} RETAIN 0 HOURS").text
    assert sorted(path.name for path in folder.glob("*.parquet")) == before
    played.run("SET spark.databricks.delta.retentionDurationCheck.enabled = false")
    assert not played.run("VACUUM {main} RETAIN 0 HOURS").is_error
    version, left = played.version(), [path.name for path in folder.glob("*.parquet")]
    assert 0 < len(left) < len(before)
    shown = played.run("RESTORE TABLE {main} TO VERSION AS OF 2")
    assert shown.is_error
    assert "Not all files from version 2 are available" in shown.text
    assert played.run("SELECT * FROM {main} VERSION AS OF 2").is_error
    assert played.run("SELECT count(*) AS n FROM {main}").text == "n\n3\n(1 row)"
    assert played.version() == version
    server.require_whole()
    assert not played.end()


def test_restoring_before_the_clean_up_is_accepted(world: DeltaWorld) -> None:
    played = Played(world, "restore_overwrite")
    played.solve()
    played.run("SET spark.databricks.delta.retentionDurationCheck.enabled = false")
    assert not played.run("VACUUM {main} RETAIN 0 HOURS").is_error
    assert played.end()


@pytest.mark.parametrize(
    ("value", "reason"), [("3000000000", "CAST_OVERFLOW_IN_TABLE_INSERT"), ("'x12'", "CAST_INVALID_INPUT")]
)
def test_value_that_does_not_fit_is_refused_or_judged(value: str, reason: str, world: DeltaWorld) -> None:
    played = Played(world, "widen_column", detail=1)
    before = played.version()
    shown = played.run(ODD % value)
    assert shown.is_error
    assert reason in shown.text
    assert played.version() == before
    # With the rules of old, the number wraps around and the text becomes NULL.
    for setting in ("spark.sql.storeAssignmentPolicy = LEGACY", "spark.sql.ansi.enabled = false"):
        assert not played.run(f"SET {setting}").is_error
    assert not played.run(ODD % value).is_error
    assert played.version() == before + 1
    played.solve()
    assert not played.end()


def test_column_that_arrives_empty_is_not_accepted(world: DeltaWorld) -> None:
    played = Played(world, "append_evolved")
    assert played.run("INSERT INTO {main} SELECT * FROM {arrivals}").is_error
    assert not played.run("ALTER TABLE {main} ADD COLUMN note STRING").is_error
    assert not played.run("INSERT INTO {main} SELECT * EXCEPT (note), NULL FROM {arrivals}").is_error
    assert played.session.find_faults() == (f"{played.task.tables[0].name}: rows differ",)
    assert not played.end()


def test_schema_that_evolves_by_itself_is_accepted_with_all_values(world: DeltaWorld) -> None:
    played = Played(world, "append_evolved")
    played.run("SET spark.databricks.delta.schema.autoMerge.enabled = true")
    assert not played.run("INSERT INTO {main} SELECT * FROM {arrivals}").is_error
    assert played.end()


def test_layout_named_but_not_written_is_not_accepted(world: DeltaWorld) -> None:
    played = Played(world, "wrong_column")
    named, rewritten = played.task.solution[-2:]
    assert rewritten.endswith(" FULL")
    for statement in (named, rewritten.removesuffix(" FULL")):
        assert not played.run(statement).is_error
        assert "files are not clustered that way" in " ".join(played.session.find_faults())
    assert not played.run(rewritten).is_error
    assert played.end()


UNHELD: Sequence[str] = (
    "SELECT DATE '-0044-03-15' AS d",
    "SELECT TIMESTAMP '+12000-01-01 00:00:00' AS t",
    "SELECT INTERVAL '1-2' YEAR TO MONTH AS i",
    "SELECT CAST(unhex('ff') AS STRING) AS s",
)


@pytest.mark.parametrize("statement", UNHELD)
def test_value_that_python_cannot_hold_is_shown_as_an_error(statement: str, world: DeltaWorld, server: Server) -> None:
    played = Played(world, "audit_copy")
    shown = played.run(statement)
    assert shown.is_error
    assert shown.text.startswith("The result cannot be shown: ")
    assert played.run("SELECT 1 AS one").text == "one\n1\n(1 row)"
    server.require_whole()
    played.session.close()


def test_table_with_such_a_value_is_judged(world: DeltaWorld) -> None:
    played = Played(world, "audit_copy")
    played.solve()
    day = played.task.layout.tables[0].columns[4].name
    assert not played.run(f"UPDATE {{audit}} SET {day} = DATE '-0044-03-15' WHERE {{key}} = 1").is_error
    assert not played.end()
