"""Ways to damage a run's folder, each a function of the folder; patterns name the first file that fits."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

Damage = Callable[[Path], None]
FIRST_SEGMENT = "journal/000000.jsonl"


def one(run_dir: Path, pattern: str) -> Path:
    """The first file or folder that fits a pattern."""
    return min(run_dir.glob(pattern))


def flip_bit(path: Path, position: int, bit: int = 0) -> None:
    """Change one bit of a file."""
    data = bytearray(path.read_bytes())
    data[position] ^= 1 << bit
    path.write_bytes(data)


def remove(pattern: str) -> Damage:
    """Delete a file, or a folder with everything below it."""

    def damage(run_dir: Path) -> None:
        path = one(run_dir, pattern)
        shutil.rmtree(path) if path.is_dir() else path.unlink()

    return damage


def add(name: str) -> Damage:
    """Make a file that nobody wrote."""

    def damage(run_dir: Path) -> None:
        (run_dir / name).parent.mkdir(parents=True, exist_ok=True)
        (run_dir / name).write_bytes(b"x")

    return damage


def append(data: bytes, name: str = FIRST_SEGMENT) -> Damage:
    """Add bytes after a file's end."""

    def damage(run_dir: Path) -> None:
        with (run_dir / name).open("ab") as stream:
            stream.write(data)

    return damage


def rewrite_lines(change: Callable[[list[bytes]], list[bytes]], name: str = FIRST_SEGMENT) -> Damage:
    """Put a segment's lines in another order, or leave some out."""

    def damage(run_dir: Path) -> None:
        lines = (run_dir / name).read_bytes().splitlines(keepends=True)
        (run_dir / name).write_bytes(b"".join(change(lines)))

    return damage


def cut_records(number: int, name: str = FIRST_SEGMENT) -> Damage:
    """Cut the last records off a segment."""
    return rewrite_lines(lambda lines: lines[:-number], name)


def link(pattern: str) -> Damage:
    """Move a file away and leave a link to the equal bytes."""

    def damage(run_dir: Path) -> None:
        path = one(run_dir, pattern)
        moved = run_dir / "moved"
        path.rename(moved)
        path.symlink_to(moved)

    return damage


def link_folder(name: str) -> Damage:
    """Move a folder away and leave a link to it."""

    def damage(run_dir: Path) -> None:
        (run_dir / name).rename(run_dir / "moved")
        (run_dir / name).symlink_to(run_dir / "moved")

    return damage


def pipe(pattern: str) -> Damage:
    """Put a named pipe in a file's place."""

    def damage(run_dir: Path) -> None:
        path = one(run_dir, pattern)
        path.unlink()
        os.mkfifo(path)

    return damage
