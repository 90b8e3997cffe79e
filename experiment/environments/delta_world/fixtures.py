"""Fixtures: a folder per layout with its tables as Spark wrote them, built once and kept by content.

A fixture is built by executing its statements on the server, frozen so that it is the same in every byte wherever it
is built, and checked: every version of every table must read back as exactly the rows that the generator knows.
Episodes get copies.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from pathlib import Path

from experiment.environments.delta_world.freeze import freeze_table
from experiment.environments.delta_world.locking import alone
from experiment.environments.delta_world.replay import LOG, NeedsSparkError, replay
from experiment.environments.delta_world.rows import count_rows, read_rows
from experiment.environments.delta_world.tables import TABLE, FixtureTable
from experiment.environments.delta_world.task import CATALOG, Layout
from experiment.environments.delta_world.workspace import Workspace, Workspaces
from experiment.errors import ServiceError
from experiment.sealing.canonical import encode
from experiment.sealing.digests import digest_bytes, digest_file
from experiment.sealing.files import write_atomic

FORMAT = "delta 4.4.0, frozen 4"
"""Changes with everything that decides a fixture's bytes besides its statements."""
SCHEMA = "build"

_MODE = 0o755
_PATIENCE_S = 600.0
"""What a statement that lays a table out may take: no agent waits, and a server may be cold."""


class Fixtures:
    """A cache folder of fixtures; what is in it is compared with how it was built before its first use.

    Args:
        folder: Where fixtures are kept; made where it is missing.
        workspaces: The server that builds what is missing.
    """

    def __init__(self, folder: Path, workspaces: Workspaces) -> None:
        self._folder = folder.absolute()
        self._workspaces = workspaces
        self._checked: set[str] = set()
        """Fixtures that were found or built as they should be."""

    def ensure(self, layout: Layout) -> Path:
        """Return the layout's fixture, built now where it is missing; processes wait for one another.

        Raises:
            ServiceError: The server broke, or it made other tables than the generator meant.
        """
        name = digest_bytes(encode([FORMAT, layout.digest]))[:32]
        target = self._folder / name
        if name in self._checked:
            return target
        self._folder.mkdir(parents=True, exist_ok=True)
        with alone(self._folder / f".{name}.lock"):
            if not _is_untouched(target):
                shutil.rmtree(target, ignore_errors=True)
                self._build(layout, target)
        self._checked.add(name)
        return target

    def _build(self, layout: Layout, target: Path) -> None:
        with tempfile.TemporaryDirectory(dir=self._folder, prefix=".building-") as name:
            made = Path(name) / "fixture"
            empty = Path(name) / "empty"
            empty.mkdir()
            workspace = self._workspaces.open(empty, (), f"fixture-{target.name}", statement_seconds=_PATIENCE_S)
            try:
                _execute(workspace, f"CREATE SCHEMA IF NOT EXISTS {CATALOG}.{SCHEMA}")
                for table in layout.tables:
                    _lay(workspace, table, made / table.folder)
            finally:
                workspace.close()
            for table in layout.tables:
                freeze_table(made / table.folder, f"{layout.digest} {table.folder}")
                check_table(made / table.folder, table)
            made.chmod(_MODE)
            write_atomic(_seal_path(target), encode(_take_stock(made)))
            made.rename(target)


def _seal_path(target: Path) -> Path:
    return target.with_name(f"{target.name}.json")


def _is_untouched(target: Path) -> bool:
    """Say whether a fixture is there as it was built: a copied cache may have lost times, which histories show."""
    try:
        return target.is_dir() and _seal_path(target).read_bytes() == encode(_take_stock(target))
    except OSError:
        return False


def _take_stock(folder: Path) -> list[list[str]]:
    """Return path, digest and time of every file, in the order of their paths."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return [[str(path.relative_to(folder)), digest_file(path), str(path.stat().st_mtime_ns)] for path in files]


def check_table(folder: Path, table: FixtureTable) -> None:
    """Make sure that every version of a laid-out table holds exactly the generator's rows.

    Raises:
        ServiceError: A version is missing, is one too many, cannot be read, or has other rows.
    """
    try:
        last = replay(folder)
        if last is None or last.version != table.version:
            msg = f"fixture {folder}: its last version is {last and last.version}, not {table.version}"
            raise ServiceError(msg)
        for version, commit in enumerate(table.commits):
            log = replay(folder, version)
            if log is None or count_rows(read_rows(folder, log)) != Counter(commit.rows):
                msg = f"fixture {folder}: version {version} has other rows than `{commit.statement[:200]}` should leave"
                raise ServiceError(msg)
    except NeedsSparkError as error:
        msg = f"fixture {folder}: {error}"
        raise ServiceError(msg) from error


def _lay(workspace: Workspace, table: FixtureTable, target: Path) -> None:
    name = f"{CATALOG}.{SCHEMA}.{table.folder}"
    for commit in table.commits:
        _execute(workspace, commit.statement.replace(TABLE, name))
    logs = [path for path in workspace.folder.rglob(LOG) if path.parent.name == table.folder]
    if len(logs) != 1:
        msg = f"table {name} lies in {len(logs)} folders below {workspace.folder}"
        raise ServiceError(msg)
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copytree(logs[0].parent, target)


def _execute(workspace: Workspace, statement: str) -> None:
    shown = workspace.sql(statement)
    if shown.is_error:
        msg = f"a fixture cannot be laid out: `{statement[:200]}` failed with: {shown.text[:500]}"
        raise ServiceError(msg)
