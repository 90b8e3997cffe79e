"""File systems that stop, fail, or forget: each operation of `Files` is a place where something may go wrong."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tests.doubles.small_journal import QuickFiles

if TYPE_CHECKING:
    from collections.abc import Callable


class Crash(BaseException):
    """The process was killed; nothing that it would do on an error is done."""


class CrashingFiles(QuickFiles):
    """Counts operations, and ends the process or fails at number `at`."""

    def __init__(
        self, at: int | None = None, how: Literal["crash", "torn", "EIO", "ENOSPC", "short"] = "crash"
    ) -> None:
        self.at = at
        self.how = how
        self.count = 0
        self.names: list[str] = []

    def _step(self, name: str, torn: Callable[[], object] | None = None) -> None:
        self.names.append(name)
        number, self.count = self.count, self.count + 1
        if self.at is None or number < self.at:
            return
        if number > self.at and self.how == "crash":
            msg = "a killed process goes on"
            raise AssertionError(msg)
        if number > self.at:
            return
        if self.how in {"torn", "short"} and torn is not None:
            torn()
        if self.how in {"crash", "torn"}:
            raise Crash
        raise OSError(getattr(errno, self.how, errno.EIO), "injected")

    def create(self, path: Path) -> int:
        self._step("create")
        return super().create(path)

    def write(self, fd: int, data: bytes) -> None:
        self._step("write", lambda: os.write(fd, data[: len(data) // 2]))
        super().write(fd, data)

    def rewrite(self, path: Path, offset: int, data: bytes) -> None:
        self._step("rewrite")
        super().rewrite(path, offset, data)

    def fsync(self, fd: int) -> None:
        self._step("fsync")
        super().fsync(fd)

    def mkdir(self, path: Path) -> None:
        self._step("mkdir")
        super().mkdir(path)

    def rename(self, source: Path, target: Path) -> None:
        self._step("rename")
        super().rename(source, target)

    def replace(self, source: Path, target: Path) -> None:
        self._step("replace")
        super().replace(source, target)

    def unlink(self, path: Path) -> None:
        self._step("unlink")
        super().unlink(path)


Kind = Literal["mkdir", "create", "write", "fsync", "move", "unlink", "ack"]


@dataclass(frozen=True, slots=True)
class Operation:
    """One change, as the power loss model sees it; paths are relative to the recorded directory."""

    kind: Kind
    path: str
    target: str = ""
    data: bytes = b""


@dataclass
class RecordingFiles(QuickFiles):
    """Does everything for real below `root`, and notes it; `forgets` names fsyncs that are not noted."""

    root: Path
    forgets: Callable[[str], bool] = lambda _path: False
    log: list[Operation] = field(default_factory=list)

    def _name(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()

    def note(self, kind: Kind, path: str, target: str = "", data: bytes = b"") -> None:
        self.log.append(Operation(kind, path, target, data))

    def given(self, path: Path) -> None:
        """Note a file or directory that exists already, written by someone who does not use this door."""
        name = self._name(path)
        if path.is_dir():
            self.note("mkdir", name)
        else:
            self.note("create", name)
            self.note("write", name, data=path.read_bytes())

    def create(self, path: Path) -> int:
        fd = super().create(path)
        self.note("create", self._name(path))
        return fd

    def write(self, fd: int, data: bytes) -> None:
        super().write(fd, data)
        self.note("write", self._opened(fd), data=data)

    def fsync(self, fd: int) -> None:
        name = self._opened(fd)
        if not self.forgets(name):
            self.note("fsync", name)

    def anchor(self, folder: Path) -> None:
        for each in (folder, *folder.parents):
            if each == self.root:
                return
            self.fsync_path(each.parent)

    def _opened(self, fd: int) -> str:
        # Its directory may have been renamed since the file was opened.
        return self._name(Path(os.readlink(f"/proc/self/fd/{fd}")))

    def mkdir(self, path: Path) -> None:
        super().mkdir(path)
        self.note("mkdir", self._name(path))

    def rename(self, source: Path, target: Path) -> None:
        super().rename(source, target)
        self.note("move", self._name(source), self._name(target))

    def replace(self, source: Path, target: Path) -> None:
        super().replace(source, target)
        self.note("move", self._name(source), self._name(target))

    def unlink(self, path: Path) -> None:
        super().unlink(path)
        self.note("unlink", self._name(path))


Effect = Literal["keep", "drop", "half", "zero"]


class Disk:
    """What is on the disk after some of the noted operations took effect."""

    def __init__(self) -> None:
        self.names: dict[str, int] = {}
        self.data: dict[int, bytearray | None] = {}

    def apply(self, operation: Operation, inode: int) -> None:
        """Apply a change of names; what happens below a name that was lost cannot be reached, so it is lost too."""
        parent = (operation.target or operation.path).rpartition("/")[0]
        if parent and parent not in self.names:
            return
        if operation.kind in {"mkdir", "create"}:
            self.names[operation.path] = inode
        elif operation.kind == "unlink":
            self.names.pop(operation.path, None)
        else:
            self._move(operation.path, operation.target)

    def _move(self, source: str, target: str) -> None:
        moved = {name: inode for name, inode in self.names.items() if name == source or name.startswith(f"{source}/")}
        for name in moved:
            del self.names[name]
        self.names |= {target + name[len(source) :]: inode for name, inode in moved.items()}

    def materialise(self, root: Path) -> None:
        """Write the directories and files below `root`."""
        for name, inode in sorted(self.names.items()):
            content = self.data[inode]
            if content is None:
                (root / name).mkdir(parents=True, exist_ok=True)
            else:
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_bytes(bytes(content))


def pending(log: list[Operation]) -> list[int]:
    """Return the numbers of the operations that no later fsync has made durable."""
    waiting: list[int] = []
    inodes = _inodes(log)
    for number, operation in enumerate(log):
        if operation.kind == "fsync":
            place = inodes[number]
            waiting = [each for each in waiting if inodes[each] != place]
        elif operation.kind != "ack":
            waiting.append(number)
    return waiting


def _inodes(log: list[Operation]) -> list[int]:
    """Return, per operation, the inode it is about: the file for write and fsync, the directory for names."""
    names: dict[str, int] = {"": -1}
    found: list[int] = []
    for number, operation in enumerate(log):
        path = "" if operation.path == "." else operation.path
        if operation.kind in {"mkdir", "create"}:
            found.append(names.get(path.rpartition("/")[0], -1))
            names[path] = number
        elif operation.kind == "move":
            found.append(names.get(operation.target.rpartition("/")[0], -1))
            for name in [each for each in names if each == path or each.startswith(f"{path}/")]:
                names[operation.target + name[len(path) :]] = names.pop(name)
        elif operation.kind == "unlink":
            found.append(names.get(path.rpartition("/")[0], -1))
            names.pop(path, None)
        else:
            found.append(names.get(path, -2))
    return found


def disk_after(log: list[Operation], effects: dict[int, Effect]) -> Disk:
    """Return the disk after `log`, where some operations had another effect than `keep`."""
    disk = Disk()
    inodes = _inodes(log)
    for number, operation in enumerate(log):
        effect = effects.get(number, "keep")
        if operation.kind in {"mkdir", "create"}:
            disk.data[number] = None if operation.kind == "mkdir" else bytearray()
        if operation.kind == "write":
            content = disk.data.get(inodes[number])
            if content is not None:
                content.extend(_written(operation.data, effect))
        elif operation.kind not in {"fsync", "ack"} and effect != "drop":
            disk.apply(operation, number)
    return disk


def _written(data: bytes, effect: Effect) -> bytes:
    if effect == "drop":
        return b""
    if effect == "half":
        return data[: len(data) // 2]
    return bytes(len(data)) if effect == "zero" else data
