"""How calls on one server take turns; a server and its statements are doubles."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow
import pytest

from experiment.environments.delta_world.client import SparkWorkspace, SparkWorkspaces
from experiment.environments.delta_world.formatting import Limits

PATIENCE_S = 60.0


class Calls:
    """Counts the calls whose time runs; each waits until as many as may run do."""

    def __init__(self, concurrent: int) -> None:
        self.most = 0
        self._now = 0
        self._lock = threading.Lock()
        self._together = threading.Barrier(concurrent)

    def run(self, *_: Any) -> pyarrow.Table:
        """Stand in for what is done within the time limit."""
        with self._lock:
            self._now += 1
            self.most = max(self.most, self._now)
        self._together.wait(PATIENCE_S)
        with self._lock:
            self._now -= 1
        return pyarrow.table({"n": [1]})


@pytest.fixture
def workspaces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SparkWorkspaces:
    session = SimpleNamespace(session_id="s", conf=SimpleNamespace(get=lambda _key: "UTC"))
    monkeypatch.setattr(SparkWorkspace, "_connect", lambda self: session)
    server = SimpleNamespace(folder=tmp_path / "server", require_whole=lambda: None, is_alive=lambda: True)
    return SparkWorkspaces(server, Limits(concurrent=3))


def test_few_calls_run_at_a_time_and_the_time_of_the_others_does_not_run(
    workspaces: SparkWorkspaces, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fixture").mkdir()
    calls = Calls(3)
    monkeypatch.setattr(SparkWorkspace, "_run", calls.run)
    opened = [workspaces.open(tmp_path / "fixture", (), f"rollout-{number}") for number in range(12)]
    with ThreadPoolExecutor(len(opened)) as threads:
        shown = list(threads.map(lambda each: each.sql("SELECT 1 AS n"), opened, timeout=PATIENCE_S))
    assert {each.text for each in shown} == {"n\n1\n(1 row)"}
    assert calls.most == 3


def test_python_takes_turns_with_statements(
    workspaces: SparkWorkspaces, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fixture").mkdir()
    calls = Calls(3)
    ran = SimpleNamespace(output="1\n", was_stopped="", has_failed=False)
    monkeypatch.setattr(SparkWorkspace, "_run", calls.run)
    monkeypatch.setattr(SparkWorkspace, "_settle", lambda self, has_ended: None)
    monkeypatch.setattr(workspaces, "sandbox", lambda: SimpleNamespace(run=lambda cell: (calls.run(), ran)[1]))
    opened = [workspaces.open(tmp_path / "fixture", (), f"rollout-{number}") for number in range(12)]
    with ThreadPoolExecutor(len(opened)) as threads:
        waiting = [
            threads.submit(each.python if number % 2 else each.sql, "SELECT 1 AS n")
            for number, each in enumerate(opened)
        ]
        assert all(not each.result(PATIENCE_S).is_error for each in waiting)
    assert calls.most == 3


def test_turn_is_given_back_after_a_fault(
    workspaces: SparkWorkspaces, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fixture").mkdir()

    def fail(*_: Any) -> None:
        raise RuntimeError

    monkeypatch.setattr(SparkWorkspace, "_run", fail)
    workspace = workspaces.open(tmp_path / "fixture", (), "rollout")
    for _ in range(4):
        with pytest.raises(RuntimeError):
            workspace.sql("SELECT 1")
    monkeypatch.setattr(SparkWorkspace, "_run", lambda *_: pyarrow.table({"n": [1]}))
    assert not workspace.sql("SELECT 1").is_error


@pytest.mark.parametrize(
    "column",
    [
        pyarrow.array([-735_160], pyarrow.date32()),
        pyarrow.array([400_000_000_000_000_000], pyarrow.timestamp("us", tz="UTC")),
        pyarrow.array([0], pyarrow.timestamp("us", tz="GMT+2")),
        pyarrow.Array.from_buffers(
            pyarrow.string(), 1, [None, pyarrow.py_buffer(b"\0\0\0\0\1\0\0\0"), pyarrow.py_buffer(b"\xff")]
        ),
    ],
    ids=["year", "far", "zone", "text"],
)
def test_result_that_python_cannot_hold_is_an_error_of_the_statement(
    column: pyarrow.Array, workspaces: SparkWorkspaces, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fixture").mkdir()
    monkeypatch.setattr(SparkWorkspace, "_run", lambda *_: pyarrow.table({"odd": column}))
    workspace = workspaces.open(tmp_path / "fixture", (), "rollout")
    shown = workspace.sql("SELECT odd")
    assert shown.is_error
    assert shown.text.startswith("The result cannot be shown: ")
    monkeypatch.setattr(SparkWorkspace, "_run", lambda *_: pyarrow.table({"n": [1]}))
    assert not workspace.sql("SELECT 1").is_error
