"""The Spark servers of a driver and how its workers find them.

One server for each worker that runs at a time, started when it is first asked for, started anew where it broke or
where its worker asks for that. A server that somebody else runs is used as it is, and never stopped.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from experiment.environments.base import is_whole
from experiment.environments.delta_world.archive import provide_archive
from experiment.environments.delta_world.client import SparkWorkspace, SparkWorkspaces
from experiment.environments.delta_world.formatting import Limits
from experiment.environments.delta_world.jars import provide_jars
from experiment.environments.delta_world.java import find_java
from experiment.environments.delta_world.launch import OUTGROWN, ServerOptions
from experiment.environments.delta_world.server import Server, family_rss_bytes
from experiment.environments.delta_world.workspace import Table
from experiment.errors import ServiceError, UsageError
from experiment.records.base import Count, Record
from experiment.records.world import DeltaTablesWorld
from experiment.sealing.canonical import decode_record, encode_record

OWNER_VARIABLE = "WORLD_OWNER"
"""Environment variable with what tells the owner's requests from the agent's, for a server that somebody else runs."""

_SCHEME = "sc"
_DEFAULT_PORT = 15002
_RENEW_RSS_BYTES = 3_000 * 2**20
"""A server that holds more, or whose own memory is full, is replaced as soon as nothing is open on it."""


class ServerAddress(Record):
    """Where a Spark Connect server is, and what its owner may do there."""

    host: str
    port: Count
    secret: str
    folder: str
    """Folder that the server sees under the same path."""
    pid: Count
    """Process of a server of ours; 0 for somebody else's."""


class DeltaServers:
    """The servers of one driver.

    Args:
        settings: The recipe's world.
        folder: Where our own servers have their files and logs.
    """

    def __init__(self, settings: DeltaTablesWorld, folder: Path) -> None:
        self._settings = settings
        self._folder = folder
        self._servers: dict[int, Server] = {}
        self._started = 0

    def address(self, slot: int, *, renew: bool) -> str:
        """Return the address of the slot's server, which is up; see `base.Services`."""
        if self._settings.server:
            return encode_record(foreign_address(self._settings)).decode()
        server = self._servers.get(slot)
        if server is not None and (renew or not is_whole(server)):
            self._stop(slot)
            server = None
        if server is None:
            server = self._servers[slot] = self._start(slot)
        address = ServerAddress(
            host=server.host, port=server.port, secret=server.secret, folder=str(server.folder), pid=server.pid
        )
        return encode_record(address).decode()

    def stop(self) -> None:
        """Stop our own servers; their logs stay."""
        for slot in list(self._servers):
            self._stop(slot)

    def _start(self, slot: int) -> Server:
        self._started += 1
        java = find_java(self._settings.java)
        cache_dir = Path(self._settings.cache_dir)
        jars = provide_jars(cache_dir, java)
        options = ServerOptions(class_archive=provide_archive(cache_dir, java, jars))
        folder = self._folder / f"{os.getpid()}-{slot}-{self._started:03d}"
        return Server.start(java, jars, folder, options)

    def _stop(self, slot: int) -> None:
        server = self._servers.pop(slot)
        server.stop()
        for name in ("episodes", "scratch"):
            shutil.rmtree(server.folder / name, ignore_errors=True)


def foreign_address(settings: DeltaTablesWorld) -> ServerAddress:
    """Return the address of the server that a recipe names.

    Raises:
        UsageError: It is no `sc://host:port`, or there is no folder that both sides see.
    """
    place = urlsplit(settings.server)
    if place.scheme != _SCHEME or not place.hostname or place.path.strip("/"):
        msg = f"`world.server` is '{settings.server}', expected sc://host:port"
        raise UsageError(msg, remedy=f"Give what tells the owner in the environment variable {OWNER_VARIABLE}.")
    if not settings.shared_dir or not Path(settings.shared_dir).is_dir():
        msg = f"`world.shared_dir` is '{settings.shared_dir}', which is no folder here"
        raise UsageError(msg, remedy="Name a folder that the Spark server sees under the same path.")
    return ServerAddress(
        host=place.hostname,
        port=place.port or _DEFAULT_PORT,
        secret=os.environ.get(OWNER_VARIABLE, ""),
        folder=settings.shared_dir,
        pid=0,
    )


@dataclass
class RemoteServer:
    """A server as a worker sees it, which neither starts nor stops it."""

    address: ServerAddress
    broken: str = ""
    """Why no more work may be given to it; empty while it is whole."""

    @property
    def host(self) -> str:
        """Where it listens."""
        return self.address.host

    @property
    def port(self) -> int:
        """Where it listens."""
        return self.address.port

    @property
    def secret(self) -> str:
        """What goes with every request of the owner."""
        return self.address.secret

    @property
    def folder(self) -> Path:
        """Where its episodes are."""
        return Path(self.address.folder)

    def is_alive(self) -> bool:
        """Say whether its process runs; of somebody else's server only its answers tell."""
        if not self.address.pid:
            return True
        try:
            status = Path(f"/proc/{self.address.pid}/stat").read_text(encoding="ascii", errors="replace")
        except OSError:
            return False
        # A process that its owner, the driver, has not asked for yet is dead all the same.
        return status.rpartition(")")[2].split()[0] not in {"Z", "X"}

    def require_whole(self) -> None:
        """Raise unless the server lives and nothing has broken it.

        Raises:
            ServiceError: It ended, or a statement could not be stopped.
        """
        if not self.is_alive():
            self.broken = self.broken or "the Spark server ended"
        if self.broken:
            msg = f"{self.folder / 'server.log'}: {self.broken}"
            raise ServiceError(msg)


class RenewedWorkspaces:
    """Workspaces on the server that the driver provides; the server is replaced when it has grown.

    Args:
        ask: Asks the driver for the address; True asks for a new server.
        limits: What a tool call may take and show.
    """

    def __init__(self, ask: Callable[[bool], str], limits: Limits) -> None:
        self._ask = ask
        self._limits = limits
        self._lock = threading.Lock()
        self._current: SparkWorkspaces | None = None
        self._pid, self._folder = 0, Path()
        self._open: set[Path] = set()

    def open(
        self, fixture: Path, tables: Sequence[Table], key: str, *, statement_seconds: float | None = None
    ) -> SparkWorkspace:
        """Open a workspace; see `workspace.Workspaces`."""
        with self._lock:
            workspaces = self._whole()
            workspace = workspaces.open(fixture, tables, key, statement_seconds=statement_seconds)
            self._open = {folder for folder in self._open if folder.exists()} | {workspace.folder}
        return workspace

    def close(self) -> None:
        """Stop what runs beside the worker; the server is the driver's."""
        if self._current is not None:
            self._current.close()
        self._current = None

    def _whole(self) -> SparkWorkspaces:
        """Return workspaces on a server that has not grown too much, or that somebody still uses."""
        is_outgrown = self._is_outgrown()
        if is_outgrown:
            self.close()
        if self._current is None:
            address = decode_record(ServerAddress, self._ask(is_outgrown).encode())
            self._pid, self._folder = address.pid, Path(address.folder)
            self._current = SparkWorkspaces(RemoteServer(address), self._limits)
        return self._current

    def _is_outgrown(self) -> bool:
        """Say whether a server of ours shall be replaced; its memory is looked at only where nothing is open on it."""
        if self._current is None or not self._pid or any(folder.exists() for folder in self._open):
            return False
        is_full = (self._folder / OUTGROWN).exists()
        return is_full or family_rss_bytes(self._pid) > _RENEW_RSS_BYTES
