"""Runs the agent's Python where it reaches the server and nothing else.

A confined program (`python_runner.py`) forks for every call. It reads the interpreter and its packages, writes
nothing, opens no network socket, starts no process; the server is behind a local socket that leads to its port alone.
The ladder: bubblewrap and Landlock with seccomp, Landlock with seccomp, bubblewrap with seccomp, else refused.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from experiment.environments.delta_world import confine, python_runner
from experiment.environments.delta_world.server import find_bwrap
from experiment.errors import ServiceError, UsageError
from experiment.sealing.canonical import encode

_RUNNER = Path(python_runner.__file__)
_START_PATIENCE_S = 300.0
_END_PATIENCE_S = 10.0
_CHUNK = 1 << 16
_SYSTEM_PATHS = ("/usr", "/lib", "/lib64", "/bin", "/etc/ld.so.cache", "/sys/devices/system/cpu")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
_REMEDY = "Install bubblewrap, or use Linux 5.13 or newer on x86-64; without either, leave `run_python` out."


@dataclass(frozen=True, slots=True)
class Cell:
    """A call of `run_python`."""

    code: str
    session: str
    """Id of the Spark session that `spark` is attached to."""
    seconds: float
    output_bytes: int
    memory_mib: int = 1024
    """All that the process may hold, Spark's client included."""


@dataclass(frozen=True, slots=True)
class Ran:
    """How a call ended."""

    output: str
    has_failed: bool
    was_stopped: str = ""
    """Why it was ended from outside: `time` or `output`; empty where it ended by itself."""


def tier() -> str:
    """Name the rung of the ladder that this machine offers; empty where `run_python` is refused."""
    if not confine.can_filter_calls():
        return ""
    layers = [name for name, there in (("bwrap", find_bwrap()), ("landlock", confine.landlock_version())) if there]
    return "+".join([*layers, "seccomp"]) if layers else ""


class Sandbox:
    """The confined program and the way to its server; made by `start`."""

    def __init__(self, process: subprocess.Popen[bytes], control: socket.socket, relay: Relay, folder: Path) -> None:
        self._process = process
        self._control = control
        self._relay = relay
        self._folder = folder
        self._lock = threading.Lock()

    @classmethod
    def start(cls, server: tuple[str, int], log_path: Path) -> Sandbox:
        """Return a sandbox whose code can reach `server`, (host, port), and nothing else.

        Raises:
            UsageError: This machine cannot confine it.
            ServiceError: It did not start.
        """
        if not tier():
            msg = "nothing here can confine the agent's Python"
            raise UsageError(msg, remedy=_REMEDY)
        folder = Path(tempfile.mkdtemp(prefix="sandbox-"))
        relay = Relay(folder / "spark", server)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, log_path.open("ab") as log:
            process = subprocess.Popen(
                _command(folder),
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,
                cwd="/",
                env={"LANG": "C.UTF-8", "PYTHONHASHSEED": "0", "TZ": "UTC", "HOME": "/"},
            )
        sandbox = cls(process, ours, relay, folder)
        ours.settimeout(_START_PATIENCE_S)
        try:
            is_ready = ours.recv(_CHUNK) == b"ready"
        except TimeoutError:
            is_ready = False
        if not is_ready:
            sandbox.stop()
            msg = f"{log_path}: the sandbox for Python did not start"
            raise ServiceError(msg)
        return sandbox

    def run(self, cell: Cell) -> Ran:
        """Run a cell; afterwards its process has ended.

        Raises:
            ServiceError: The sandbox broke.
        """
        call = {"code": cell.code, "session": cell.session, "socket": str(self._relay.path)}
        call |= {"seconds": str(int(cell.seconds) + 1), "memory_mib": str(cell.memory_mib)}
        reading, writing = os.pipe()
        ours, theirs = socket.socketpair()
        try:
            with self._lock, theirs:
                socket.send_fds(self._control, [encode(call)], [writing, theirs.fileno()])
        except OSError as error:
            os.close(reading)
            ours.close()
            msg = f"the sandbox for Python is gone: {error.strerror}"
            raise ServiceError(msg) from error
        finally:
            os.close(writing)
        with ours:
            output, why = _read(reading, cell)
            if why:
                ours.shutdown(socket.SHUT_WR)
            ours.settimeout(_END_PATIENCE_S + (0 if why else cell.seconds))
            code = _receive(ours)
        return Ran(output, has_failed=code != "0", was_stopped=why)

    def stop(self) -> None:
        """Afterwards nothing of the sandbox runs, and its folder is gone."""
        self._control.close()
        self._relay.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


