"""One process per run: a lock that ends with its holder, however that ends."""

from __future__ import annotations

import datetime
import fcntl
import os
import secrets
import socket
import weakref
from pathlib import Path
from typing import Self

from pydantic import ValidationError

from experiment.errors import LockedError
from experiment.journal.clock import boot_id
from experiment.records.base import Count, Record
from experiment.sealing import canonical
from experiment.sealing.files import refused

LOCK_NAME = "lock"
_MAX_BYTES = 4096


class Holder(Record):
    """Who holds a lock; for people, the lock itself does not depend on it."""

    pid: Count
    start: str
    """The process's start in ticks since boot; tells it from a later process with the same number."""
    since: str
    host: str
    boot: str
    run: str
    nonce: str


class RunLock:
    """The exclusive right to write to a run, held from `acquire` to `release` or to the process's end."""

    def __init__(self, fd: int) -> None:
        self._fd: int | None = fd
        _HELD.add(self)

    @classmethod
    def acquire(cls, run_dir: Path, run: str) -> Self:
        """Return the lock on `run_dir`, an existing directory.

        Raises:
            LockedError: Another process holds it, or a process on another machine may still do so.
            StorageError: The file system refused.
        """
        path = run_dir / LOCK_NAME
        with refused(path):
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
            try:
                _take(fd, path)
                os.ftruncate(fd, 0)
                os.pwrite(fd, canonical.encode_record(_this_process(run)), 0)
            except BaseException:
                os.close(fd)
                raise
        return cls(fd)

    @property
    def is_held(self) -> bool:
        """Whether this process holds the lock; False in a forked child."""
        return self._fd is not None

    def release(self) -> None:
        """Afterwards another process may take the lock; the file stays, empty."""
        if self._fd is not None:
            os.ftruncate(self._fd, 0)
            self.forget()

    def forget(self) -> None:
        """Close this process's handle on the lock; a parent that forked it keeps its own."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


_HELD: weakref.WeakSet[RunLock] = weakref.WeakSet()


def _take(fd: int, path: Path) -> None:
    # flock, not lockf: a lockf lock is lost when any handle on the file is closed.
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = _holder(fd)
        who = "another process" if holder is None else f"pid {holder.pid} on {holder.host}, started {holder.since}"
        msg = f"{path.parent}: in use by {who}"
        raise LockedError(msg) from None
    holder = _holder(fd)
    if holder is not None and holder.boot != boot_id() and holder.host != socket.gethostname():
        # A shared file system may not carry locks from one machine to another.
        msg = f"{path.parent}: was in use by pid {holder.pid} on {holder.host}, another machine, since {holder.since}"
        remedy = f"Make sure that no process on {holder.host} works on this run, then delete its `{LOCK_NAME}` file."
        raise LockedError(msg, remedy=remedy)


def _holder(fd: int) -> Holder | None:
    try:
        return Holder.model_validate_json(os.pread(fd, _MAX_BYTES, 0))
    except ValidationError:
        return None


def _this_process(run: str) -> Holder:
    return Holder(
        pid=os.getpid(),
        start=_start_ticks(),
        since=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        host=socket.gethostname(),
        boot=boot_id(),
        run=run,
        nonce=secrets.token_hex(8),
    )


def _start_ticks() -> str:
    try:
        status = Path("/proc/self/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "unknown"
    # The command's name is in parentheses and may hold anything; the start is the 20th field after it.
    return status.rpartition(")")[2].split()[19]


def _forget_all() -> None:
    for lock in list(_HELD):
        lock.forget()


# A forked child would keep the lock after its parent was killed.
os.register_at_fork(after_in_child=_forget_all)
