"""Times read and are judged alike whatever zone the client's process or the agent's session is in."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from experiment.environments.delta_world import sandbox
from experiment.environments.delta_world.client import SparkWorkspace
from experiment.environments.delta_world.server import Server

ROOT = Path(__file__).resolve().parents[3]
TABLE = "workspace.ops.times"
# On this day in 2024, Berlin's clocks showed 02:30 twice: an hour apart, at 00:30 and at 01:30 UTC.
TWICE = "(1, TIMESTAMP '2024-10-27 00:30:00Z'), (2, TIMESTAMP '2024-10-27 01:30:00Z')"
WRITE = (f"CREATE TABLE {TABLE} (id INT, t TIMESTAMP)", f"INSERT INTO {TABLE} VALUES {TWICE}")

CLIENT = """
import json, sys
from pathlib import Path
from experiment.environments.delta_world.client import SparkWorkspaces
from experiment.environments.delta_world.formatting import Limits
from experiment.environments.delta_world.rows import count_rows
from experiment.environments.delta_world.service import RemoteServer, ServerAddress
from experiment.environments.delta_world.workspace import Table

port, secret, folder, fixture, confined = sys.argv[1:6]
server = RemoteServer(ServerAddress(host="127.0.0.1", port=int(port), secret=secret, folder=folder, pid=0))
spaces = SparkWorkspaces(server, Limits(statement_seconds=240.0, stop_seconds=120.0))
space = spaces.open(Path(fixture), (Table("ops.invoices", "ops/invoices"),), "zone")
shown = []
for statement in sys.argv[6:]:
    shown.append(space.sql(statement).text)
if confined:
    shown.append(space.python("for row in spark.table('workspace.ops.times').orderBy('id').collect(): print(row.t)").text)
rows = sorted(str(row) for row in count_rows(space.read("ops.times")))
space.close()
spaces.close()
print(json.dumps([shown, rows]))
"""
STATEMENTS = (
    *WRITE,
    f"SELECT id, t, CAST(t AS STRING) AS text FROM {TABLE} ORDER BY id",
    "SELECT TIMESTAMP_NTZ '2024-10-27 02:30:00' AS t, DATE '2024-10-27' AS d, array(TIMESTAMP '2024-10-27 00:30:00Z')",
    "RESTORE TABLE workspace.ops.invoices TO TIMESTAMP AS OF '2024-06-10 06:14:20'",
    "DESCRIBE HISTORY workspace.ops.invoices",
    "SET TIME ZONE 'Europe/Berlin'",
    f"SELECT id, t, CAST(t AS STRING) AS text FROM {TABLE} ORDER BY id",
    "SELECT current_timestamp() AS t",
)


def _play(zone: str, server: Server, fixture: Path) -> list[list[str]]:
    confined = "yes" if sandbox.tier() else ""
    command = [
        sys.executable,
        "-c",
        CLIENT,
        str(server.port),
        server.secret,
        str(server.folder),
        str(fixture),
        confined,
    ]
    environment = {**os.environ, "TZ": zone, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [*command, *STATEMENTS], env=environment, capture_output=True, text=True, check=False, timeout=280
    )
    assert done.returncode == 0, done.stderr
    found: list[list[str]] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_client_in_another_zone_is_shown_and_judges_the_same(server: Server, fixture: Path) -> None:
    here, there = (_play(zone, server, fixture) for zone in ("UTC", "Europe/Berlin"))
    assert here == there
    shown, rows = here
    assert shown[2].splitlines()[1:3] == [
        f"{n} | 2024-10-27 0{n - 1}:30:00 | 2024-10-27 0{n - 1}:30:00" for n in (1, 2)
    ]
    assert shown[7].splitlines()[1:3] == [f"{n} | 2024-10-27 02:30:00 | 2024-10-27 02:30:00" for n in (1, 2)]
    assert len(rows) == 2
    assert all("tzinfo=datetime.timezone.utc" in row for row in rows)


ZONES = ("Europe/Berlin", "America/Los_Angeles", "+05:30")


@pytest.mark.parametrize("zone", ZONES)
def test_zone_of_the_agents_session_changes_neither_the_clock_nor_what_is_read(
    zone: str, open_workspace: Callable[[str], SparkWorkspace]
) -> None:
    plain, zoned = open_workspace("plain"), open_workspace("zoned")
    for workspace in (plain, zoned):
        workspace.sql("SELECT 1" if workspace is plain else f"SET TIME ZONE '{zone}'")
        for statement in WRITE:
            assert not workspace.sql(statement).is_error
    # The same instant, written in UTC by the server after the session's zone was put back.
    history = "DESCRIBE HISTORY workspace.ops.invoices"
    local = zoned.sql("SELECT current_timestamp() AS t").text
    plain.sql("SELECT 1")
    for workspace in (plain, zoned):
        workspace.sql("SET TIME ZONE 'UTC'")
    assert plain.sql("SELECT current_timestamp() AS t").text == zoned.sql("SELECT current_timestamp() AS t").text
    assert local.splitlines()[1].startswith("2024-06-")
    assert plain.sql(history).text == zoned.sql(history).text
    assert plain.read("ops.times") == zoned.read("ops.times")


@pytest.mark.parametrize("zone", ZONES)
def test_equal_statements_in_a_zone_give_equal_text(zone: str, open_workspace: Callable[[str], SparkWorkspace]) -> None:
    statements = (
        f"SET TIME ZONE '{zone}'",
        "INSERT INTO workspace.ops.invoices VALUES (4, 4.0, 'jp')",
        "SELECT current_timestamp() AS t, current_date() AS d",
        "DESCRIBE HISTORY workspace.ops.invoices",
    )
    shown = [[workspace.sql(each).text for each in statements] for workspace in map(open_workspace, ("one", "two"))]
    assert shown[0] == shown[1]
    # An hour and three minutes after the fixture's last commit, in the session's own zone.
    expected = {"Europe/Berlin": "2024-06-10 09:18:20", "America/Los_Angeles": "2024-06-10 00:18:20"}
    assert shown[0][2].splitlines()[1] == f"{expected.get(zone, '2024-06-10 12:48:20')} | 2024-06-10"
