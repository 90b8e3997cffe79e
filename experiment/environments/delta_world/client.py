"""Workspaces on a Spark Connect server: a session per rollout, with a catalog and a folder of its own.

Every request goes out once: what cannot be answered is a fault, because a statement that is sent again may run twice.
"""

# pyspark's client is untyped, loaded only where it is used, and what is needed of it has no public name.
# ruff: noqa: ANN401, PLC0415, SLF001

from __future__ import annotations

import atexit
import contextlib
import logging
import re
import secrets
import shutil
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from experiment.environments.delta_world.formatting import Limits, bound, format_error, format_table
from experiment.environments.delta_world.jars import PYSPARK_REMEDY
from experiment.environments.delta_world.normalising import Normaliser
from experiment.environments.delta_world.rows import UNHELD
from experiment.environments.delta_world.sandbox import Cell, Sandbox
from experiment.environments.delta_world.statements import check_statement, first_word
from experiment.environments.delta_world.workspace import Shown, SparkServer, Table
from experiment.errors import ServiceError, UsageError

if TYPE_CHECKING:
    import pyarrow

T = TypeVar("T")

_CATALOG = "spark.sql.catalog.workspace"
_LOST = frozenset({"UNAVAILABLE", "DEADLINE_EXCEEDED", "UNAUTHENTICATED", "UNIMPLEMENTED", "DATA_LOSS"})
_SESSION_LOST = re.compile(r"(\([\w.]+\) )?\[INVALID_HANDLE\.(SESSION|OPERATION)")
"""How Spark's own message begins; further on the words may be the agent's."""
_QUERIES = frozenset({"SELECT", "WITH", "VALUES", "TABLE", "FROM"})
"""Statements that start so show data; others show what Spark says about tables."""
_ZONE = "spark.sql.session.timeZone"
_FIXED = {_ZONE: "UTC", "spark.sql.ansi.enabled": "true", "spark.sql.storeAssignmentPolicy": "ANSI"}
"""What decides how values are stored and shown, whoever runs the server; the agent may change it for its session."""
_SETTERS = frozenset({"SET", "RESET"})
_POLL_S = 0.05
_QUESTION_SECONDS = 60.0
"""Everything but a statement is answered at once, by a server that is not stuck; a starved one may take a while."""


class SparkWorkspaces:
    """Makes workspaces on one server.

    Few calls run at a time, whoever makes them; the others wait for their turn before their time is counted. So what
    a call is answered does not depend on how many rollouts there are.
    """

    def __init__(self, server: SparkServer, limits: Limits | None = None) -> None:
        self._server = server
        self._limits = limits or Limits()
        self._turns = threading.BoundedSemaphore(self._limits.concurrent)
        self._sandbox: Sandbox | None = None
        self._lock = threading.Lock()

    def sandbox(self) -> Sandbox:
        """Return the sandbox for Python, started at its first use.

        Raises:
            UsageError: This machine cannot confine it.
            ServiceError: It did not start.
        """
        with self._lock:
            if self._sandbox is None:
                self._sandbox = Sandbox.start(
                    (self._server.host, self._server.port), self._server.folder / "sandbox.log"
                )
            return self._sandbox

    def close(self) -> None:
        """Stop the sandbox; the server is its owner's to stop."""
        with self._lock:
            if self._sandbox is not None:
                self._sandbox.stop()
            self._sandbox = None

    def open(
        self, fixture: Path, tables: Sequence[Table], key: str, *, statement_seconds: float | None = None
    ) -> SparkWorkspace:
        """Copy `fixture`, times included, and register its tables without running a statement.

        Raises:
            ServiceError: The server broke.
        """
        self._server.require_whole()
        folder = self._server.folder / "episodes" / f"{_plain(key)}-{secrets.token_hex(4)}"
        shutil.copytree(fixture, folder, copy_function=shutil.copy2)
        limits = replace(self._limits, statement_seconds=statement_seconds or self._limits.statement_seconds)
        try:
            return SparkWorkspace(self._server, folder, tables, limits, self._turns, self.sandbox)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise


