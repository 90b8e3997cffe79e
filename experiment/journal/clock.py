"""What time a record carries: the wall clock to read, and the machine's own clock to measure with."""

from __future__ import annotations

import datetime
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from experiment.journal.chain import Entry

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class Moment:
    """One reading of both clocks."""

    t: str
    """Wall clock, RFC 3339 UTC with microseconds."""
    mono_us: int
    """Microseconds since the machine's start, sleep included where the system counts it."""
    boot: str
    """Which start of the machine that is."""


class Clock:
    """The machine's clocks."""

    def now(self) -> Moment:
        """Return both clocks' reading."""
        wall = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        # Nanoseconds would outgrow what JSON carries exactly after 104 days.
        mono = time.clock_gettime_ns(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)) // 1000
        return Moment(wall, mono, boot_id())


CLOCK = Clock()
"""The real clocks."""


def boot_id() -> str:
    """Return what tells one start of this machine from another; `unknown` where the system does not say."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return "unknown"


def clock_problem(before: Entry, after: Moment) -> str | None:
    """Return how the clocks went backwards between a record and a later moment, or None where they did not."""
    if after.t < before.t:
        return f"wall clock went back from {before.t} (record {before.seq}) to {after.t}"
    if after.boot == before.boot and after.mono_us < before.mono_us:
        return f"machine clock went back from {before.mono_us} us (record {before.seq}) to {after.mono_us} us"
    return None
