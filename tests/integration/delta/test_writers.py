"""Writers on one table and statements that outlive their call: what is reported is what was committed."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="the extra `delta` is not installed")

from pyspark.errors import PySparkException

from experiment.environments.delta_world import sandbox
from experiment.environments.delta_world.client import SparkWorkspace, SparkWorkspaces, _disconnect
from experiment.environments.delta_world.formatting import Limits
from experiment.environments.delta_world.jars import Jars
from experiment.environments.delta_world.java import Java
from experiment.environments.delta_world.server import Server
from experiment.errors import UsageError
from tests.integration.delta.conftest import INVOICES

TABLE = "workspace.ops.invoices"
THREADS, ROUNDS = 8, 2
LATER_S = 4.0
SLOW, SLOW_S = "SELECT CAST(sum(id * id % 7) % 100 AS INT), 0.0D, 'x' FROM range({count})", 3.0
ENDLESS = "SELECT CAST(sum(a.id * b.id % 7) AS INT), 0.0D, 'x' FROM range(2000000) a, range(2000000) b"
needs_sandbox = pytest.mark.skipif(not sandbox.tier(), reason="this machine cannot confine the agent's Python")


def _commits(workspace: SparkWorkspace) -> list[str]:
    return sorted(path.name for path in (workspace.folder / "ops/invoices/_delta_log").glob("*[0-9].json"))


def test_of_writers_on_one_table_each_success_is_a_commit_and_its_rows(workspace: SparkWorkspace) -> None:
    before = len(_commits(workspace))
    sessions = [workspace._connect() for _ in range(THREADS)]

    def insert(number: int) -> int:
        failures = 0
        for turn in range(ROUNDS):
            try:
                sessions[number].sql(f"INSERT INTO {TABLE} VALUES ({100 * number + turn}, 0.0, 'x')").collect()
            except PySparkException:
                failures += 1
        return failures

    with ThreadPoolExecutor(THREADS) as threads:
        successes = THREADS * ROUNDS - sum(threads.map(insert, range(THREADS), timeout=240))
    for session in sessions:
        _disconnect(session)
    assert successes > 0
    assert len(_commits(workspace)) == before + successes
    rows = workspace.read("ops.invoices")
    assert rows is not None
    written = [number for number in rows.column("id").to_pylist() if number != 9]
    assert len(written) == len(set(written)) == successes


def test_folder_belongs_to_one_server(server: Server, java: Java, jars: Jars) -> None:
    with pytest.raises(UsageError, match="another Spark server has this folder") as caught:
        Server.start(java, jars, server.folder)
    assert "of its own" in caught.value.remedy
    server.require_whole()


def test_nothing_is_committed_after_a_statement_was_reported_as_cancelled(
    server: Server, fixture: Path, workspace: SparkWorkspace
) -> None:
    count = 1_000_000
    while True:
        began = time.monotonic()
        assert not workspace.sql(SLOW.format(count=count)).is_error
        took_s = time.monotonic() - began
        if took_s > SLOW_S:
            break
        count *= 2
    hasty = SparkWorkspaces(server, Limits(statement_seconds=SLOW_S / 4, stop_seconds=120.0))
    late = hasty.open(fixture, INVOICES, "late")
    try:
        before = _commits(late)
        shown = late.sql(f"INSERT INTO {TABLE} {SLOW.format(count=count)}")
        assert shown.text == f"The statement was cancelled: it ran longer than {SLOW_S / 4:g} seconds."
        at_once = _commits(late)
        time.sleep(2 * took_s + 2)  # long enough for the statement to end, did it still run
        assert _commits(late) == at_once == before
        server.require_whole()
    finally:
        late.close()


PROGRAMS = {
    "ends while its statement runs": f"""
import os, threading, time
def insert():
    spark.sql("INSERT INTO {TABLE} {ENDLESS}").collect()
threading.Thread(target=insert, daemon=True).start()
time.sleep(1)
os._exit(0)
""",
    "is stopped between many commits": f"""
while True:
    spark.sql("INSERT INTO {TABLE} VALUES (5, 0.0, 'x')").collect()
""",
    "leaves before its answer is let go": """
import os
spark.sql("SELECT 1 AS one").show()
os._exit(0)
""",
    "leaves an answer unread": """
import os
next(iter(spark.sql("SELECT id FROM range(200000)").toLocalIterator()))
os._exit(0)
""",
}


@needs_sandbox
@pytest.mark.parametrize("name", PROGRAMS)
def test_nothing_of_a_program_goes_on_after_its_call(
    name: str, server: Server, fixture: Path, workspaces: SparkWorkspaces
) -> None:
    limits = Limits(statement_seconds=20.0, stop_seconds=60.0)
    program = SparkWorkspaces(server, limits)
    program._sandbox = workspaces.sandbox()  # one for all: it takes long to start
    workspace = program.open(fixture, INVOICES, "program")
    try:
        workspace.python(PROGRAMS[name])
        assert not workspace._is_busy()
        server.require_whole()
        at_once = _commits(workspace)
        time.sleep(LATER_S)
        assert _commits(workspace) == at_once
        assert workspace.sql("SELECT 1 AS one").text == "one\n1\n(1 row)"
    finally:
        workspace.close()