class SparkWorkspace:
    """One rollout's private tables; made by `SparkWorkspaces.open`."""

    def __init__(
        self,
        server: SparkServer,
        folder: Path,
        tables: Sequence[Table],
        limits: Limits,
        turns: AbstractContextManager[object],
        sandbox: Callable[[], Sandbox],
    ) -> None:
        self.folder = folder
        self._sandbox = sandbox
        self._server = server
        self._tables = tuple(tables)
        self._limits = limits
        self._turns = turns
        self._clock = Normaliser(folder, private=(server.folder,))
        self._lock = threading.Lock()
        self._is_closed = False
        self._session = self._connect()

    def sql(self, statement: str) -> Shown:
        """Run one statement as the agent; see `workspace.Workspace`."""
        if refusal := check_statement(statement):
            return Shown(refusal, is_error=True)
        with self._lock, self._turns:
            self._require_open()
            self._clock.begin_call()
            done = self._run(lambda: self._execute(statement), self._limits.statement_seconds)
            self._clock.date_commits()
            if first_word(statement) in _SETTERS:
                self._read_zone()
            if isinstance(done, str):
                return Shown(bound(self._clock.report(done), self._limits), is_error=True)
            clean = self._clock.data if first_word(statement) in _QUERIES else self._clock.report
            try:
                text = format_table(done, self._limits, clean)
            except UNHELD as error:
                return Shown(f"The result cannot be shown: {type(error).__name__}: {error}", is_error=True)
            return Shown(bound(text, self._limits), is_error=False)

    def python(self, code: str) -> Shown:
        """Run Python in a sandbox; see `workspace.Workspace`."""
        with self._lock, self._turns:
            self._require_open()
            self._clock.begin_call()
            seconds = self._limits.statement_seconds
            cell = Cell(code, self._session.session_id, seconds, output_bytes=4 * self._limits.text_chars)
            ran = self._sandbox().run(cell)
            # Code may end, or be ended, while a statement that it sent still runs.
            self._settle(lambda: True)
            self._server.require_whole()
            self._clock.date_commits()
            self._read_zone()
            text = bound(self._clock.printed(ran.output).rstrip("\n"), self._limits)
            if ran.was_stopped == "time":
                text = f"{text}\nThe code was stopped: it ran longer than {seconds:g} seconds.".lstrip()
            elif ran.was_stopped:
                text = f"{text}\nThe code was stopped: it printed too much."
            return Shown(text or "OK", is_error=ran.has_failed)

    def read(self, table: str) -> pyarrow.Table | None:
        """Return the table's present rows in a fresh session; None where it is gone or cannot be read."""
        with self._turns:
            self._server.require_whole()
            session = self._connect()
            try:
                return session.table(f"workspace.{table}")._to_table()[0]
            except Exception as error:  # noqa: BLE001 - whatever Spark says about the table, it cannot be read
                self._raise_if_lost(error)
                return None
            finally:
                _disconnect(session)

    def close(self) -> None:
        """End what still runs, release the session and remove the folder; closing twice does nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        if not self._server.broken:
            with contextlib.suppress(Exception):
                self._session.interruptAll()
        _disconnect(self._session, is_lost=bool(self._server.broken))
        shutil.rmtree(self.folder, ignore_errors=True)

    def _connect(self) -> Any:
        """Return a new session whose catalog holds this workspace's tables."""
        settings = {
            **_FIXED,
            _CATALOG: "world.WsCatalog",
            f"{_CATALOG}.warehouse": str(self.folder),
            f"{_CATALOG}.tables": ";".join(f"{table.name}={table.folder}" for table in self._tables),
            "spark.sql.defaultCatalog": "workspace",
        }
        session = _new_session(self._server, self._limits)
        try:
            session.conf._set_all(settings, silent=False)
        except Exception as error:
            _disconnect(session)
            self._raise_if_lost(error)
            msg = f"the Spark server refused a session: {format_error(error)}"
            raise ServiceError(msg) from error
        return session

    def _require_open(self) -> None:
        self._server.require_whole()
        if self._is_closed:
            msg = f"{self.folder}: the workspace is closed"
            raise ServiceError(msg)

    def _execute(self, statement: str) -> pyarrow.Table | str:
        """Run a statement; return its rows, of a query at most one more than is shown, or what went wrong."""
        try:
            if first_word(statement) == "SELECT":
                # A query is not sent ahead as a command: that would parse and analyse it twice.
                frame = _query(self._session, statement)
            else:
                frame = self._session.sql(statement)
                if (answer := _answer(frame)) is not None:
                    return answer
            return frame.limit(self._limits.rows + 1)._to_table()[0]
        except Exception as error:  # noqa: BLE001 - whatever Spark says about the statement is the agent's to read
            self._raise_if_lost(error)
            return format_error(error)

    def _run(self, work: Callable[[], T], seconds: float) -> T | str:
        """Do `work` within the time limit; afterwards it has ended, on the server too.

        Raises:
            ServiceError: It could not be ended, or the server broke.
        """
        done: list[T | BaseException] = []
        thread = threading.Thread(target=_collect, args=(work, done), daemon=True, name="statement")
        thread.start()
        thread.join(seconds)
        is_late = thread.is_alive()
        if is_late:
            self._settle(lambda: not thread.is_alive())
        self._server.require_whole()
        outcome = done[0]
        if isinstance(outcome, BaseException):
            raise outcome
        if is_late and isinstance(outcome, str):
            return f"The statement was cancelled: it ran longer than {seconds:g} seconds."
        return outcome

    def _settle(self, has_ended: Callable[[], bool]) -> None:
        """Stop the session's statements; one that does not end breaks the server, because it could still commit."""
        deadline = time.monotonic() + self._limits.stop_seconds
        while not has_ended() or self._is_busy():
            if time.monotonic() > deadline or not self._server.is_alive():
                self._server.broken = f"a statement of {self.folder.name} did not stop; the server has to be restarted"
                return
            with contextlib.suppress(Exception):
                self._session.interruptAll()
            time.sleep(_POLL_S)

    def _is_busy(self) -> bool:
        """Say whether the server still works on something of this session.

        An operation that has ended counts as terminating until the client that sent it lets it go; one that is gone
        never does, so it is let go here.
        """
        from pyspark.sql.connect.proto import base_pb2

        state = base_pb2.GetStatusResponse.OperationStatus.OperationState
        try:
            statuses = self._session.client._get_operation_statuses().operation_statuses
            ended = [each.operation_id for each in statuses if each.state == state.OPERATION_STATE_TERMINATING]
            for operation in ended:
                self._let_go(operation)
        except Exception as error:  # noqa: BLE001 - whatever it is, the server does not say that it has ended
            self._raise_if_lost(error)
            return True
        return bool(ended) or any(each.state == state.OPERATION_STATE_RUNNING for each in statuses)

    def _let_go(self, operation: str) -> None:
        from pyspark.sql.connect.proto import base_pb2

        client = self._session.client
        request = base_pb2.ReleaseExecuteRequest(session_id=client._session_id, operation_id=operation)
        request.user_context.user_id = client._user_id
        request.release_all.SetInParent()
        client._stub.ReleaseExecute(request, metadata=client._builder.metadata())

    def _read_zone(self) -> None:
        """Tell the clock in which zone the session now writes times."""
        try:
            self._clock.set_zone(self._session.conf.get(_ZONE))
        except Exception as error:
            self._raise_if_lost(error)
            msg = f"the Spark server does not tell its time zone: {format_error(error)}"
            raise ServiceError(msg) from error

    def _raise_if_lost(self, error: Exception) -> None:
        """Raise where `error` says that the server or the session is gone, which is not the agent's doing."""
        code = getattr(error, "getGrpcStatusCode", lambda: None)()
        name = getattr(code, "name", "")
        if name in _LOST or _SESSION_LOST.match(str(error)):
            self._server.require_whole()
            self._server.broken = "the Spark server does not answer"
            log_path = self._server.folder / "server.log"
            msg = f"{log_path}: the Spark server does not answer ({name}): {format_error(error)}"
            raise ServiceError(msg) from error


