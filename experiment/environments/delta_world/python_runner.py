"""The program that runs the agent's Python: imports Spark's client once, then forks for every call.

It is started confined (`sandbox.py`) and holds one end of a socket. A message on it is a call: JSON, with two
descriptors, one for what the code prints and one for the exit code. Each call has a keeper, which ends the code when
the other end of that second descriptor closes, and the code itself, which may start nothing.
"""

# What runs here is the agent's: it is executed, printed, and may raise anything. pyspark is untyped.
# ruff: noqa: ANN401, BLE001, N802, PLC0415, S102, S307, SLF001, T201

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.util
import json
import linecache
import logging
import os
import resource
import select
import signal
import socket
import sys
import traceback
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

_MESSAGE_BYTES = 1 << 20
_CELL = "<cell>"
_POLL_S = 0.01
_FAILED, _KILLED = 1, 137


def main() -> None:
    """Serve calls until the other end of the control socket, descriptor 0, is closed."""
    confine = _load_confine()
    control = socket.socket(fileno=os.dup(0))
    client = _load_client()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    control.send(b"ready")
    while True:
        message, descriptors, _flags, _address = socket.recv_fds(control, _MESSAGE_BYTES, 2)
        if not message:
            return
        if os.fork() == 0:
            control.close()
            _keep(json.loads(message), *descriptors, client=client, confine=confine)
        for descriptor in descriptors:
            os.close(descriptor)


def _load_confine() -> ModuleType:
    """Load the neighbouring file; this program runs without the package."""
    spec = importlib.util.spec_from_file_location("confine", Path(__file__).with_name("confine.py"))
    if spec is None or spec.loader is None:
        raise ImportError(name="confine")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _load_client() -> Any:
    warnings.simplefilter("ignore")
    # Spark's client logs every failed statement with its stack.
    logging.disable(logging.CRITICAL)
    # Without it, `pyspark.sql.functions` looks for a Spark in this process.
    os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"
    # Imported by the first use of a session, which should not be paid for in every call.
    for name in ("pyspark.sql.functions", "pyspark.sql.types", "pyspark.sql.connect.functions"):
        importlib.import_module(name)
    from pyspark.sql.connect import session

    return session


def _keep(call: dict[str, Any], output: int, result: int, *, client: Any, confine: ModuleType) -> None:
    """Run the code in a child, end it when `result` closes, and write its exit code to `result`; never returns."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    child = os.fork()
    if child == 0:
        os.close(result)
        _become_cell(call, output, client=client, confine=confine)
    os.close(output)
    code = None
    while code is None:
        readable, _, _ = select.select([result], [], [], _POLL_S)
        if readable:
            # Nothing is ever sent this way: the other end has closed.
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            code = _KILLED
            break
        done, status = os.waitpid(child, os.WNOHANG)
        code = _exit_code(status) if done else None
    with contextlib.suppress(OSError):
        os.write(result, str(code).encode())
    os._exit(0)


def _exit_code(status: int) -> int:
    return os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else _KILLED


def _become_cell(call: dict[str, Any], output: int, *, client: Any, confine: ModuleType) -> None:
    """Give up everything, run the code, and exit with 0 where it raised nothing; never returns."""
    code = _FAILED
    try:
        os.dup2(output, 1)
        os.dup2(output, 2)
        devnull = os.open(os.devnull, os.O_RDWR)
        os.dup2(devnull, 0)
        os.closerange(3, 256)
        _limit(call)
        confine.refuse_calls()
        sys.stdout = os.fdopen(1, "w", buffering=1, encoding="utf-8", errors="replace")
        sys.stderr = sys.stdout
        code = _run(call["code"], _session(call, client))
    except BaseException as error:
        with contextlib.suppress(BaseException):
            print(f"{type(error).__name__}: {error}", flush=True)
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
        os._exit(code)


def _limit(call: dict[str, Any]) -> None:
    limits = {
        resource.RLIMIT_DATA: int(call["memory_mib"]) * 2**20,
        resource.RLIMIT_CPU: int(call["seconds"]) + 1,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_NOFILE: 256,
        resource.RLIMIT_CORE: 0,
    }
    for kind, value in limits.items():
        resource.setrlimit(kind, (value, value))


def _session(call: dict[str, Any], client: Any) -> Any:
    """Attach to the agent's session through the local socket that leads to the server, and nowhere else."""
    from pyspark.sql.connect.client import ChannelBuilder

    class Local(ChannelBuilder):  # type: ignore[misc]
        @property
        def host(self) -> str:
            return "workspace"

        def toChannel(self) -> Any:
            return self._insecure_channel(f"unix:{call['socket']}")

    spark = client.SparkSession(connection=Local(params={"session_id": call["session"], "user_id": "agent"}))
    spark.client.set_retry_policies([])
    spark.release_session_on_close = False
    client.SparkSession._set_default_and_active_session(spark)
    return spark


def _run(code: str, spark: Any) -> int:
    """Run a cell as a notebook does: the value of a last expression is shown."""
    names: dict[str, Any] = {"__name__": "__main__", "spark": spark, "display": lambda frame: frame.show()}
    linecache.cache[_CELL] = (len(code), None, code.splitlines(keepends=True), _CELL)
    try:
        tree = ast.parse(code, _CELL)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, _CELL, "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), _CELL, "eval"), names)
            if value is not None:
                print(repr(value))
    except SystemExit as error:
        return 0 if error.code in (None, 0) else _FAILED
    except BaseException as error:
        _show(error)
        return _FAILED
    return 0


def _show(error: BaseException) -> None:
    """Print where in the cell it went wrong, and what; Spark's own frames are left out."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == _CELL]
    for frame in frames:
        print(f"line {frame.lineno}: {(frame.line or '').strip()}")
    if isinstance(error, SyntaxError):
        print(f"line {error.lineno}: {(error.text or '').strip()}")
    message = str(error).partition("\n\nJVM stacktrace")[0]
    print(f"{type(error).__name__}: {message}")


if __name__ == "__main__":
    main()
