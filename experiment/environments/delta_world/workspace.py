"""What the world and the Spark server agree on: a rollout's private tables, and how they are used.

The world asks a `Workspaces` for one `Workspace` per rollout. Whatever the agent causes comes back as a `Shown`; a
server that broke is a `FaultError`, and the rollout then has no score.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import pyarrow


@dataclass(frozen=True, slots=True)
class Table:
    """A table of an episode."""

    name: str
    """`schema.table` inside the catalog `workspace`."""
    folder: str
    """Name of its folder below the episode's folder."""


@dataclass(frozen=True, slots=True)
class Shown:
    """What a tool call shows the agent."""

    text: str
    is_error: bool


class Workspace(Protocol):
    """One rollout's private tables on a server."""

    @property
    def folder(self) -> Path:
        """The episode's folder, with its Delta tables."""
        ...

    def sql(self, statement: str) -> Shown:
        """Run one statement as the agent.

        Raises:
            FaultError: The server broke, or the statement could not be stopped at its time limit.
        """
        ...

    def python(self, code: str) -> Shown:
        """Run Python in a sandbox where `spark` is the agent's session.

        Raises:
            FaultError: The server or the sandbox broke.
        """
        ...

    def read(self, table: str) -> pyarrow.Table:
        """Read the present rows of `schema.table` in a fresh session, never in the agent's.

        Raises:
            FaultError: The server broke.
            TableError: The table cannot be read as it is now.
        """
        ...

    def close(self) -> None:
        """End what still runs, release the session and remove the folder; closing twice does nothing."""
        ...


class SparkServer(Protocol):
    """A server that workspaces can be made on."""

    broken: str
    """Why no more work may be given to it; empty while it is whole."""

    @property
    def host(self) -> str:
        """Name or address that it listens at."""
        ...

    @property
    def port(self) -> int:
        """Port that it listens at."""
        ...

    @property
    def secret(self) -> str:
        """What goes with every request of its owner."""
        ...

    @property
    def folder(self) -> Path:
        """Where its episodes are."""
        ...

    def is_alive(self) -> bool:
        """Say whether it runs, as far as can be seen from here."""
        ...

    def require_whole(self) -> None:
        """Raise unless it lives and nothing has broken it.

        Raises:
            ServiceError: It ended, or a statement could not be stopped.
        """
        ...


class Workspaces(Protocol):
    """Where workspaces come from."""

    def open(
        self, fixture: Path, tables: Sequence[Table], key: str, *, statement_seconds: float | None = None
    ) -> Workspace:
        """Copy the folder `fixture`, times included, and register its tables without running a statement.

        Args:
            fixture: Folder with a Delta table per folder.
            tables: The tables to register.
            key: Name of the rollout, unique among those that are open.
            statement_seconds: How long a statement may take; None takes what an agent's may.

        Raises:
            FaultError: The server broke.
        """
        ...
