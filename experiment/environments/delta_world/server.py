"""A Spark Connect server of our own: started confined, watched, stopped. Only ever ours.

The server listens on the loopback interface at a port that the kernel chooses, ends when this process does, and sees
the Java runtime, the jars and its own folder, nothing else of the machine.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import queue
import re
import secrets
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from experiment.environments.delta_world import confine
from experiment.environments.delta_world.jars import Jars
from experiment.environments.delta_world.java import Java
from experiment.environments.delta_world.launch import ARCHIVE_PATIENCE_S, LOGGING, ServerOptions, java_command
from experiment.errors import ServiceError, UsageError
from experiment.sealing.canonical import encode

_CONFINE = Path(confine.__file__)
_SYSTEM_PATHS = (
    "/usr",
    "/lib",
    "/lib64",
    "/bin",
    "/etc/ld.so.cache",
    "/proc",
    "/sys/devices/system/cpu",
    "/sys/fs/cgroup",
)
_LOGIN_PATHS = ("/etc/passwd", "/etc/nsswitch.conf")
"""Hadoop asks for the user's name; bubblewrap shows it a list of its own instead."""
_DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
_START_PATIENCE_S = 180.0
_STOP_PATIENCE_S = 8.0
_LOG_TAIL = 2000


def confinement() -> str:
    """Name what a server would be confined by here: `bwrap+landlock`, `landlock`, `bwrap` or `none`."""
    parts = [name for name, present in (("bwrap", find_bwrap()), ("landlock", confine.landlock_version())) if present]
    return "+".join(parts) or "none"


def find_bwrap() -> str | None:
    """Return the path of bubblewrap where it is installed and may make namespaces."""
    path = shutil.which("bwrap")
    if path is None:
        return None
    probe = [path, "--unshare-all", "--ro-bind", "/", "/", "/bin/true"]
    done = subprocess.run(probe, capture_output=True, check=False, timeout=30)
    return path if done.returncode == 0 else None


class Server:
    """A running server; made by `start`."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, folder: Path, secret: str, lock: int) -> None:
        self._process = process
        self._lock = lock
        self.host = "127.0.0.1"
        self.port = port
        self.secret = secret
        """What tells its owner from the agent; goes with every request of the owner."""
        self.folder = folder
        """Where its episodes, scratch files and log are."""
        self.broken = ""
        """Why no more work may be given to it; empty while it is whole."""
        self._stop_patience_s = _STOP_PATIENCE_S

    @classmethod
    def start(cls, java: Java, jars: Jars, folder: Path, options: ServerOptions | None = None) -> Server:
        """Return a server that listens; `folder` is made, and holds all that it may write.

        Raises:
            UsageError: Nothing here can confine it, or another server has the folder.
            ServiceError: It did not start.
        """
        options = options or ServerOptions()
        folder = folder.absolute()
        for each in (folder, folder / "episodes", folder / "scratch"):
            each.mkdir(parents=True, exist_ok=True)
        (folder / "logging.properties").write_text(LOGGING, encoding="ascii")
        (folder / "passwd").write_text(f"spark:x:{os.getuid()}:{os.getgid()}::/:/bin/false\n", encoding="ascii")
        command = _confined(java_command(java, jars, folder, options), java, jars, folder, options)
        secret = secrets.token_hex(16)
        lock = _lock(folder)
        with (folder / "server.log").open("ab") as log:
            process = subprocess.Popen(
                command,
                pass_fds=(lock,),  # the folder is taken for as long as the server lives, also without its owner
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                cwd=folder,
                env={"SPARK_LOCAL_IP": "127.0.0.1", "LANG": "C.UTF-8", "SPARK_USER": "spark", "WORLD_OWNER": secret},
            )
        server = cls(process, 0, folder, secret, lock)
        if options.writes_archive:
            server._stop_patience_s = ARCHIVE_PATIENCE_S
        try:
            server.port = server._await_port()
        except BaseException:
            server.stop()
            raise
        return server

    @property
    def pid(self) -> int:
        """Process id of the outermost process, which is the id of its session as well."""
        return self._process.pid

    def is_alive(self) -> bool:
        """Say whether the process runs."""
        return self._process.poll() is None

    def require_whole(self) -> None:
        """Raise unless the server lives and nothing has broken it.

        Raises:
            ServiceError: It ended, or a statement could not be stopped.
        """
        code = self._process.poll()
        if code is not None:
            self.broken = self.broken or f"the Spark server ended with code {code}"
        if self.broken:
            msg = f"{self.folder / 'server.log'}: {self.broken}"
            raise ServiceError(msg)

    def rss_bytes(self) -> int:
        """Return the resident memory of the server and all its processes; 0 when it has ended."""
        return family_rss_bytes(self.pid)

    def log_tail(self) -> str:
        """Return how its log ends."""
        return (self.folder / "server.log").read_bytes()[-_LOG_TAIL:].decode(errors="replace").strip()

    def stop(self) -> None:
        """Afterwards none of the server's processes runs; its folder stays."""
        process = self._process
        with contextlib.suppress(OSError):
            if process.stdin:
                process.stdin.close()
        for number in (None, signal.SIGTERM, signal.SIGKILL):
            if number is not None:
                # The outermost process leads its own session, so this reaches no one else.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(self._stop_patience_s)
                break
        if process.stdout:
            process.stdout.close()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1
        self.broken = self.broken or "the Spark server was stopped"

    def _await_port(self) -> int:
        lines: queue.Queue[bytes] = queue.Queue()
        stdout = self._process.stdout
        threading.Thread(target=_drain, args=(stdout, lines), daemon=True, name="spark-server-output").start()
        deadline = time.monotonic() + _START_PATIENCE_S
        while time.monotonic() < deadline:
            try:
                line = lines.get(timeout=0.5)
            except queue.Empty:
                line = b""
            if match := re.fullmatch(rb"PORT (\d+)\s*", line):
                return int(match.group(1))
            if self._process.poll() is not None and lines.empty():
                break
        msg = f"{self.folder / 'server.log'}: the Spark server did not start: {self.log_tail()}"
        raise ServiceError(msg)


