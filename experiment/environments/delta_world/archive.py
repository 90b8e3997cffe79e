"""A class-data archive: what Java has once read and checked of Spark's classes, kept for later starts.

A server without one spends a good part of its first minute on reading classes. The archive belongs to one Java and one
class path; Java itself ignores it where they are not the same. It stands on an archive of Java's own classes, made here
too, since a runtime from a wheel comes without one.
"""

# ruff: noqa: S608 - the table is our own

from __future__ import annotations

import contextlib
import subprocess
import tempfile
from pathlib import Path

from experiment.environments.delta_world.client import SparkWorkspaces
from experiment.environments.delta_world.formatting import Limits
from experiment.environments.delta_world.jars import Jars
from experiment.environments.delta_world.java import Java
from experiment.environments.delta_world.launch import ServerOptions, base_archive
from experiment.environments.delta_world.locking import alone
from experiment.environments.delta_world.server import Server
from experiment.errors import FaultError
from experiment.sealing.canonical import encode
from experiment.sealing.digests import digest_bytes

_TABLE = "workspace.warm.t"
_SOURCE = f"(SELECT id + 1 AS id, 'new' AS name FROM {_TABLE}) s"
_STATEMENTS = (
    "CREATE SCHEMA workspace.warm",
    f"CREATE TABLE {_TABLE} (id INT, name STRING) TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')",
    f"INSERT INTO {_TABLE} VALUES (1, 'a'), (2, 'b'), (3, 'c')",
    f"SELECT name, COUNT(*) AS n FROM {_TABLE} WHERE id > 1 GROUP BY name ORDER BY name",
    f"INSERT OVERWRITE {_TABLE} SELECT DISTINCT * FROM {_TABLE}",
    f"UPDATE {_TABLE} SET name = 'd' WHERE id = 1",
    f"DELETE FROM {_TABLE} WHERE id = 2",
    (
        f"MERGE INTO {_TABLE} t USING {_SOURCE} ON t.id = s.id "
        "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    ),
    f"SELECT * FROM table_changes('{_TABLE}', 1)",
    f"DESCRIBE HISTORY {_TABLE}",
    f"DESCRIBE DETAIL {_TABLE}",
    f"RESTORE TABLE {_TABLE} TO VERSION AS OF 1",
    f"ALTER TABLE {_TABLE} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')",
    f"ALTER TABLE {_TABLE} RENAME COLUMN name TO title",
    f"ALTER TABLE {_TABLE} CLUSTER BY (id)",
    f"OPTIMIZE {_TABLE} FULL",
    f"DROP TABLE {_TABLE}",
)
"""What a world's episodes do, once each."""

_PATIENCE_S = 120.0


def provide_archive(cache_dir: Path, java: Java, jars: Jars) -> Path | None:
    """Return the archive for this Java and these jars, made now where it is missing, which takes about a minute.

    Archives for other ones go. None where this Java cannot make one.

    Raises:
        UsageError: Nothing here can confine the server that makes it.
        FaultError: That server broke.
    """
    cache_dir = cache_dir.absolute()
    files = [[str(path), path.stat().st_size, path.stat().st_mtime_ns] for path in jars.class_path]
    name = digest_bytes(encode([str(java.executable.resolve()), java.version, str(files)]))[:16]
    target = cache_dir / "classes" / f"{name}.jsa"
    target.parent.mkdir(parents=True, exist_ok=True)
    with alone(target.parent / "lock"):
        if not target.is_file():
            for other in target.parent.glob("*.jsa"):
                other.unlink()
            if _make_base(base_archive(target), java):
                _make(target, java, jars)
    return target if target.is_file() else None


def _make_base(target: Path, java: Java) -> bool:
    """Say whether `target` now holds Java's own classes."""
    command = [str(java.executable), "-Xshare:dump", "-XX:+UseSerialGC", f"-XX:SharedArchiveFile={target}"]
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        subprocess.run(command, capture_output=True, timeout=_PATIENCE_S, check=False)
    return target.is_file()


def _make(target: Path, java: Java, jars: Jars) -> None:
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="making-") as name:
        made = Path(name) / "out" / target.name
        made.parent.mkdir()
        empty = Path(name) / "empty"
        empty.mkdir()
        options = ServerOptions(class_archive=target, writes_archive=made)
        server = Server.start(java, jars, Path(name) / "server", options)
        try:
            workspace = SparkWorkspaces(server, Limits(statement_seconds=600.0)).open(empty, (), "classes")
            for statement in _STATEMENTS:
                shown = workspace.sql(statement)
                if shown.is_error:
                    said = f"{shown.text[:500]} {server.log_tail()}"
                    msg = f"the class-data archive cannot be made: `{statement}` failed with: {said}"
                    raise FaultError(msg)
            workspace.close()
        finally:
            server.stop()
        if made.is_file():
            made.replace(target)
