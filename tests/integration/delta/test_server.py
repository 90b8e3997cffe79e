"""The life of a server: confined, watched, stopped with its owner."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from experiment.environments.delta_world import server as server_module
from experiment.environments.delta_world.archive import provide_archive
from experiment.environments.delta_world.client import SparkWorkspace, SparkWorkspaces
from experiment.environments.delta_world.formatting import Limits
from experiment.environments.delta_world.jars import Jars
from experiment.environments.delta_world.java import Java
from experiment.environments.delta_world.launch import ServerOptions, base_archive
from experiment.environments.delta_world.server import Server, confinement, family
from experiment.errors import FaultError, UsageError
from tests.integration.delta.conftest import INVOICES

PATIENCE_S = 60.0
FEW_FAULTS = 1_000
"""A process has a hundred or two; the statements below took more than five thousand with a process a file."""


def _await(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + PATIENCE_S
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.1)
    return condition()


def test_server_is_confined_and_known_by_its_memory(server: Server) -> None:
    assert confinement() != "none"
    assert 100e6 < server.rss_bytes() < 4e9
    assert os.getsid(server.pid) == server.pid


def _faults_of_children(server: Server) -> int:
    """Page faults of processes that the server's processes have started and seen ending; no process has none."""
    stats = (Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in family(server.pid))
    return sum(int(fields[8]) for fields in stats)


def test_statements_start_no_process(java: Java, jars: Jars, fixture: Path, tmp_path: Path) -> None:
    """Hadoop runs one for each file that it makes or renames, unless it is told how else to do that."""
    server = Server.start(java, jars, tmp_path / "server", ServerOptions(short_lived=True))
    workspace = SparkWorkspaces(server, Limits(statement_seconds=240.0)).open(fixture, INVOICES, "processes")
    workspace.sql("SELECT 1")
    before = _faults_of_children(server)
    for statement in (
        "CREATE TABLE workspace.ops.fresh (id INT, name STRING)",
        "INSERT INTO workspace.ops.fresh VALUES (1, 'a'), (2, 'b')",
        "UPDATE workspace.ops.fresh SET name = 'c' WHERE id = 1",
        "RESTORE TABLE workspace.ops.invoices TO VERSION AS OF 1",
    ):
        shown = workspace.sql(statement)
        assert not shown.is_error, shown.text
    # Spark itself runs one (`getconf`), some seconds after its start.
    assert _faults_of_children(server) - before < FEW_FAULTS
    made = [path for path in (workspace.folder / "ops" / "fresh").rglob("*") if path.is_file()]
    assert len(made) > 3
    assert {stat.S_IMODE(path.stat().st_mode) for path in made} == {0o644}
    workspace.close()
    server.stop()


def test_archive_of_classes_is_made_once_and_read(java: Java, jars: Jars, tmp_path: Path) -> None:
    archive = provide_archive(tmp_path, java, jars)
    assert archive is not None
    made = archive.stat()
    assert provide_archive(tmp_path, java, jars) == archive
    assert archive.stat() == made
    server = Server.start(java, jars, tmp_path / "server", ServerOptions(class_archive=archive))
    mapped = "".join(Path(f"/proc/{pid}/maps").read_text() for pid in family(server.pid))
    server.stop()
    assert archive.name in mapped
    assert base_archive(archive).name in mapped


def test_dead_server_is_a_fault_and_never_an_answer(java: Java, jars: Jars, fixture: Path, tmp_path: Path) -> None:
    server = Server.start(java, jars, tmp_path / "server", ServerOptions(short_lived=True))
    workspace = SparkWorkspaces(server, Limits(statement_seconds=240.0)).open(fixture, INVOICES, "doomed")
    os.killpg(server.pid, signal.SIGKILL)
    with pytest.raises(FaultError, match="ended|does not answer"):
        workspace.sql("SELECT 1")
    with pytest.raises(FaultError, match="ended|does not answer"):
        workspace.read("ops.invoices")
    workspace.close()
    assert not workspace.folder.exists()
    server.stop()
    assert server.rss_bytes() == 0


def test_server_that_dies_during_a_statement_is_a_fault(java: Java, jars: Jars, fixture: Path, tmp_path: Path) -> None:
    server = Server.start(java, jars, tmp_path / "server", ServerOptions(short_lived=True))
    workspace = SparkWorkspaces(server, Limits(statement_seconds=240.0)).open(fixture, INVOICES, "doomed")
    assert not workspace.sql("SELECT 1").is_error
    killer = subprocess.Popen([sys.executable, "-c", f"import os, time; time.sleep(3); os.killpg({server.pid}, 9)"])
    with pytest.raises(FaultError):
        workspace.sql("SELECT sum(a.id * b.id % 7) FROM range(2000000) a, range(2000000) b")
    killer.wait()
    workspace.close()
    server.stop()


def test_server_ends_with_its_owner(java: Java, jars: Jars, tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path\n"
        "from experiment.environments.delta_world import jars, java, server\n"
        f"found = java.find_java({str(java.executable)!r})\n"
        f"jars = jars.provide_jars(Path({str(jars.class_path[-1].parent)!r}), found)\n"
        f"s = server.Server.start(found, jars, Path({str(tmp_path / 'server')!r}))\n"
        "print(s.pid, flush=True); time.sleep(600)"
    )
    owner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    pid = int(owner.stdout.readline())
    assert Path(f"/proc/{pid}").exists()
    owner.kill()
    owner.wait()
    assert _await(lambda: not Path(f"/proc/{pid}").exists())


def test_machine_that_cannot_confine_is_refused(
    java: Java, jars: Jars, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "find_bwrap", lambda: None)
    monkeypatch.setattr(server_module.confine, "landlock_version", lambda: 0)
    with pytest.raises(UsageError, match="confine"):
        Server.start(java, jars, tmp_path / "server")


def test_server_that_cannot_start_says_why(java: Java, jars: Jars, tmp_path: Path) -> None:
    with pytest.raises(FaultError, match="did not start"):
        Server.start(java, Jars(jars.class_path[:3]), tmp_path / "server")


def test_closed_sessions_are_let_go(
    open_workspace: Callable[[str], SparkWorkspace], server: Server, fixture: Path
) -> None:
    keeper = open_workspace("keeper")
    for number in range(5):
        open_workspace(f"short-{number}").close()
    assert not keeper.sql("SELECT 1").is_error
    assert [path.name for path in (server.folder / "episodes").iterdir() if path.name.startswith("short")] == []
