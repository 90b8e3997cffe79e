"""Sealed directories: what has an identity, and what is refused instead of followed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from blake3 import blake3

from experiment.errors import JournalError, StorageError, UsageError
from experiment.sealing import trees
from experiment.sealing.trees import name_problem, scan_tree, seal_tree, verify_tree
from tests.doubles.crashing_files import Crash, CrashingFiles

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NFD_NAME = "u\u0308ber"


def _make(root: Path) -> Path:
    (root / "b" / "empty").mkdir(parents=True)
    (root / "b" / "data.bin").write_bytes(b"data")
    (root / "a.txt").write_bytes(b"")
    (root / "run.sh").write_bytes(b"#!")
    (root / "run.sh").chmod(0o755)
    return root


def test_a_tree_is_its_sorted_list_of_entries(tmp_path: Path) -> None:
    seal = scan_tree(_make(tmp_path / "tree"))
    assert [(entry.path, entry.kind, entry.mode, entry.size) for entry in seal.entries] == [
        ("a.txt", "f", "644", 0),
        ("b", "d", "755", 0),
        ("b/data.bin", "f", "644", 4),
        ("b/empty", "d", "755", 0),
        ("run.sh", "f", "755", 2),
    ]
    assert (seal.files, seal.size_bytes) == (3, 6)


def test_the_identity_can_be_computed_by_hand(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "ü").write_bytes(b"x")
    (tmp_path / "tree" / "d").mkdir()
    listing = f'[{{"k":"d","m":"755","p":"d"}},{{"b3":"{blake3(b"x").hexdigest()}","k":"f","m":"644","n":1,"p":"ü"}}]'
    expected = blake3(listing.encode(), derive_key_context="experiment 2026-11-29 tree v1").hexdigest()
    assert scan_tree(tmp_path / "tree").tree == expected


def test_order_is_that_of_utf_8_bytes_not_of_utf_16_units(tmp_path: Path) -> None:
    for name in ("\U0001f600", "\uff5e", "a-b", "a"):
        (tmp_path / name).mkdir()
    (tmp_path / "a" / "z").write_bytes(b"")
    assert [entry.path for entry in scan_tree(tmp_path).entries] == ["a", "a-b", "a/z", "\uff5e", "\U0001f600"]


@pytest.mark.parametrize(
    "change",
    [
        lambda root: (root / "b" / "data.bin").write_bytes(b"Data"),
        lambda root: (root / "b" / "data.bin").rename(root / "data.bin"),
        lambda root: (root / "b" / "empty").rmdir(),
        lambda root: (root / "c").mkdir(),
        lambda root: (root / "b" / "seal.json").write_bytes(b""),
        lambda root: (root / "a.txt").chmod(0o755),
        lambda root: (root / "run.sh").chmod(0o644),
    ],
)
def test_every_change_gives_another_identity(tmp_path: Path, change: Callable[[Path], object]) -> None:
    root = _make(tmp_path / "tree")
    before = scan_tree(root).tree
    change(root)
    assert scan_tree(root).tree != before


def test_times_owners_and_group_rights_do_not_matter(tmp_path: Path) -> None:
    root = _make(tmp_path / "tree")
    before = scan_tree(root).tree
    os.utime(root / "a.txt", (1, 1))
    (root / "a.txt").chmod(0o600)
    assert scan_tree(root).tree == before


def test_bytes_cannot_move_between_name_and_contents(tmp_path: Path) -> None:
    for name, content in (("one", b"ab"), ("onea", b"b")):
        folder = tmp_path / f"tree-{name}"
        folder.mkdir()
        (folder / name).write_bytes(content)
    assert scan_tree(tmp_path / "tree-one").tree != scan_tree(tmp_path / "tree-onea").tree


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda root: (root / "link").symlink_to("a.txt"), "link: is a link"),
        (lambda root: (root / "link").symlink_to("/"), "link: is a link"),
        (lambda root: (root / "loop").symlink_to("loop"), "loop: is a link"),
        (lambda root: (root / "b" / "hard").hardlink_to(root / "a.txt"), "hard link"),
        (lambda root: os.mkfifo(root / "pipe"), "pipe: is neither"),
        (lambda root: (root / "run.sh").chmod(0o4755), "set-uid"),
        (lambda root: (root / "run.sh").chmod(0o2755), "set-uid or set-gid"),
        (lambda root: (root / NFD_NAME).write_bytes(b""), "NFC"),
        (lambda root: (root / "A.TXT").write_bytes(b""), "by case only"),
        (lambda root: (root / "straße").mkdir() or (root / "STRASSE").mkdir(), "by case only"),
        (lambda root: (root / "new\nline").write_bytes(b""), "control character"),
        (lambda root: (root / "esc\x1b[2J").write_bytes(b""), "control character"),
        (lambda root: (root / "back\\slash").write_bytes(b""), "backslash"),
        (lambda root: (root / os.fsdecode(b"\xff")).write_bytes(b""), "UTF-8"),
    ],
)
def test_what_could_be_read_in_two_ways_is_refused(
    tmp_path: Path, spoil: Callable[[Path], object], message: str
) -> None:
    root = _make(tmp_path / "tree")
    spoil(root)
    with pytest.raises(UsageError, match=message):
        scan_tree(root)


def test_a_linked_or_missing_root_is_refused(tmp_path: Path) -> None:
    _make(tmp_path / "tree")
    (tmp_path / "link").symlink_to("tree")
    for name in ("link", "missing", "tree/a.txt"):
        with pytest.raises(UsageError, match="cannot be opened as a directory"):
            scan_tree(tmp_path / name)


def test_a_file_that_changes_while_it_is_read_has_no_identity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = _make(tmp_path / "tree")
    read = trees.digest_descriptor

    def grow(fd: int) -> str:
        digest = read(fd)
        with (root / "a.txt").open("ab") as stream:
            stream.write(b"more")
        return digest

    monkeypatch.setattr(trees, "digest_descriptor", grow)
    with pytest.raises(UsageError, match="changed while it was being sealed"):
        scan_tree(root)


def test_what_lies_on_another_file_system_is_refused(tmp_path: Path) -> None:
    status = tmp_path.stat()
    trees._check_kind(status, status.st_dev, tmp_path)
    with pytest.raises(UsageError, match="another file system"):
        trees._check_kind(status, status.st_dev + 1, tmp_path)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a" * 256, "ü" * 128, "\x00", "\x7f", "\x85"])
def test_a_bad_name_has_a_reason(name: str) -> None:
    assert name_problem(name)


@pytest.mark.parametrize("name", ["a", "ü", "a b", "...", ".partial", "ü" * 127])
def test_a_good_name_has_none(name: str) -> None:
    assert name_problem(name) is None


def test_a_sealed_tree_verifies_and_keeps_its_identity(tmp_path: Path) -> None:
    before = scan_tree(_make(tmp_path / "partial"))
    sealed = seal_tree(tmp_path / "partial", tmp_path / "final")
    assert sealed == before
    assert verify_tree(tmp_path / "final", sealed.tree) == sealed
    assert not (tmp_path / "partial").exists()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda root: (root / "b" / "data.bin").write_bytes(b""), "'b/data.bin' is not what was sealed"),
        (lambda root: (root / "b" / "data.bin").unlink(), "'b/data.bin' is sealed but missing"),
        (lambda root: (root / "b" / "new").mkdir(), "'b/new' is there but not sealed"),
        (lambda root: (root / "run.sh").chmod(0o644), "'run.sh' is not what was sealed"),
        (lambda root: (root / "seal.json").unlink(), "no seal can be read"),
        (lambda root: (root / "seal.json").write_bytes(b"[]"), "'a.txt' is there but not sealed"),
        (lambda root: (root / "seal.json").write_bytes(b"{}"), "is not a list"),
        (lambda root: (root / "seal.json").write_bytes(b"[] "), "not canonical"),
        (
            lambda root: (root / "a.txt").rename(root / "c") and (root / "a.txt").symlink_to("c"),
            "T-ENTRY.*a.txt: is a link",
        ),
        (
            lambda root: (root / "seal.json").rename(root.parent / "s") and (root / "seal.json").symlink_to("../s"),
            "no seal can be read",
        ),
    ],
)
def test_damage_is_refused_by_name(tmp_path: Path, damage: Callable[[Path], object], message: str) -> None:
    sealed = seal_tree(_make(tmp_path / "partial"), tmp_path / "final")
    damage(tmp_path / "final")
    with pytest.raises(JournalError, match=message):
        verify_tree(tmp_path / "final", sealed.tree)


def test_another_true_tree_is_not_the_expected_one(tmp_path: Path) -> None:
    seal_tree(_make(tmp_path / "partial"), tmp_path / "final")
    with pytest.raises(JournalError, match=r"T-TREE.*recorded was 0000"):
        verify_tree(tmp_path / "final", "0" * 64)


def test_nothing_is_sealed_twice_or_over_something(tmp_path: Path) -> None:
    seal_tree(_make(tmp_path / "partial"), tmp_path / "final")
    with pytest.raises(UsageError, match="already sealed"):
        seal_tree(tmp_path / "final", tmp_path / "again")
    with pytest.raises(UsageError, match="already sealed"):
        seal_tree(_make(tmp_path / "partial"), tmp_path / "final")
    assert not (tmp_path / "partial" / "seal.json").exists()


def test_a_directory_that_appears_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    class Overtaken(CrashingFiles):
        def create(self, path: Path) -> int:
            (tmp_path / "final").mkdir()
            return super().create(path)

    with pytest.raises(StorageError, match="File exists"):
        seal_tree(_make(tmp_path / "partial"), tmp_path / "final", files=Overtaken())
    assert not any((tmp_path / "final").iterdir())
    assert (tmp_path / "partial" / "seal.json").exists()


SEAL_OPERATIONS = 11


def test_sealing_takes_as_many_steps_as_are_tried_below(tmp_path: Path) -> None:
    counter = CrashingFiles()
    seal_tree(_make(tmp_path / "partial"), tmp_path / "final", files=counter)
    assert counter.count == SEAL_OPERATIONS


@pytest.mark.parametrize("at", range(SEAL_OPERATIONS))
@pytest.mark.parametrize("how", ["crash", "torn", "EIO", "ENOSPC"])
def test_a_failed_seal_never_shows_under_the_final_name(tmp_path: Path, at: int, how: str) -> None:
    with pytest.raises((Crash, StorageError)):
        seal_tree(_make(tmp_path / "partial"), tmp_path / "final", files=CrashingFiles(at, how))
    if (tmp_path / "final").exists():
        verify_tree(tmp_path / "final")
    else:
        assert (tmp_path / "partial" / "b" / "data.bin").read_bytes() == b"data"
