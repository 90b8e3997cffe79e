"""Atomic writes and renames that never replace."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from experiment.errors import StorageError
from experiment.sealing import files
from experiment.sealing.files import FILES, Files, rename_exclusively, write_atomic
from tests.doubles.crashing_files import Crash, CrashingFiles

if TYPE_CHECKING:
    from pathlib import Path


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomic(path, b"old")
    write_atomic(path, b"new")
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["file"]


def test_contents_are_durable_before_the_name_is(tmp_path: Path) -> None:
    recorder = CrashingFiles()
    write_atomic(tmp_path / "file", b"new", files=recorder)
    assert recorder.names == ["create", "write", "fsync", "replace", "fsync"]


@pytest.mark.parametrize("at", range(5))
@pytest.mark.parametrize("how", ["EIO", "ENOSPC", "short"])
def test_a_failure_leaves_the_old_or_the_new_file_and_no_litter(tmp_path: Path, at: int, how: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with pytest.raises(StorageError, match="file"):
        write_atomic(path, b"new", files=CrashingFiles(at, how))
    assert path.read_bytes() == (b"new" if at == 4 else b"old")
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("at", range(5))
def test_a_crash_never_leaves_a_part_under_the_name(tmp_path: Path, at: int) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with pytest.raises(Crash):
        write_atomic(path, b"new", files=CrashingFiles(at, "torn"))
    assert path.read_bytes() == (b"new" if at == 4 else b"old")
    write_atomic(path, b"newer")
    assert path.read_bytes() == b"newer"


def test_a_missing_directory_is_a_storage_error_that_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"gone/file: No such file"):
        write_atomic(tmp_path / "gone" / "file", b"")


@pytest.mark.parametrize("has_call", [True, False])
@pytest.mark.parametrize("kind", ["file", "empty directory", "dangling link"])
def test_a_rename_never_replaces(tmp_path: Path, kind: str, has_call: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not has_call:
        monkeypatch.setattr(files, "_rename_noreplace", lambda *_: False)
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    if kind == "file":
        target.write_bytes(b"")
    elif kind == "empty directory":
        target.mkdir()
    else:
        target.symlink_to("nowhere")
    with pytest.raises(FileExistsError):
        rename_exclusively(source, target)
    assert source.is_dir()
    rename_exclusively(source, tmp_path / "free")
    assert (tmp_path / "free").is_dir()


def test_a_rename_of_nothing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        rename_exclusively(tmp_path / "missing", tmp_path / "target")


def test_an_exclusive_file_is_not_opened_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("elsewhere")
    with pytest.raises(FileExistsError):
        FILES.create(tmp_path / "link")
    assert not (tmp_path / "elsewhere").exists()


def test_a_short_write_is_an_error() -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with pytest.raises(OSError, match=r"short write: \d+ of 4194304 bytes"):
        FILES.write(writing, bytes(1 << 22))
    os.close(reading)
    os.close(writing)


def test_names_above_a_file_are_made_durable_once(tmp_path: Path) -> None:
    class Noting(Files):
        def fsync_path(self, path: Path) -> None:
            noted.append(path)

    noted: list[Path] = []
    files = Noting()
    files.anchor(tmp_path / "a" / "b")
    assert noted == [tmp_path / "a", tmp_path, *tmp_path.parents]
    files.anchor(tmp_path / "a" / "c")
    assert noted[-1] == tmp_path / "a"
    assert len(noted) == len(tmp_path.parents) + 3


def test_an_atomic_write_makes_the_names_above_it_durable(tmp_path: Path) -> None:
    class Noting(Files):
        def anchor(self, folder: Path) -> None:
            anchored.append(folder)

    anchored: list[Path] = []
    write_atomic(tmp_path / "file", b"new", files=Noting())
    assert anchored == [tmp_path]


def test_a_rewrite_keeps_contents_and_length(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"abcdef")
    FILES.rewrite(path, 2, b"cd")
    assert path.read_bytes() == b"abcdef"
