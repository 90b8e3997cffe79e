"""What a killed process left behind: made durable where a record counts on it, else moved aside; never deleted."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from experiment.journal.head import HEAD_NAME
from experiment.journal.reader import JOURNAL_NAME, segment_path
from experiment.records.entry import CheckpointSealed, Resume
from experiment.sealing.trees import verify_tree

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from experiment.journal.chain import Entry
    from experiment.journal.reader import JournalView
    from experiment.sealing.files import Files

RECOVERY_NAME = "recovery"
PARTIAL_PREFIX = ".partial-"
_MOVED = re.compile(r"\d{6}-.+")


def verify_checkpoints(run_dir: Path, entries: tuple[Entry, ...]) -> None:
    """Afterwards every checkpoint that a record names was found as it was sealed.

    Raises:
        JournalError: One is missing or changed; the message names the file.
    """
    for entry in entries:
        if isinstance(entry.body, CheckpointSealed):
            verify_tree(run_dir / entry.body.path, entry.body.tree)


def settle(run_dir: Path, view: JournalView, files: Files) -> None:
    """Afterwards every byte of the journal that was read is durable.

    After a failed fsync the kernel may hold bytes that it believes to be on the disk and that are not; reading
    finds them, and a crash loses them. Beyond the watermark the same bytes are therefore written once more.

    Source: Rebello et al., "Can Applications Recover from fsync Failures?", USENIX ATC 2020.
    """
    head = view.watermark
    for end in view.segments:
        if head is not None and end.seg < head.seg:
            continue
        offset = head.bytes if head is not None and end.seg == head.seg else 0
        path = segment_path(run_dir, end.seg)
        with path.open("rb") as stream:
            stream.seek(offset)
            data = stream.read()
        if data:
            files.rewrite(path, offset, data)
    files.fsync_path(run_dir / JOURNAL_NAME)


def move_leftovers(run_dir: Path, view: JournalView, files: Files) -> tuple[str, ...]:
    """Afterwards nothing lies among checkpoints, evidence, samples and branches that no record names.

    Returns:
        Where what was moved lies now, relative to the run, sorted; with it what an earlier attempt moved
        before it was killed in turn.
    """
    recovery = run_dir / RECOVERY_NAME
    if not recovery.is_dir():
        files.mkdir(recovery)
        files.fsync_path(run_dir)
    for source in sorted(_leftovers(run_dir, view.entries)):
        name = f"{len(view.segments):06d}-{source.relative_to(run_dir).as_posix().replace('/', '+')}"
        target = recovery / name
        count = 1
        while os.path.lexists(target):
            count += 1
            target = recovery / f"{name}+{count}"
        files.rename(source, target)
        files.fsync_path(recovery)
        files.fsync_path(source.parent)
    for temporary in sorted(run_dir.glob(f".{HEAD_NAME}.*.tmp")):
        files.unlink(temporary)
    named = {path for entry in view.entries if isinstance(entry.body, Resume) for path in entry.body.moved}
    found = {f"{RECOVERY_NAME}/{path.name}" for path in recovery.iterdir() if _MOVED.fullmatch(path.name)}
    return tuple(sorted(found - named))


def _leftovers(run_dir: Path, entries: tuple[Entry, ...]) -> Iterator[Path]:
    named = {artifact.path for entry in entries for artifact in entry.artifacts}
    named |= {entry.body.path for entry in entries if isinstance(entry.body, CheckpointSealed)}
    yield from run_dir.glob(f"{PARTIAL_PREFIX}*")
    for checkpoint in run_dir.glob("checkpoints/*/*"):
        if checkpoint.relative_to(run_dir).as_posix() not in named:
            yield checkpoint
    for branch in run_dir.glob("qualification/*/*"):
        prefix = f"{branch.relative_to(run_dir).as_posix()}/"
        if not any(path.startswith(prefix) for path in named):
            yield branch  # it is run again as a whole
    for folder in ("evidence", "samples"):
        for path in run_dir.glob(f"{folder}/**/*"):
            is_file = path.is_symlink() or not path.is_dir()
            if is_file and path.relative_to(run_dir).as_posix() not in named:
                yield path