def _lock(folder: Path) -> int:
    """Return a descriptor that holds the folder: two servers on one table would write one version file each.

    Raises:
        UsageError: Another server holds it.
    """
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        msg = f"{folder}: another Spark server has this folder"
        raise UsageError(msg, remedy="Give every Spark server a folder of its own.") from error
    return descriptor


def _drain(stream: IO[bytes] | None, lines: queue.Queue[bytes]) -> None:
    """Keep reading, so that the server never waits for a reader."""
    with contextlib.suppress(OSError, ValueError):
        for line in stream or ():
            if lines.qsize() < 100:  # noqa: PLR2004 - what is printed after the port is read and dropped
                lines.put(line)


def family_rss_bytes(pid: int) -> int:
    """Return the resident memory of a process and all that descend from it; 0 where it has ended."""
    total, page = 0, os.sysconf("SC_PAGE_SIZE")
    for each in family(pid):
        with contextlib.suppress(OSError):
            total += int(Path(f"/proc/{each}/statm").read_text(encoding="ascii").split()[1]) * page
    return total


def family(pid: int) -> list[int]:
    """Return `pid` and the processes that descend from it."""
    found = [pid]
    for each in found:
        for task in Path(f"/proc/{each}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                found += [int(child) for child in task.read_text(encoding="ascii").split()]
    return found


def _confined(command: Sequence[str], java: Java, jars: Jars, folder: Path, options: ServerOptions) -> list[str]:
    """Wrap a command so that it sees system libraries, Java, jars and its folder, and connects nowhere."""
    bwrap, landlock = find_bwrap(), confine.landlock_version()
    if not bwrap and not landlock:
        if not options.allow_unconfined:
            msg = "neither bubblewrap nor Landlock is there to confine the Spark server"
            raise UsageError(msg, remedy="Install bubblewrap, or use Linux 5.13 or newer.")
        return list(command)
    seen = sorted({*_whole(java.home), *(str(path.parent) for path in jars.class_path)})
    if options.class_archive:
        seen.append(str(options.class_archive.parent))
    writes = [str(folder), *([str(options.writes_archive.parent)] if options.writes_archive else [])]
    wrapped = list(command)
    if bwrap:
        wrapped = [bwrap, *_bwrap_flags(seen, writes, folder), *wrapped]
    if landlock:
        policy = {
            "read": [*_SYSTEM_PATHS, *_LOGIN_PATHS, *seen],
            "write": [*_DEVICES, *writes],
            "bind": [0],
            "files": not bwrap,
        }
        wrapped = [sys.executable, "-I", "-S", str(_CONFINE), encode(policy).decode(), *wrapped]
    return wrapped


def _whole(home: Path) -> set[str]:
    """Return the folder of a Java runtime and where links in it lead; distributions keep its settings elsewhere."""
    links = (path.resolve() for path in home.rglob("*") if path.is_symlink())
    return {str(home), *(str(path) for path in links if path.exists() and not path.is_relative_to(home))}


def _bwrap_flags(seen: Sequence[str], writes: Sequence[str], folder: Path) -> list[str]:
    flags = ["--unshare-all", "--share-net", "--die-with-parent", "--cap-drop", "ALL"]
    flags += ["--ro-bind", "/usr", "/usr", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]  # noqa: S108 - a private one
    for name in ("/lib", "/lib64", "/bin"):
        flags += ["--symlink", f"usr{name}", name] if Path(name).is_symlink() else ["--ro-bind-try", name, name]
    flags += [
        "--ro-bind-try",
        "/etc/ld.so.cache",
        "/etc/ld.so.cache",
        "--ro-bind",
        str(folder / "passwd"),
        "/etc/passwd",
    ]
    for path in seen:
        flags += ["--ro-bind", path, path]
    for path in writes:
        flags += ["--bind", path, path]
    return flags
