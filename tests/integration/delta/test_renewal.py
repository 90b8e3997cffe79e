"""Servers over many sessions: memory stays bounded, a grown one is replaced, somebody else's is left alone."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="the extra `delta` is not installed")

from experiment.environments.base import Environment
from experiment.environments.catalogue import open_worlds
from experiment.environments.delta_world import service
from experiment.environments.delta_world.client import SparkWorkspaces
from experiment.environments.delta_world.formatting import Limits
from experiment.environments.delta_world.jars import Jars
from experiment.environments.delta_world.java import Java
from experiment.environments.delta_world.server import Server, ServerOptions
from experiment.environments.delta_world.service import OWNER_VARIABLE
from experiment.records.episode import Episode
from experiment.records.world import DeltaTablesWorld
from tests.integration.delta.conftest import INVOICES
from tests.integration.delta.test_families import CACHE, make

HEAP_MIB = 480
"""The least that Spark starts with; some 200 of it are taken before the first session."""
SESSIONS, WEIGHT = 40, 12_000_000
"""Together more than the heap holds."""


def _solve(world: Environment, episode: Episode) -> bool:
    session = world.open(episode)
    try:
        for turn in world.solve(episode):
            for name, arguments in turn.calls:
                session.call(name, dict(arguments))
        return session.verify("").success
    finally:
        session.close()


def test_heavy_sessions_one_after_another_do_not_fill_the_memory(
    java: Java, jars: Jars, fixture: Path, tmp_path: Path
) -> None:
    server = Server.start(java, jars, tmp_path / "server", ServerOptions(short_lived=True, heap_mib=HEAP_MIB))
    workspaces = SparkWorkspaces(server, Limits(statement_seconds=240.0, stop_seconds=120.0))
    try:
        for number in range(SESSIONS):
            workspace = workspaces.open(fixture, INVOICES, f"heavy-{number}")
            made = workspace.sql(f"DECLARE VARIABLE weight STRING DEFAULT repeat('x', {WEIGHT})")
            assert not made.is_error, made.text
            assert workspace.sql("SELECT length(weight) AS n").text == f"n\n{WEIGHT}\n(1 row)"
            workspace.close()
        server.require_whole()
        assert server.rss_bytes() < 2 * HEAP_MIB * 2**20
        assert list((server.folder / "episodes").iterdir()) == []
    finally:
        workspaces.close()
        server.stop()


def test_grown_server_is_replaced_between_episodes_and_answers_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = DeltaTablesWorld(cache_dir=str(CACHE), statement_seconds=240.0)
    episode = make("deleted_rows")
    with open_worlds(settings, tmp_path) as (world,):
        assert _solve(world, episode)
        monkeypatch.setattr(service, "_RENEW_RSS_BYTES", 1)
        assert _solve(world, episode)
        monkeypatch.setattr(service, "_RENEW_RSS_BYTES", 2**62)
        assert _solve(world, episode)
    assert sorted(path.name.rpartition("-")[2] for path in tmp_path.iterdir()) == ["001", "002"]


def test_server_of_somebody_else_is_played_on_and_left_running(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(OWNER_VARIABLE, server.secret)
    monkeypatch.setattr(service, "_RENEW_RSS_BYTES", 1)
    settings = DeltaTablesWorld(
        server=f"sc://127.0.0.1:{server.port}",
        shared_dir=str(server.folder),
        cache_dir=str(CACHE),
        statement_seconds=240.0,
    )
    episode = make("deleted_rows")
    for _ in range(2):
        with open_worlds(settings, tmp_path) as (world,):
            assert _solve(world, episode)
        server.require_whole()
    assert list(tmp_path.iterdir()) == []
