"""Digests: the official vectors, and files that are no files."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from blake3 import blake3

from experiment.errors import UsageError
from experiment.sealing import digests
from experiment.sealing.digests import derive, digest_bytes, digest_file

if TYPE_CHECKING:
    from pathlib import Path

CONTEXTS = [value for name, value in vars(digests).items() if name.startswith("CONTEXT_")]


def _pattern(length: int) -> bytes:
    """The input of the official BLAKE3 test vectors."""
    return bytes(index % 251 for index in range(length))


@pytest.mark.parametrize(
    ("length", "expected"),
    [
        (0, "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"),
        (1, "2d3adedff11b61f14c886e35afa036736dcd87a74d27b5c1510225d0f592e213"),
        (1024, "42214739f095a406f3fc83deb889744ac00df831c10daa55189b5d121c855af7"),
    ],
)
def test_official_vectors_hold(length: int, expected: str) -> None:
    assert digest_bytes(_pattern(length)) == expected


def test_a_context_separates_kinds_of_bytes() -> None:
    assert len(set(CONTEXTS)) == len(CONTEXTS) == 8
    assert len({derive(context, b"same") for context in CONTEXTS} | {digest_bytes(b"same")}) == 9
    assert derive(CONTEXTS[0], b"same") == blake3(b"same", derive_key_context=CONTEXTS[0]).hexdigest()


@pytest.mark.parametrize("size", [0, 1, (1 << 20) - 1, (1 << 20) + 7])
def test_a_file_has_the_digest_of_its_bytes(tmp_path: Path, size: int) -> None:
    data = _pattern(size)
    (tmp_path / "file").write_bytes(data)
    assert digest_file(tmp_path / "file") == digest_bytes(data)


def test_links_pipes_directories_and_gaps_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "link").symlink_to("file")
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe", ".", "missing"):
        with pytest.raises(UsageError, match=r"regular file"):
            digest_file(tmp_path / name)