def _collect(work: Callable[[], T], done: list[T | BaseException]) -> None:
    try:
        done.append(work())
    except BaseException as error:  # noqa: BLE001 - handed to the caller's thread
        done.append(error)


def _new_session(server: SparkServer, limits: Limits) -> Any:
    try:
        with warnings.catch_warnings():
            # pyspark warns about pandas, which nothing here uses.
            warnings.simplefilter("ignore")
            from pyspark.sql.connect.client import DefaultChannelBuilder
            from pyspark.sql.connect.session import SparkSession

            from experiment.environments.delta_world.deadlines import Deadlines
    except ImportError as error:
        msg = f"pyspark's client cannot be loaded: {error}"
        raise UsageError(msg, remedy=PYSPARK_REMEDY) from error
    for name in ("pyspark.sql.connect.logging", "SQLQueryContextLogger"):
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    channel = DefaultChannelBuilder(f"sc://{server.host}:{server.port}/;user_id=agent;x-owner={server.secret}")
    longest = limits.statement_seconds + limits.stop_seconds + _QUESTION_SECONDS
    channel.add_interceptor(Deadlines(_QUESTION_SECONDS, longest))
    session = SparkSession(connection=channel)
    session.client.set_retry_policies([])
    return session


def _query(session: Any, statement: str) -> Any:
    from pyspark.sql.connect.dataframe import DataFrame
    from pyspark.sql.connect.plan import SQL

    return DataFrame(SQL(statement, [], {}, []), session)


def _answer(frame: Any) -> pyarrow.Table | None:
    """Return the rows that a command was answered with; None for a query, which is still to be executed."""
    import pyarrow

    relation = frame._plan.plan(frame._session.client)
    if relation.WhichOneof("rel_type") != "local_relation" or not relation.local_relation.HasField("data"):
        return None
    return pyarrow.ipc.open_stream(relation.local_relation.data).read_all()


def _disconnect(session: Any, *, is_lost: bool = False) -> None:
    """Release a session; afterwards nothing of it is kept here.

    A server that is lost is not told, and its channel stays: a request may still hang in it, in a thread of its own,
    and closing a channel under a request has ended the whole process.
    """
    client = session.client
    if not is_lost:
        with contextlib.suppress(Exception):
            client.release_session()
        with contextlib.suppress(Exception):
            client.close()
    # The client asks to be called at exit, which would keep every client that ever was.
    atexit.unregister(client._on_exit)


def _plain(key: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "-_" else "-" for letter in key)[:80]
