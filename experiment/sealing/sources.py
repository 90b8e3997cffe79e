"""The identity of this package's own source code."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from experiment.sealing.canonical import encode
from experiment.sealing.digests import CONTEXT_TREE, derive, digest_file

PACKAGE: Final = Path(__file__).resolve().parent.parent
_SUFFIXES: Final = frozenset({".py", ".jinja", ".typed"})


@dataclass(frozen=True, slots=True)
class SourceSeal:
    """Digest and size of all source files."""

    digest: str
    size_bytes: int
    files: tuple[tuple[str, str], ...]
    """(path relative to the package, BLAKE3), sorted."""


def scan_sources(package: Path = PACKAGE) -> SourceSeal:
    """Return the identity of the sources under `package`; caches and other generated files do not count."""
    paths = sorted(path for path in package.rglob("*") if path.suffix in _SUFFIXES and path.is_file())
    files = tuple((path.relative_to(package).as_posix(), digest_file(path)) for path in paths)
    return SourceSeal(
        digest=derive(CONTEXT_TREE, encode([list(each) for each in files])),
        size_bytes=sum(path.stat().st_size for path in paths),
        files=files,
    )
