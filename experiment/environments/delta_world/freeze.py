"""Makes a table that Spark has just written the same in every byte, whenever and wherever it was written.

Identifiers become derived ones, times become the fixed moments of the fixture, and durations in a commit's metrics
become one number. Checkpoints go, since every commit is there. Data files get derived names and keep their bytes, but
for the order in which a column's encodings are listed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from experiment.environments.delta_world.moments import commit_moment
from experiment.environments.delta_world.replay import LOG
from experiment.sealing.canonical import encode
from experiment.sealing.digests import digest_bytes

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_KEPT = re.compile(r"(\d{20})\.(json|crc)")
_TIMES = frozenset({"timestamp", "deletionTimestamp"})
_DURATION = "TimeMs"
_SOME_MILLISECONDS = "120"
_ENCODINGS = re.compile(
    rb"(?<=\x15[\x00-\x10]\x19)(?:\x25[\x00-\x12]{2}|\x35[\x00-\x12]{3}|\x45[\x00-\x12]{4})(?=\x19\x18)"
)
"""In a Parquet footer, between a column's type and its path: a list of small numbers, in Thrift's compact protocol."""


@dataclass(slots=True)
class _Freezer:
    name: str
    identifiers: dict[str, str] = field(default_factory=dict)
    written: dict[str, int] = field(default_factory=dict)
    """Moment of the commit that added a path, in milliseconds."""
    created: dict[int, int] = field(default_factory=dict)
    """Moment of the commit that first named a time of creation, in milliseconds, by that time."""

    def rename(self, text: str) -> str:
        """Return `text` with every identifier replaced, the same one always by the same."""
        return _UUID.sub(lambda match: self._derive(match[0]), text)

    def settle(self, value: object, moment: int) -> object:
        """Return a value of a log whose times and durations no longer depend on when it was written."""
        if isinstance(value, list):
            return [self.settle(each, moment) for each in value]
        if not isinstance(value, dict):
            return value
        return {key: self._settle_field(key, each, value, moment) for key, each in value.items()}

    def _settle_field(self, key: str, value: object, owner: Mapping[str, object], moment: int) -> object:
        if key in _TIMES and isinstance(value, int):
            return moment
        if key == "createdTime" and isinstance(value, int):
            # Checksum files repeat a table's metadata; Delta does not find the table where they differ from the log.
            return self.created.setdefault(value, moment)
        if key == "modificationTime":
            return self.written.setdefault(str(owner["path"]), moment)
        if key.endswith(_DURATION) and isinstance(value, str):
            return _SOME_MILLISECONDS
        return self.settle(value, moment)

    def _derive(self, identifier: str) -> str:
        if identifier not in self.identifiers:
            digest = digest_bytes(f"{self.name} {len(self.identifiers)}".encode())
            self.identifiers[identifier] = "-".join(
                digest[start:end] for start, end in ((0, 8), (8, 12), (12, 16), (16, 20), (20, 32))
            )
        return self.identifiers[identifier]


def freeze_table(folder: Path, name: str) -> None:
    """Rewrite a table's log and file names in place; `name` decides what its identifiers become."""
    freezer = _Freezer(name)
    log = folder / LOG
    for entry in sorted(log.iterdir()):
        if not _KEPT.fullmatch(entry.name):
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    for suffix in ("json", "crc"):
        for path in sorted(log.glob(f"*.{suffix}")):
            _freeze_commit(path, freezer)
    for path in sorted(each for each in folder.rglob("*") if each.is_file() and each.parent != log):
        _freeze_data(path, folder, freezer)
    for path in sorted((each for each in (folder, *folder.rglob("*")) if each.is_dir()), reverse=True):
        _set_time(path, _milliseconds(0))


def _freeze_commit(path: Path, freezer: _Freezer) -> None:
    moment = _milliseconds(int(path.stem))
    lines = [json.loads(line) for line in freezer.rename(path.read_text(encoding="utf-8")).splitlines()]
    # Spark writes removed files, and a checksum's list of files, in the order of their random names.
    lines.sort(key=lambda line: line["remove"]["path"] if "remove" in line else "")
    for line in lines:
        line.get("allFiles", []).sort(key=lambda file: file["path"])
    path.write_bytes(b"".join(encode(freezer.settle(line, moment)) + b"\n" for line in lines))
    _set_time(path, moment)


def _freeze_data(path: Path, folder: Path, freezer: _Freezer) -> None:
    if path.name.startswith("."):
        path.unlink()
        return
    path.write_bytes(_settle_footer(path.read_bytes()))
    renamed = path.with_name(freezer.rename(path.name))
    path.rename(renamed)
    _set_time(renamed, freezer.written.get(renamed.relative_to(folder).as_posix(), _milliseconds(0)))


def _settle_footer(content: bytes) -> bytes:
    """Return a Parquet file that lists encodings in one order; Spark's depends on where its Java put some objects.

    Source: https://github.com/apache/parquet-format (footer, ColumnMetaData.encodings).
    """
    start = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    footer = _ENCODINGS.sub(lambda match: match[0][:1] + bytes(sorted(match[0][1:])), content[start:])
    return content[:start] + footer


def _milliseconds(version: int) -> int:
    return int(commit_moment(version).timestamp() * 1000)


def _set_time(path: Path, milliseconds: int) -> None:
    os.utime(path, ns=(milliseconds * 1_000_000, milliseconds * 1_000_000))
