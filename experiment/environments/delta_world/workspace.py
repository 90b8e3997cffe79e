"""The seam between the world and the server that holds its tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import pyarrow  # type: ignore[import-untyped]


@dataclass(frozen=True, slots=True)
class Table:
    """A table of an episode."""

    name: str
    """`ops.invoices`: schema and table inside the catalog `workspace`."""
    folder: str
    """Folder name below the episode's folder."""


@dataclass(frozen=True, slots=True)
class Shown:
    """What a tool call shows the agent."""

    text: str
    is_error: bool


class Workspace(Protocol):
    """One rollout's private tables on a server."""

    @property
    def folder(self) -> Path:
        """The episode's folder with its Delta tables."""
        ...

    def sql(self, statement: str) -> Shown:
        """Execute one statement; a failure that the agent may see is shown.

        Raises:
            FaultError: The server broke.
        """
        ...

    def python(self, code: str) -> Shown:
        """Execute code with `spark` defined, confined.

        Raises:
            FaultError: The server or the sandbox broke.
        """
        ...

    def read(self, table: str) -> pyarrow.Table:
        """Return the rows of `schema.table` through a session that the agent never had.

        Raises:
            FaultError: The server broke, or cannot read the table.
        """
        ...

    def close(self) -> None:
        """Release the session, end what still runs, remove the folder; a second call does nothing."""
        ...


class Workspaces(Protocol):
    """A server's private workspaces."""

    def open(self, fixture: Path, tables: Sequence[Table], key: str) -> Workspace:
        """Copy the fixture's folder, keep its times, register its tables without SQL.

        Raises:
            FaultError: The server broke.
        """
        ...
