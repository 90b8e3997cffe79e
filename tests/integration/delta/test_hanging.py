"""A server that hangs is a broken service for whoever waits, within a known time."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from experiment.environments.delta_world import client
from experiment.environments.delta_world.client import SparkWorkspaces
from experiment.environments.delta_world.formatting import Limits
from experiment.environments.delta_world.jars import Jars
from experiment.environments.delta_world.java import Java
from experiment.environments.delta_world.launch import ServerOptions
from experiment.environments.delta_world.server import Server, family
from experiment.errors import ServiceError

QUESTION_S = 5.0


@pytest.fixture
def hanging(java: Java, jars: Jars, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(client, "_QUESTION_SECONDS", QUESTION_S)
    server = Server.start(java, jars, tmp_path / "server", ServerOptions(short_lived=True))
    yield server
    for pid in family(server.pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    server.stop()


def test_a_statement_of_a_hanging_server_is_a_fault_and_nothing_waits_after_it(hanging: Server, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    workspaces = SparkWorkspaces(hanging, Limits(statement_seconds=60.0, stop_seconds=2.0))
    first, second = (workspaces.open(tmp_path / "empty", (), name) for name in ("first", "second"))
    assert not first.sql("SELECT 1").is_error
    first._limits = Limits(statement_seconds=3.0, stop_seconds=2.0)
    for pid in family(hanging.pid):
        os.kill(pid, signal.SIGSTOP)
    started = time.monotonic()
    with pytest.raises(ServiceError, match="does not answer|did not stop"):
        first.sql("SELECT 2")
    assert time.monotonic() - started < 3 + 2 + 3 * QUESTION_S
    started = time.monotonic()
    with pytest.raises(ServiceError):
        second.sql("SELECT 3")
    first.close()
    second.close()
    assert time.monotonic() - started < QUESTION_S
    assert not first.folder.exists()