class Relay:
    """A local socket whose connections are passed on to one server."""

    def __init__(self, path: Path, server: tuple[str, int]) -> None:
        self.path = path
        self._server = server
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen()
        threading.Thread(target=self._serve, daemon=True, name="relay").start()

    def close(self) -> None:
        """Accept nothing any more; what is connected ends with its two ends."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _address = self._listener.accept()
                try:
                    far = socket.create_connection(self._server)
                except OSError:
                    near.close()
                    continue
                for source, sink in ((near, far), (far, near)):
                    threading.Thread(target=_pump, args=(source, sink), daemon=True, name="relay").start()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(_CHUNK):
            sink.sendall(data)
    for each in (source, sink):
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
    # The pump of the other direction has seen the end as well, and closes its own source.
    source.close()


def _read(fd: int, cell: Cell) -> tuple[str, str]:
    """Return what the code printed, and why it has to be ended; closes `fd`."""
    deadline = time.monotonic() + cell.seconds
    chunks: list[bytes] = []
    size = 0
    why = ""
    try:
        while not why:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([fd], [], [], left)[0]:
                why = "time"
            elif not (chunk := os.read(fd, _CHUNK)):
                break
            else:
                chunks.append(chunk)
                size += len(chunk)
                why = "output" if size > cell.output_bytes else ""
    finally:
        os.close(fd)
    return b"".join(chunks)[: cell.output_bytes].decode("utf-8", errors="replace"), why


def _receive(result: socket.socket) -> str:
    try:
        code = result.recv(64).decode("ascii")
    except OSError:
        code = ""
    if not code:
        msg = "the sandbox for Python lost a call"
        raise ServiceError(msg)
    return code


def _command(folder: Path) -> list[str]:
    """Return the command line of the runner, confined by all that is there."""
    command = [sys.executable, "-I", str(_RUNNER)]
    seen = _interpreter_paths()
    bwrap = find_bwrap()
    if confine.landlock_version():
        policy = {"read": [*_SYSTEM_PATHS, *seen], "write": [*_DEVICES, str(folder)]}
        command = [sys.executable, "-I", "-S", str(Path(confine.__file__)), encode(policy).decode(), *command]
    if bwrap:
        command = [bwrap, *_bwrap_flags(seen, folder), *command]
    return command


def _interpreter_paths() -> Sequence[str]:
    """Return where this interpreter, its library and its packages are; links are given with where they lead."""
    paths = {sys.prefix, sys.base_prefix, sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    paths |= {str(_RUNNER.parent), str(Path(sys.executable).resolve().parent.parent)}
    return sorted({str(Path(path).absolute()) for path in paths} | {str(Path(path).resolve()) for path in paths})


def _bwrap_flags(seen: Sequence[str], folder: Path) -> list[str]:
    flags = ["--unshare-all", "--die-with-parent", "--cap-drop", "ALL"]
    flags += ["--ro-bind", "/usr", "/usr", "--dev", "/dev", "--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache"]
    for name in ("/lib", "/lib64", "/bin"):
        flags += ["--symlink", f"usr{name}", name] if Path(name).is_symlink() else ["--ro-bind-try", name, name]
    for path in (*seen, str(folder)):
        flags += ["--ro-bind", path, path]
    return flags
