"""The one door to the file system for everything that must survive a crash.

Every change to a journal, a head or a seal is one call on `Files`, so that a test can stop, fail or lose
each of them in turn. The calls raise `OSError`; whoever knows which promise broke turns it into a
`StorageError` with `refused`.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import secrets
import stat
import sys
from typing import TYPE_CHECKING, BinaryIO

from experiment.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_RENAME_NOREPLACE = 1
_AT_FDCWD = -100


class Files:
    """Durable operations, each one system call that changes something."""

    def __init__(self) -> None:
        self._anchored: set[Path] = set()

    def create(self, path: Path) -> int:
        """Create `path`, which must not exist, and return a descriptor that appends to it."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        return os.open(path, flags, 0o644)

    def write(self, fd: int, data: bytes) -> None:
        """Append all of `data` in one call; a short write is an error, because its rest may never follow."""
        written = os.write(fd, data)
        if written != len(data):
            raise OSError(errno.EIO, f"short write: {written} of {len(data)} bytes")

    def rewrite(self, path: Path, offset: int, data: bytes) -> None:
        """Write the bytes that are already at `offset` once more and make them durable."""
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            written = os.pwrite(fd, data, offset)
            if written != len(data):
                raise OSError(errno.EIO, f"short write: {written} of {len(data)} bytes")
            self.fsync(fd)
        finally:
            os.close(fd)

    def fsync(self, fd: int) -> None:
        """Make the contents behind `fd` durable."""
        os.fsync(fd)

    def fsync_path(self, path: Path) -> None:
        """Make a file's contents, or a directory's list of names, durable."""
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            self.fsync(fd)
        finally:
            os.close(fd)

    def anchor(self, folder: Path) -> None:
        """Make the name of `folder`, and of each directory above it, durable; once per directory and process.

        A file that was made durable is lost all the same where a directory on the way to it is.
        """
        for each in (folder, *folder.absolute().parents):
            if each.absolute() in self._anchored or each == each.parent:
                return
            # What this process may not read it has not made either.
            with contextlib.suppress(PermissionError):
                self.fsync_path(each.absolute().parent)
            self._anchored.add(each.absolute())

    def mkdir(self, path: Path) -> None:
        """Create the directory `path`, which must not exist, inside an existing one."""
        path.mkdir()

    def rename(self, source: Path, target: Path) -> None:
        """Move `source` to `target`, which must not exist."""
        rename_exclusively(source, target)

    def replace(self, source: Path, target: Path) -> None:
        """Move the file `source` to `target`, in place of what was there."""
        source.replace(target)

    def unlink(self, path: Path) -> None:
        """Remove a temporary file that this package made."""
        path.unlink()


FILES = Files()
"""The real file system."""


@contextlib.contextmanager
def refused(place: object) -> Iterator[None]:
    """Turn an `OSError` of the block into a `StorageError` that names `place`."""
    try:
        yield
    except OSError as error:
        msg = f"{place}: {error.strerror or error}"
        raise StorageError(msg) from error


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading; neither a link nor anything that could block is opened.

    Raises:
        OSError: There is none, or it is something else.
    """
    # Without O_NONBLOCK the open of a pipe would wait for its other end.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "Not a regular file", str(path))
        return os.fdopen(fd, "rb")
    except BaseException:
        os.close(fd)
        raise


def write_atomic(path: Path, data: bytes, *, files: Files = FILES) -> None:
    """Afterwards `path` durably holds `data`; at no moment does it hold a part of it.

    Raises:
        StorageError: The file system refused; `path` still holds what it held before.
    """
    # The nonce keeps a temporary file that a crash left behind from colliding with this one.
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    with refused(path):
        fd = files.create(temporary)
        try:
            try:
                files.write(fd, data)
                files.fsync(fd)
            finally:
                os.close(fd)
            files.replace(temporary, path)
        except OSError:
            with contextlib.suppress(OSError):
                files.unlink(temporary)
            raise
        files.fsync_path(path.parent)
        files.anchor(path.parent)


def rename_exclusively(source: Path, target: Path) -> None:
    """Move `source` to `target` unless `target` exists (`os.rename` would replace an empty directory).

    Raises:
        FileExistsError: `target` exists.
        OSError: The file system refused.
    """
    if not _rename_noreplace(os.fsencode(source), os.fsencode(target)):
        # No such call here: the check leaves a gap, which only a second writer could use, and the lock forbids it.
        if os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
        source.rename(target)


def _rename_noreplace(source: bytes, target: bytes) -> bool:
    """Return False where kernel or file system cannot rename without replacing."""
    if not sys.platform.startswith("linux"):
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "renameat2"):
        return False
    if libc.renameat2(_AT_FDCWD, source, _AT_FDCWD, target, _RENAME_NOREPLACE) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.ENOSYS, errno.EINVAL):
        return False
    raise OSError(number, os.strerror(number), os.fsdecode(target))
