"""Sealed directories: a canonical list of what is inside, and its digest as the directory's identity.

The rules (T1 to T9) are those of `docs/journal-format.md`. A tree holds plain files and directories only;
whatever could be re-pointed, shared or read in two ways is refused, not followed.
"""

from __future__ import annotations

import os
import stat
import unicodedata
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from experiment.errors import JournalError, StorageError, UsageError
from experiment.sealing.canonical import decode, encode
from experiment.sealing.digests import CONTEXT_TREE, derive, digest_descriptor
from experiment.sealing.files import FILES, open_regular, refused

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from experiment.sealing.files import Files

SEAL_NAME = "seal.json"
_OPEN = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_MAX_NAME_BYTES = 255


@dataclass(frozen=True, slots=True)
class TreeEntry:
    """One file or directory of a tree."""

    path: str
    """Relative to the root, parts joined by `/`."""
    kind: Literal["f", "d"]
    mode: Literal["644", "755"]
    """Whether a file's owner may execute it; always 755 for directories."""
    size: int
    """Bytes; 0 for directories."""
    b3: str
    """BLAKE3 of a file's bytes; empty for directories."""


@dataclass(frozen=True, slots=True)
class TreeSeal:
    """What a directory holds, and the digest that stands for it."""

    tree: str
    files: int
    size_bytes: int
    entries: tuple[TreeEntry, ...]
    """Sorted by the UTF-8 bytes of their path."""


def scan_tree(path: Path) -> TreeSeal:
    """Return the identity of the directory `path`; only `seal.json` at its root is left out.

    Raises:
        UsageError: An entry is a link, shared by hard links, special, on another file system, set-uid or
            set-gid, badly named, or changed while it was read; the message names it.
    """
    try:
        root = os.open(path, _OPEN | os.O_DIRECTORY)
    except OSError as error:
        msg = f"{path}: cannot be opened as a directory ({error.strerror})"
        raise UsageError(msg) from error
    try:
        entries = list(_walk(root, os.fstat(root).st_dev, "", path))
    except OSError as error:
        msg = f"{path}: cannot be read ({error})"
        raise StorageError(msg) from error
    finally:
        os.close(root)
    # T7: bytes, not the locale and not UTF-16, decide the order.
    entries.sort(key=lambda entry: entry.path.encode())
    return _seal_of(tuple(entries))


def seal_tree(partial: Path, final: Path, *, files: Files = FILES) -> TreeSeal:
    """Afterwards `final` durably holds the tree that was in `partial`, with its seal.

    Raises:
        UsageError: `partial` breaks a rule of `scan_tree`, is already sealed, or `final` exists.
        StorageError: The file system refused; `final` does not exist, or is complete.
    """
    if (partial / SEAL_NAME).exists() or os.path.lexists(final):
        msg = f"{partial}: cannot be sealed as {final}: one of them is already sealed"
        raise UsageError(msg)
    seal = scan_tree(partial)
    with refused(partial):
        for entry in seal.entries:
            if entry.kind == "f":
                files.fsync_path(partial / entry.path)
        fd = files.create(partial / SEAL_NAME)
        try:
            files.write(fd, seal_bytes(seal.entries))
            files.fsync(fd)
        finally:
            os.close(fd)
        for entry in reversed(seal.entries):
            if entry.kind == "d":
                files.fsync_path(partial / entry.path)
        files.fsync_path(partial)
        files.rename(partial, final)
        files.fsync_path(final.parent)
        files.anchor(final.parent)
        if partial.parent != final.parent:
            files.fsync_path(partial.parent)
    return seal


def verify_tree(path: Path, expected: str | None = None) -> TreeSeal:
    """Return the identity of a sealed directory, whose seal was found to be true.

    Args:
        path: The directory.
        expected: The tree digest that it must have, where one is known.

    Raises:
        JournalError: The seal is missing, disagrees with what is there (the message names the first
            differing file), or is not the expected one.
    """
    try:
        found = scan_tree(path)
    except UsageError as error:
        msg = f"T-ENTRY: {error}"
        raise JournalError(msg) from error
    sealed = _read_seal(path / SEAL_NAME)
    if sealed != seal_bytes(found.entries):
        msg = f"T-SEAL: {path}: {_first_difference(sealed, found.entries)}"
        raise JournalError(msg)
    if expected is not None and found.tree != expected:
        msg = f"T-TREE: {path}: its tree is {found.tree}, recorded was {expected}"
        raise JournalError(msg)
    return found


def seal_bytes(entries: tuple[TreeEntry, ...]) -> bytes:
    """Return the contents of `seal.json` (rule T8)."""
    return encode([_row(entry) for entry in entries])


