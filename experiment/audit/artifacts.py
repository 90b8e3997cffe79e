"""B7 to B9: the files that the journal's records vouch for, and files for which none does."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from experiment.audit.findings import Notes
from experiment.errors import JournalError, UsageError
from experiment.journal.chain import Artifact, path_problem
from experiment.journal.reader import JournalView
from experiment.records.entry import CheckpointSealed
from experiment.sealing.digests import digest_file
from experiment.sealing.trees import verify_tree

_WATCHED = ("evidence", "checkpoints", "samples")
"""Folders in which nothing may lie that no record names."""


def is_plain_path(run_dir: Path, relative: str) -> bool:
    """Whether a recorded path stays inside the run directory and leads through no link."""
    if path_problem(relative) is not None:
        return False
    place = run_dir
    for part in Path(relative).parts:
        place = place / part
        if place.is_symlink():
            return False
    return True


def check_artifacts(run_dir: Path, view: JournalView, notes: Notes) -> None:
    """B7: every artifact is there and has its digest."""
    counts = {"ok": 0, "missing": 0, "mismatch": 0}
    size = 0
    for artifact in sorted({each for entry in view.entries for each in entry.artifacts}, key=lambda each: each.path):
        outcome = _check_artifact(run_dir, artifact, notes)
        counts[outcome] += 1
        size += artifact.size if outcome == "ok" else 0
    notes.fact("artifacts", ", ".join(f"{number} {name}" for name, number in counts.items()))
    notes.fact("artifact bytes", size)


def _check_artifact(run_dir: Path, artifact: Artifact, notes: Notes) -> str:
    if not is_plain_path(run_dir, artifact.path):
        notes.find("A-PATH", artifact.path, "leads outside of the run directory or through a link")
        return "mismatch"
    path = run_dir / artifact.path
    if not path.exists():
        notes.find("A-MISSING", artifact.path, "is named by the journal and not there")
        return "missing"
    try:
        found = digest_file(path)
    except UsageError as error:
        notes.find("A-DIGEST", artifact.path, str(error))
        return "mismatch"
    if found != artifact.b3 or path.stat().st_size != artifact.size:
        notes.find("A-DIGEST", artifact.path, f"has b3:{found}, the journal says b3:{artifact.b3}")
        return "mismatch"
    return "ok"


def check_trees(run_dir: Path, view: JournalView, notes: Notes) -> None:
    """B8: every sealed checkpoint is there and has its tree."""
    verified, size = 0, 0
    for body in _checkpoints(view):
        if not is_plain_path(run_dir, body.path):
            notes.find("T-PATH", body.path, "leads outside of the run directory or through a link")
        elif not (run_dir / body.path).exists():
            notes.find("T-MISSING", body.path, "is a sealed checkpoint and not there")
        else:
            try:
                size += verify_tree(run_dir / body.path, body.tree).size_bytes
                verified += 1
            except JournalError as error:
                id_, _, message = str(error).partition(": ")
                notes.find(id_, body.path, message)
    notes.fact("sealed trees", f"{verified} verified, {size} bytes")


def _checkpoints(view: JournalView) -> list[CheckpointSealed]:
    return [entry.body for entry in view.entries if isinstance(entry.body, CheckpointSealed)]


def check_extras(run_dir: Path, view: JournalView, notes: Notes) -> None:
    """B9: beside evidence and checkpoints lies nothing that no record names.

    A run that is not closed may have been stopped between a file and its record, so there it is a leftover.
    """
    files = {artifact.path for entry in view.entries for artifact in entry.artifacts}
    trees = {body.path for body in _checkpoints(view)}
    needed = {str(parent) for path in (*files, *trees) for parent in Path(path).parents}
    id_ = "T-EXTRA" if view.is_closed else "T-LEFTOVER"
    extra = [place for folder in _WATCHED for place in _extras(run_dir, folder, files | trees, needed)]
    for place in sorted(extra):
        notes.find(id_, place, "lies beside the run's files, and no record names it")
    notes.fact("unreferenced files", len(extra))


def _extras(run_dir: Path, folder: str, named: set[str], needed: set[str]) -> Iterator[str]:
    """Yield what no record names; a named tree is not entered, because B8 covers all of it."""
    place = run_dir / folder
    if not os.path.lexists(place):
        return
    if folder in named:
        return
    if not stat.S_ISDIR(place.lstat().st_mode) or folder not in needed:
        yield folder
        return
    for child in sorted(os.listdir(place)):
        yield from _extras(run_dir, f"{folder}/{child}", named, needed)
