"""Which server a worker plays on, and when it is replaced; servers and workspaces are doubles."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from experiment.environments.delta_world import service
from experiment.environments.delta_world.formatting import Limits
from experiment.environments.delta_world.java import Java
from experiment.environments.delta_world.launch import OUTGROWN
from experiment.environments.delta_world.service import (
    OWNER_VARIABLE,
    DeltaServers,
    RemoteServer,
    RenewedWorkspaces,
    ServerAddress,
    foreign_address,
)
from experiment.environments.delta_world.workspace import SparkServer, Table
from experiment.errors import ServiceError, UsageError
from experiment.records.world import DeltaTablesWorld
from experiment.sealing.canonical import decode_record, encode_record

SMALL, GROWN = 700 * 2**20, service._RENEW_RSS_BYTES + 1
OURS, FOREIGN = 4711, 0


class Workspace:
    """A folder that is there while the workspace is open."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    def close(self) -> None:
        """Remove the folder."""
        self.folder.rmdir()


class Workspaces:
    """Workspaces on one server; remembers whether it was closed."""

    made: list[Workspaces]

    def __init__(self, server: SparkServer, _limits: Limits) -> None:
        self.port = server.port
        self.root = server.folder
        self.opened: list[Workspace] = []
        self.is_closed = False
        self.patience: float | None = None
        Workspaces.made.append(self)

    def open(
        self, _fixture: Path, _tables: Sequence[Table], key: str, *, statement_seconds: float | None = None
    ) -> Workspace:
        """Open one."""
        self.patience = statement_seconds
        self.opened.append(Workspace(self.root / f"{key}-{self.port}"))
        return self.opened[-1]

    def close(self) -> None:
        """Remember it."""
        self.is_closed = True


class Driver:
    """Answers a worker with one address after another; a new port is a new server."""

    def __init__(self, root: Path, pid: int) -> None:
        self.root, self.pid = root, pid
        self.asked: list[bool] = []

    def __call__(self, renew: bool) -> str:
        self.asked.append(renew)
        port = 15000 + len(self.asked)
        return encode_record(
            ServerAddress(host="127.0.0.1", port=port, secret="s", folder=str(self.root), pid=self.pid)
        ).decode()


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> dict[int, int]:
    """Resident memory by process; may be changed."""
    held: dict[int, int] = {}
    Workspaces.made = []
    monkeypatch.setattr(service, "SparkWorkspaces", Workspaces)
    monkeypatch.setattr(service, "family_rss_bytes", lambda pid: held.get(pid, SMALL))
    return held


@pytest.fixture
def connect(tmp_path: Path, memory: dict[int, int]) -> Callable[[int], tuple[RenewedWorkspaces, Driver]]:
    def connect_to(pid: int) -> tuple[RenewedWorkspaces, Driver]:
        driver = Driver(tmp_path, pid)
        return RenewedWorkspaces(driver, Limits()), driver

    return connect_to


def test_one_server_is_kept_while_it_is_small(connect, tmp_path: Path) -> None:
    workspaces, driver = connect(OURS)
    for number in range(3):
        workspaces.open(tmp_path, (), f"e{number}").close()
    assert driver.asked == [False]


def test_grown_server_is_replaced_when_nothing_is_open_on_it(connect, memory: dict[int, int], tmp_path: Path) -> None:
    workspaces, driver = connect(OURS)
    first = workspaces.open(tmp_path, (), "first")
    memory[OURS] = GROWN
    second = workspaces.open(tmp_path, (), "second")
    first.close()
    third = workspaces.open(tmp_path, (), "third")
    assert driver.asked == [False]
    second.close()
    third.close()
    workspaces.open(tmp_path, (), "fourth").close()
    assert driver.asked == [False, True]
    assert [(each.port, each.is_closed) for each in Workspaces.made] == [(15001, True), (15002, False)]


def test_server_that_says_it_is_full_is_replaced(connect, tmp_path: Path) -> None:
    workspaces, driver = connect(OURS)
    workspaces.open(tmp_path, (), "first").close()
    (tmp_path / OUTGROWN).touch()
    workspaces.open(tmp_path, (), "second").close()
    assert driver.asked == [False, True]


def test_server_of_somebody_else_is_never_replaced(connect, memory: dict[int, int], tmp_path: Path) -> None:
    memory[FOREIGN] = GROWN
    workspaces, driver = connect(FOREIGN)
    for number in range(3):
        workspaces.open(tmp_path, (), f"e{number}").close()
    assert driver.asked == [False]


def test_what_is_closed_asks_anew(connect, tmp_path: Path) -> None:
    workspaces, driver = connect(OURS)
    workspaces.open(tmp_path, (), "one").close()
    workspaces.close()
    workspaces.close()
    workspaces.open(tmp_path, (), "two").close()
    assert driver.asked == [False, False]
    assert [each.is_closed for each in Workspaces.made] == [True, False]


def test_time_of_a_statement_is_passed_on(connect, tmp_path: Path) -> None:
    workspaces, _driver = connect(OURS)
    workspaces.open(tmp_path, (), "agent").close()
    assert Workspaces.made[0].patience is None
    workspaces.open(tmp_path, (), "fixture", statement_seconds=600.0).close()
    assert Workspaces.made[0].patience == 600.0


