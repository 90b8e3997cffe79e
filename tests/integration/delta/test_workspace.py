"""Private workspaces on one confined server, driven as an agent drives them."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from experiment.environments.delta_world.client import SparkWorkspace, SparkWorkspaces
from experiment.environments.delta_world.fixtures import Fixtures
from experiment.environments.delta_world.formatting import Limits
from experiment.environments.delta_world.server import Server
from experiment.environments.delta_world.task import lay_out

Opener = Callable[[str], SparkWorkspace]

TABLE = "workspace.ops.invoices"
MERGE = (
    f"MERGE INTO {TABLE} t USING (SELECT 3 AS id, 3.5D AS amount, 'eu' AS region) s ON t.id = s.id "
    "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
)
STATEMENTS = (
    f"SELECT * FROM {TABLE}",
    f"DESCRIBE HISTORY {TABLE}",
    f"SELECT id, amount FROM {TABLE} VERSION AS OF 1 ORDER BY id",
    f"RESTORE TABLE {TABLE} TO TIMESTAMP AS OF '2024-06-10 06:14:20'",
    f"UPDATE {TABLE} SET amount = amount * 2 WHERE region = 'eu'",
    f"DELETE FROM {TABLE} WHERE id = 2",
    MERGE,
    f"ALTER TABLE {TABLE} ADD COLUMN note STRING",
    f"ALTER TABLE {TABLE} RENAME COLUMN amount TO total",
    f"ALTER TABLE {TABLE} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')",
    f"ALTER TABLE {TABLE} RENAME COLUMN amount TO total",
    f"ALTER TABLE {TABLE} ALTER COLUMN id TYPE BIGINT",
    f"ALTER TABLE {TABLE} SET TBLPROPERTIES ('delta.enableTypeWidening' = 'true')",
    f"ALTER TABLE {TABLE} ALTER COLUMN id TYPE BIGINT",
    f"ALTER TABLE {TABLE} CLUSTER BY (region)",
    f"OPTIMIZE {TABLE} FULL",
    f"DESCRIBE DETAIL {TABLE}",
    f"CREATE TABLE workspace.ops.totals AS SELECT region, sum(total) AS total FROM {TABLE} GROUP BY region",
    "SELECT * FROM workspace.ops.totals",
    "SHOW TABLES IN workspace.ops",
    "SELECT current_catalog(), current_timestamp()",
    f"DESCRIBE HISTORY {TABLE}",
    f"EXPLAIN SELECT * FROM {TABLE} WHERE id > 1",
    f"SELECT no_such_column FROM {TABLE}",
    "DROP TABLE workspace.ops.totals",
)
REFUSED_BY_DELTA = {8, 11, 23}
"""Renaming without column mapping, widening without the property, a column that does not exist."""


def test_tables_of_equal_name_have_separate_contents(open_workspace: Opener) -> None:
    first, second = open_workspace("a"), open_workspace("b")
    assert not first.sql(f"INSERT INTO {TABLE} VALUES (4, 4.0, 'jp')").is_error
    assert not second.sql(f"DELETE FROM {TABLE}").is_error
    assert first.sql(f"SELECT count(*) AS n FROM {TABLE}").text == "n\n2\n(1 row)"
    assert second.sql(f"SELECT count(*) AS n FROM {TABLE}").text == "n\n0\n(1 row)"
    assert first.read("ops.invoices").sort_by("id").column("id").to_pylist() == [4, 9]
    assert second.read("ops.invoices").num_rows == 0
    first.sql("CREATE TABLE workspace.ops.mine (id INT)")
    assert "TABLE_OR_VIEW_NOT_FOUND" in second.sql("SELECT * FROM workspace.ops.mine").text


def test_equal_statements_give_equal_text_in_every_execution(open_workspace: Opener) -> None:
    texts = []
    for key in ("one", "two"):
        workspace = open_workspace(key)
        shown = [workspace.sql(statement) for statement in STATEMENTS]
        failed = {number for number, each in enumerate(shown) if each.is_error}
        assert failed == REFUSED_BY_DELTA, [(STATEMENTS[n], shown[n].text) for n in failed ^ REFUSED_BY_DELTA]
        texts.append([each.text for each in shown])
        assert not any(str(workspace.folder) in each.text for each in shown)
        assert not any("spark_catalog" in each.text for each in shown)
    assert texts[0] == texts[1]


def test_messages_are_those_of_spark_without_hints(workspace: SparkWorkspace) -> None:
    shown = workspace.sql(f"ALTER TABLE {TABLE} ALTER COLUMN id TYPE BIGINT")
    assert shown.is_error
    assert "ALTER TABLE CHANGE COLUMN is not supported for changing column id from INT to BIGINT" in shown.text
    assert "\tat " not in shown.text
    assert "stacktrace" not in shown.text


def test_history_shows_the_clock_of_the_workspace(workspace: SparkWorkspace) -> None:
    workspace.sql(f"INSERT INTO {TABLE} VALUES (4, 4.0, 'jp')")
    lines = workspace.sql(f"DESCRIBE HISTORY {TABLE}").text.splitlines()
    times = [line.split(" | ")[1] for line in lines[1:-1]]
    assert times == ["2024-06-10 07:16:20", "2024-06-10 06:15:20", "2024-06-10 06:14:20", "2024-06-10 06:13:20"][:4]


def test_results_are_bounded(server: Server, fixture, workspaces: SparkWorkspaces) -> None:
    small = SparkWorkspaces(server, Limits(rows=3, cell_chars=10, statement_seconds=240.0))
    workspace = small.open(fixture, (), "bounded")
    try:
        lines = workspace.sql("SELECT id, repeat('x', 100000) AS s FROM range(1000)").text.splitlines()
        assert lines[0] == "id | s"
        assert lines[1:] == [*(f"{n} | xxxxxxxxxx…" for n in range(3)), "(first 3 rows; there are more)"]
    finally:
        workspace.close()


def test_statement_that_runs_too_long_is_stopped_and_commits_nothing(
    server: Server, fixture, open_workspace: Opener
) -> None:
    hasty = SparkWorkspaces(server, Limits(statement_seconds=3.0, stop_seconds=120.0))
    workspace = hasty.open(fixture, open_workspace("tables")._tables, "late")
    try:
        log = workspace.folder / "ops" / "invoices" / "_delta_log"
        before = sorted(path.name for path in log.iterdir())
        endless = "SELECT CAST(sum(a.id * b.id % 7) AS INT), 0.0, 'x' FROM range(2000000) a, range(2000000) b"
        shown = workspace.sql(f"INSERT INTO {TABLE} {endless}")
        assert shown.is_error
        assert shown.text == "The statement was cancelled: it ran longer than 3 seconds."
        assert not workspace._is_busy()
        assert sorted(path.name for path in log.iterdir()) == before
        assert server.is_alive()
    finally:
        workspace.close()


def test_fixture_is_laid_out_whatever_an_agents_statement_may_take(server: Server, tmp_path: Path) -> None:
    hasty = SparkWorkspaces(server, Limits(statement_seconds=0.001, stop_seconds=120.0))
    folder = Fixtures(tmp_path / "cache", hasty).ensure(lay_out("upsert", "standard", 0))
    workspace = hasty.open(folder, (), "hasty")
    try:
        shown = workspace.sql("SELECT count(*) AS n FROM range(1000000)")
        assert shown.text == "The statement was cancelled: it ran longer than 0.001 seconds."
    finally:
        workspace.close()


def test_many_threads_wait_for_their_turn_and_nothing_times_out_by_waiting(server: Server, fixture) -> None:
    # The last program begins 15 seconds after the first, and sleeps 5.
    turns = SparkWorkspaces(server, Limits(concurrent=2, statement_seconds=20.0, stop_seconds=120.0))
    opened = [turns.open(fixture, (), f"waiting-{number}") for number in range(16)]

    def call(number: int) -> str:
        workspace = opened[number]
        return (workspace.python("import time; time.sleep(5)") if number % 2 else workspace.sql("SELECT 1 AS n")).text

    try:
        opened[0].python("1")
        began = time.monotonic()
        with ThreadPoolExecutor(len(opened)) as threads:
            texts = list(threads.map(call, range(len(opened))))
        assert texts == ["n\n1\n(1 row)", "OK"] * 8
        assert time.monotonic() - began >= 20.0
    finally:
        for workspace in opened:
            workspace.close()
        turns.close()


def test_closing_twice_leaves_nothing(open_workspace: Opener) -> None:
    workspace = open_workspace("closed")
    workspace.close()
    workspace.close()
    assert not workspace.folder.exists()


def test_table_that_is_gone_reads_as_none(workspace: SparkWorkspace) -> None:
    assert not workspace.sql(f"DROP TABLE {TABLE}").is_error
    assert workspace.read("ops.invoices") is None
