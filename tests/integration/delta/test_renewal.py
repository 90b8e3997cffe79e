"""Servers over many sessions: memory stays bounded, a grown one is replaced, somebody else's is left alone."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
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
from experiment.environments.delta_world.launch import OUTGROWN, ServerOptions
from experiment.environments.delta_world.server import Server
from experiment.environments.delta_world.service import OWNER_VARIABLE
from experiment.records.episode import Episode
from experiment.records.world import DeltaTablesWorld
from experiment.sealing.canonical import encode
from tests.integration.delta.conftest import INVOICES
from tests.integration.delta.test_families import CACHE, make

HEAP_MIB = 480
"""The least that Spark starts with; some 200 of it are taken before the first session."""
SESSIONS, WEIGHT = 40, 12_000_000
"""Together more than the heap holds."""
VARIABLE = f"DECLARE VARIABLE weight STRING DEFAULT repeat('x', {WEIGHT})"


def _solve(world: Environment, episode: Episode) -> bool:
    session = world.open(episode)
    try:
        for turn in world.solve(episode):
            for name, arguments in turn.calls:
                session.call(name, dict(arguments))
        return session.verify("").success
    finally:
        session.close()


@pytest.fixture
def small(java: Java, jars: Jars, tmp_path: Path) -> Iterator[Server]:
    server = Server.start(java, jars, tmp_path / "server", ServerOptions(short_lived=True, heap_mib=HEAP_MIB))
    yield server
    server.stop()


@pytest.fixture
def heavy(fixture: Path, tmp_path: Path) -> Path:
    """The fixture with a table whose description is long."""
    folder = tmp_path / "heavy"
    shutil.copytree(fixture, folder)
    log = folder / INVOICES[0].folder / "_delta_log"
    for checksum in log.glob("*.crc"):
        checksum.unlink()
    first = log / f"{0:020d}.json"
    lines = [json.loads(line) for line in first.read_text().splitlines()]
    for line in lines:
        line.get("metaData", {}).get("configuration", {})["weight"] = "x" * WEIGHT
    first.write_bytes(b"".join(encode(line) + b"\n" for line in lines))
    return folder


def _play_many(server: Server, fixture: Path, statements: Mapping[str, str]) -> None:
    """Play one session after another; afterwards nothing is left of them."""
    workspaces = SparkWorkspaces(server, Limits(statement_seconds=240.0, stop_seconds=120.0))
    for number in range(SESSIONS):
        workspace = workspaces.open(fixture, INVOICES, f"heavy-{number}")
        for statement, text in statements.items():
            assert workspace.sql(statement).text == text
        workspace.close()
    server.require_whole()
    assert server.rss_bytes() < 2 * HEAP_MIB * 2**20
    assert not (server.folder / OUTGROWN).exists()
    assert list((server.folder / "episodes").iterdir()) == []


def test_what_sessions_held_does_not_fill_the_memory(small: Server, fixture: Path) -> None:
    _play_many(small, fixture, {VARIABLE: "OK", "SELECT length(weight) AS n": f"n\n{WEIGHT}\n(1 row)"})


def test_what_delta_knows_of_past_tables_does_not_fill_the_memory(small: Server, heavy: Path) -> None:
    _play_many(small, heavy, {"SELECT count(*) AS n FROM workspace.ops.invoices": "n\n1\n(1 row)"})


def test_server_whose_memory_is_full_of_what_is_in_use_says_so(small: Server, fixture: Path) -> None:
    workspaces = SparkWorkspaces(small, Limits(statement_seconds=240.0, stop_seconds=120.0))
    held = []
    try:
        while not (small.folder / OUTGROWN).exists() and len(held) < SESSIONS:
            held.append(workspaces.open(fixture, INVOICES, f"held-{len(held)}"))
            assert not held[-1].sql(VARIABLE).is_error
        assert 1 < len(held) < SESSIONS
        small.require_whole()
    finally:
        for workspace in held:
            workspace.close()


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