def name_problem(name: str) -> str | None:
    """Return why `name` may not be a path component (rule T4), or None where it may.

    Source: Unicode Standard Annex 15 (NFC).
    """
    problems = {
        "is empty or a relative step": name in {"", ".", ".."},
        "holds a slash or backslash": "/" in name or "\\" in name,
        "is not valid UTF-8": _is_lossy(name),
        "holds a control character": any(unicodedata.category(char) == "Cc" for char in name),
        "is not in Unicode normal form NFC": not unicodedata.is_normalized("NFC", name),
        f"is longer than {_MAX_NAME_BYTES} bytes": len(os.fsencode(name)) > _MAX_NAME_BYTES,
    }
    return next((text for text, is_true in problems.items() if is_true), None)


def _is_lossy(name: str) -> bool:
    return any("\ud800" <= char <= "\udfff" for char in name)


def _walk(directory: int, device: int, prefix: str, root: Path) -> Iterator[TreeEntry]:
    names = os.listdir(directory)
    if not prefix and SEAL_NAME in names:
        # Nothing else is ever left out: what is ignored could be changed.
        names.remove(SEAL_NAME)
    _check_names(names, prefix, root)
    for name in names:
        place = root / prefix / name
        try:
            fd = os.open(name, _OPEN, dir_fd=directory)
        except OSError as error:
            msg = f"{place}: is a link or cannot be opened ({error.strerror})"
            raise UsageError(msg) from error
        try:
            yield from _entries(fd, device, f"{prefix}{name}", root)
        finally:
            os.close(fd)


def _entries(fd: int, device: int, path: str, root: Path) -> Iterator[TreeEntry]:
    before = os.fstat(fd)
    _check_kind(before, device, root / path)
    if stat.S_ISDIR(before.st_mode):
        yield TreeEntry(path, "d", "755", 0, "")
        yield from _walk(fd, device, f"{path}/", root)
    else:
        b3 = digest_descriptor(fd)
        mode: Literal["644", "755"] = "755" if before.st_mode & stat.S_IXUSR else "644"
        yield TreeEntry(path, "f", mode, before.st_size, b3)
    # T6: what changes while it is being read has no identity.
    if _signature(before) != _signature(os.fstat(fd)):
        msg = f"{root / path}: changed while it was being sealed"
        raise UsageError(msg)


def _signature(status: os.stat_result) -> tuple[int, ...]:
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def _check_names(names: list[str], prefix: str, root: Path) -> None:
    seen: dict[str, str] = {}
    for name in sorted(names):
        place = f"{root / prefix}: entry {name!r}"
        # T4: a name means the same on every system and in every terminal.
        problem = name_problem(name)
        if problem is not None:
            msg = f"{place} {problem}"
            raise UsageError(msg)
        # T5: two such names are one file on a file system that ignores case.
        folded = unicodedata.normalize("NFC", name.casefold())
        if folded in seen:
            msg = f"{place} differs from {seen[folded]!r} by case only"
            raise UsageError(msg)
        seen[folded] = name


def _check_kind(status: os.stat_result, device: int, place: Path) -> None:
    # T1 to T3: whatever could be re-pointed, shared or swapped from outside is refused.
    is_file = stat.S_ISREG(status.st_mode)
    problems = {
        "is neither a regular file nor a directory": not is_file and not stat.S_ISDIR(status.st_mode),
        "has more than one hard link": is_file and status.st_nlink > 1,
        "is set-uid or set-gid": is_file and bool(status.st_mode & (stat.S_ISUID | stat.S_ISGID)),
        "lies on another file system": status.st_dev != device,
    }
    for text, is_true in problems.items():
        if is_true:
            msg = f"{place}: {text}"
            raise UsageError(msg)


def _seal_of(entries: tuple[TreeEntry, ...]) -> TreeSeal:
    # T9.
    return TreeSeal(
        tree=derive(CONTEXT_TREE, seal_bytes(entries)),
        files=sum(entry.kind == "f" for entry in entries),
        size_bytes=sum(entry.size for entry in entries),
        entries=entries,
    )


def _row(entry: TreeEntry) -> dict[str, object]:
    row: dict[str, object] = {"k": entry.kind, "m": entry.mode, "p": entry.path}
    if entry.kind == "f":
        row |= {"b3": entry.b3, "n": entry.size}
    return row


def _read_seal(path: Path) -> bytes:
    try:
        with open_regular(path) as stream:
            return stream.read()
    except OSError as error:
        msg = f"T-SEAL: {path}: no seal can be read ({error.strerror})"
        raise JournalError(msg) from error


def _first_difference(sealed: bytes, entries: tuple[TreeEntry, ...]) -> str:
    try:
        rows = decode(sealed)
    except ValueError as error:
        return f"{SEAL_NAME} is not canonical JSON ({error})"
    if not isinstance(rows, list):
        return f"{SEAL_NAME} is not a list"
    recorded = {row.get("p"): row for row in rows if isinstance(row, dict)}
    found = {entry.path: _row(entry) for entry in entries}
    for path in sorted(recorded.keys() | found.keys(), key=str):
        if path not in found:
            return f"{path!r} is sealed but missing"
        if path not in recorded:
            return f"{path!r} is there but not sealed"
        if recorded[path] != found[path]:
            return f"{path!r} is not what was sealed"
    return f"{SEAL_NAME} lists its entries in another order or twice"