class StandInServer:
    """A server of our own that starts at once."""

    started: list[StandInServer]

    def __init__(self, folder: Path) -> None:
        self.host, self.port, self.secret, self.pid = "127.0.0.1", 16000 + len(self.started), "s", 100
        self.folder = folder
        self.broken = ""
        self.stops = 0
        StandInServer.started.append(self)

    @classmethod
    def start(cls, _java: object, _jars: object, folder: Path, _options: object) -> StandInServer:
        """Make the folders that a server has."""
        for name in ("episodes", "scratch"):
            (folder / name / "left").mkdir(parents=True)
        (folder / "server.log").write_text("log")
        return cls(folder)

    def require_whole(self) -> None:
        """Raise where it is broken."""
        if self.broken:
            raise ServiceError(self.broken)

    def stop(self) -> None:
        """Count it."""
        self.stops += 1


@pytest.fixture
def servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DeltaServers:
    StandInServer.started = []
    monkeypatch.setattr(service, "Server", StandInServer)
    monkeypatch.setattr(service, "find_java", lambda _configured: Java(Path("java"), "21", "PATH"))
    monkeypatch.setattr(service, "provide_jars", lambda _cache, _java: None)
    monkeypatch.setattr(service, "provide_archive", lambda _cache, _java, _jars: None)
    return DeltaServers(DeltaTablesWorld(), tmp_path)


def _port(servers: DeltaServers, slot: int, *, renew: bool = False) -> int:
    return decode_record(ServerAddress, servers.address(slot, renew=renew).encode()).port


def test_every_slot_has_one_server_in_a_folder_of_its_own(servers: DeltaServers) -> None:
    assert [_port(servers, slot) for slot in (0, 1, 0, 1)] == [16000, 16001, 16000, 16001]
    assert len({each.folder for each in StandInServer.started}) == 2
    servers.stop()
    servers.stop()
    assert [each.stops for each in StandInServer.started] == [1, 1]


@pytest.mark.parametrize("why", ["renewed", "broken"])
def test_server_that_broke_or_is_to_be_renewed_is_started_anew(servers: DeltaServers, why: str) -> None:
    _port(servers, 0)
    _port(servers, 1)
    first = StandInServer.started[0]
    first.broken = "the Spark server ended" if why == "broken" else ""
    assert _port(servers, 0, renew=why == "renewed") == 16002
    assert [each.stops for each in StandInServer.started] == [1, 0, 0]
    assert len({each.folder for each in StandInServer.started}) == 3
    assert [path.name for path in first.folder.iterdir()] == ["server.log"]


def test_foreign_server_is_neither_started_nor_stopped(
    servers: DeltaServers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(OWNER_VARIABLE, "known")
    foreign = DeltaServers(DeltaTablesWorld(server="sc://spark.example:15009", shared_dir=str(tmp_path)), tmp_path)
    address = decode_record(ServerAddress, foreign.address(0, renew=True).encode())
    assert address == ServerAddress(host="spark.example", port=15009, secret="known", folder=str(tmp_path), pid=0)
    foreign.stop()
    servers.stop()
    assert StandInServer.started == []


@pytest.mark.parametrize("server", ["spark.example", "http://spark.example:15002", "sc://", "sc://spark.example/db"])
def test_address_that_is_none_is_refused(server: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="expected sc://host:port") as caught:
        foreign_address(DeltaTablesWorld(server=server, shared_dir=str(tmp_path)))
    assert OWNER_VARIABLE in caught.value.remedy


@pytest.mark.parametrize("folder", ["", "missing"])
def test_foreign_server_needs_a_folder_that_both_see(folder: str, tmp_path: Path) -> None:
    shared = str(tmp_path / folder) if folder else ""
    with pytest.raises(UsageError, match="no folder here") as caught:
        foreign_address(DeltaTablesWorld(server="sc://spark.example", shared_dir=shared))
    assert "same path" in caught.value.remedy


def test_port_and_secret_of_a_foreign_server_have_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(OWNER_VARIABLE, raising=False)
    address = foreign_address(DeltaTablesWorld(server="sc://spark.example", shared_dir=str(tmp_path)))
    assert (address.port, address.secret, address.pid) == (15002, "", 0)


def _remote(pid: int) -> RemoteServer:
    return RemoteServer(ServerAddress(host="127.0.0.1", port=1, secret="s", folder="f", pid=pid))


def test_worker_sees_that_a_server_has_ended_before_its_owner_has_asked() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    remote = _remote(process.pid)
    remote.require_whole()
    assert process.stdin is not None
    process.stdin.close()
    while Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
        pass
    with pytest.raises(ServiceError, match="the Spark server ended"):
        remote.require_whole()
    process.wait()
    assert not _remote(process.pid).is_alive()


def test_of_a_foreign_server_only_its_answers_tell() -> None:
    remote = _remote(0)
    remote.require_whole()
    remote.broken = "a statement did not stop"
    with pytest.raises(ServiceError, match="did not stop"):
        remote.require_whole()
