"""One confined server for all tests of this folder, and a fixture of two tables."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from experiment.environments.delta_world.client import SparkWorkspace, SparkWorkspaces
from experiment.environments.delta_world.formatting import Limits
from experiment.environments.delta_world.jars import Jars, provide_jars
from experiment.environments.delta_world.java import Java, find_java
from experiment.environments.delta_world.launch import ServerOptions
from experiment.environments.delta_world.server import Server
from experiment.environments.delta_world.workspace import Table
from experiment.errors import UsageError

INVOICES = (Table("ops.invoices", "ops/invoices"),)
_FIXTURE_TIME = 1_718_000_000


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if importlib.util.find_spec("pyspark") is None:
        for item in items:
            if Path(__file__).parent in item.path.parents:
                item.add_marker(pytest.mark.skip(reason="pyspark is not installed (extra `delta`)"))


@pytest.fixture(scope="session")
def java() -> Java:
    return find_java()


@pytest.fixture(scope="session")
def jars(java: Java, pytestconfig: pytest.Config) -> Jars:
    try:
        return provide_jars(pytestconfig.rootpath / ".cache" / "delta", java)
    except UsageError as error:
        if "cannot be fetched" in str(error):
            pytest.skip(str(error))
        raise


@pytest.fixture(scope="session")
def server(java: Java, jars: Jars, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server.start(java, jars, tmp_path_factory.mktemp("server"), ServerOptions(short_lived=True))
    yield server
    server.stop()


@pytest.fixture(scope="session")
def workspaces(server: Server) -> Iterator[SparkWorkspaces]:
    workspaces = SparkWorkspaces(server, Limits(statement_seconds=240.0, stop_seconds=120.0))
    yield workspaces
    workspaces.close()


@pytest.fixture(scope="session")
def fixture(workspaces: SparkWorkspaces, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`ops.invoices` with rows (1, 1.5, eu), (2, 2.5, us) at version 1 and one bad row at version 2, dated."""
    folder = tmp_path_factory.mktemp("fixture")
    empty = tmp_path_factory.mktemp("empty")
    maker = workspaces.open(empty, (), "fixture")
    properties = "'delta.logRetentionDuration' = 'interval 36500 days'"
    for statement in (
        "CREATE SCHEMA workspace.ops",
        f"CREATE TABLE workspace.ops.invoices (id INT, amount DOUBLE, region STRING) TBLPROPERTIES ({properties})",
        "INSERT INTO workspace.ops.invoices VALUES (1, 1.5, 'eu'), (2, 2.5, 'us')",
        "INSERT OVERWRITE workspace.ops.invoices VALUES (9, 9.0, 'xx')",
    ):
        shown = maker.sql(statement)
        assert not shown.is_error, shown.text
    (maker.folder / "ops").rename(folder / "ops")
    maker.close()
    for entry in sorted((folder / "ops" / "invoices" / "_delta_log").glob("*[0-9].*")):
        entry.write_text(re.sub(r'"createdTime":\d+', f'"createdTime":{_FIXTURE_TIME}000', entry.read_text()))
        if entry.suffix == ".json":
            moment = _FIXTURE_TIME + int(entry.stem) * 60
            os.utime(entry, (moment, moment))
    return folder


@pytest.fixture(scope="module")
def attacker(workspaces: SparkWorkspaces, fixture: Path) -> Iterator[SparkWorkspace]:
    workspace = workspaces.open(fixture, INVOICES, "attacker")
    yield workspace
    workspace.close()


@pytest.fixture(scope="module")
def victim(workspaces: SparkWorkspaces, fixture: Path) -> Iterator[SparkWorkspace]:
    workspace = workspaces.open(fixture, INVOICES, "victim")
    yield workspace
    workspace.close()


@pytest.fixture
def open_workspace(workspaces: SparkWorkspaces, fixture: Path) -> Iterator[Callable[[str], SparkWorkspace]]:
    opened: list[SparkWorkspace] = []

    def open_one(key: str) -> SparkWorkspace:
        opened.append(workspaces.open(fixture, INVOICES, key))
        return opened[-1]

    yield open_one
    for workspace in opened:
        workspace.close()


@pytest.fixture
def workspace(open_workspace: Callable[[str], SparkWorkspace]) -> SparkWorkspace:
    return open_workspace("episode")
