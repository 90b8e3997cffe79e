"""Processes as the kernel lists them, for tests of who is left behind."""

from __future__ import annotations

import contextlib
from pathlib import Path


def session_members(leader: int) -> list[int]:
    """The processes of a session that have not ended, sorted."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, _, session = entry.read_text().rpartition(")")[2].split()[:4]
            if int(session) == leader and state != "Z":
                found.append(int(entry.parent.name))
    return sorted(found)
