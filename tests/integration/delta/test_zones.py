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
from experiment.environments.delta_world.client import SparkWorkspace, SparkWorkspaces
from experiment.environments.delta_world.formatting import Limits
from experiment.environments.delta_world.jars import Jars
from experiment.environments.delta_world.java import Java
from experiment.environments.delta_world.launch import SETTINGS, ServerOptions
from experiment.environments.delta_world.server import Server
from tests.integration.delta.conftest import INVOICES

ROOT = Path(__file__).resolve().parents[3]
TABLE = "workspace.ops.invoices"
# On this day in 2024, Berlin's clocks showed 02:30 twice: an hour apart, at 00:30 and at 01:30 UTC.
TWICE = "(1, 1.0, 'a', TIMESTAMP '2024-10-27 00:30:00Z'), (2, 2.0, 'b', TIMESTAMP '2024-10-27 01:30:00Z')"
WRITE = (f"ALTER TABLE {TABLE} ADD COLUMN t TIMESTAMP", f"INSERT INTO {TABLE} VALUES {TWICE}")
READ = f"SELECT t, CAST(t AS STRING) AS text FROM {TABLE} WHERE id < 3 ORDER BY id"

CLIENT = """
import json, sys
from pathlib import Path
from experiment.environments.delta_world.client import SparkWorkspaces
from experiment.environments.delta_world.formatting import Limits
from experiment.environments.delta_world.rows import count_rows
from experiment.environments.delta_world.service import RemoteServer, ServerAddress
from experiment.environments.delta_world.workspace import Table

port, secret, folder, fixture, code = sys.argv[1:6]
server = RemoteServer(ServerAddress(host="127.0.0.1", port=int(port), secret=secret, folder=folder, pid=0))
spaces = SparkWorkspaces(server, Limits(statement_seconds=240.0, stop_seconds=120.0))
space = spaces.open(Path(fixture), (Table("ops.invoices", "ops/invoices"),), "zone")
try:
    shown = [space.sql(statement).text for statement in sys.argv[6:]]
    shown += [space.python(code).text] if code else []
    rows = sorted(str(row) for row in count_rows(space.read("ops.invoices")))
finally:
    space.close()
    spaces.close()
print(json.dumps([shown, rows]))
"""
STATEMENTS = (
    *WRITE,
    READ,
    "SELECT TIMESTAMP_NTZ '2024-10-27 02:30:00' AS t, DATE '2024-10-27' AS d, array(TIMESTAMP '2024-10-27 00:30:00Z')",
    f"DESCRIBE HISTORY {TABLE}",
    "SET TIME ZONE 'Europe/Berlin'",
    READ,
    "SELECT current_timestamp() AS t",
)
CODE = f"for row in spark.sql({READ!r}).collect(): print(row.t, row.text)"


def _play(zone: str, server: Server, fixture: Path) -> tuple[list[str], list[str]]:
    places = (str(server.port), server.secret, str(server.folder), str(fixture))
    command = [sys.executable, "-c", CLIENT, *places, CODE if sandbox.tier() else "", *STATEMENTS]
    environment = {**os.environ, "TZ": zone, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stderr
    shown, rows = json.loads(done.stdout.splitlines()[-1])
    return shown, rows


def _cells(text: str) -> list[list[str]]:
    return [line.split(" | ") for line in text.splitlines()[1:-1]]


def test_client_in_another_zone_is_shown_and_judges_the_same(server: Server, fixture: Path) -> None:
    here, there = (_play(zone, server, fixture) for zone in ("UTC", "Europe/Berlin"))
    assert here == there
    shown, rows = here
    assert _cells(shown[2]) == [["2024-10-27 00:30:00"] * 2, ["2024-10-27 01:30:00"] * 2]
    assert _cells(shown[6]) == [["2024-10-27 02:30:00"] * 2] * 2
    assert [row for row in rows if "datetime(2024, 10, 27, 0, 30, tzinfo=datetime.timezone.utc)" in row] == rows[:1]
    assert [row for row in rows if "datetime(2024, 10, 27, 1, 30, tzinfo=datetime.timezone.utc)" in row] == rows[1:2]


def test_settings_of_the_server_do_not_decide_what_is_shown(
    java: Java, jars: Jars, fixture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key, value in (("session.timeZone", "Asia/Tokyo"), ("ansi.enabled", "false")):
        monkeypatch.setitem(SETTINGS, f"spark.sql.{key}", value)
    other = Server.start(java, jars, tmp_path / "server", ServerOptions(short_lived=True))
    workspaces = SparkWorkspaces(other, Limits(statement_seconds=240.0, stop_seconds=120.0))
    try:
        workspace = workspaces.open(fixture, INVOICES, "elsewhere")
        assert workspace.sql("SELECT TIMESTAMP '2024-10-27 00:30:00Z' AS t").text == "t\n2024-10-27 00:30:00\n(1 row)"
        assert "CAST_INVALID_INPUT" in workspace.sql("SELECT CAST('x' AS INT) AS n").text
        workspace.close()
    finally:
        other.stop()


ZONES = ("Europe/Berlin", "America/Los_Angeles", "+05:30")


@pytest.mark.parametrize("zone", ZONES)
def test_zone_of_the_agents_session_changes_neither_the_clock_nor_what_is_read(
    zone: str, open_workspace: Callable[[str], SparkWorkspace]
) -> None:
    plain, zoned = open_workspace("plain"), open_workspace("zoned")
    shown = []
    for workspace, first in ((plain, "SELECT 1"), (zoned, f"SET TIME ZONE '{zone}'")):
        for statement in (first, *WRITE, "SET TIME ZONE 'UTC'"):
            done = workspace.sql(statement)
            assert not done.is_error, done.text
        asked = (f"DESCRIBE HISTORY {TABLE}", "SELECT current_timestamp() AS t", READ)
        shown.append([workspace.sql(each).text for each in asked])
    assert shown[0] == shown[1]
    rows = plain.read("ops.invoices")
    assert rows is not None
    assert rows.num_rows == 3
    assert rows == zoned.read("ops.invoices")


@pytest.mark.parametrize("zone", ZONES)
def test_equal_statements_in_a_zone_give_equal_text(zone: str, open_workspace: Callable[[str], SparkWorkspace]) -> None:
    statements = (
        f"SET TIME ZONE '{zone}'",
        f"INSERT INTO {TABLE} VALUES (4, 4.0, 'jp')",
        "SELECT current_timestamp() AS t, current_date() AS d",
        f"DESCRIBE HISTORY {TABLE}",
    )
    shown = [[workspace.sql(each).text for each in statements] for workspace in map(open_workspace, ("one", "two"))]
    assert shown[0] == shown[1]
    # An hour and three minutes after the fixture's last commit, in the session's own zone; and a commit at two.
    clock = {"Europe/Berlin": "09", "America/Los_Angeles": "00", "+05:30": "12"}[zone]
    minute = 48 if zone == "+05:30" else 18
    assert _cells(shown[0][2]) == [[f"2024-06-10 {clock}:{minute}:20", "2024-06-10"]]
    assert _cells(shown[0][3])[0][1] == f"2024-06-10 {clock}:{minute - 1}:20"
