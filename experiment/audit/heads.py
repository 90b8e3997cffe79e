"""B3: heads that were kept outside of the run directory."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from experiment.audit.findings import Notes
from experiment.errors import UsageError
from experiment.journal.reader import JournalView

_HEAD = re.compile(r"(?P<run>[a-z0-9][a-z0-9_-]{0,62}) (?P<size>[1-9][0-9]{0,15}) b3:(?P<hash>[0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class KnownHead:
    """A journal's length and last hash, as somebody noted them earlier."""

    run: str
    size: int
    hash: str


def parse_head(text: str) -> KnownHead:
    """Read a head line, `<run> <records> b3:<hash>`.

    Raises:
        UsageError: The text is not a head line.
    """
    match = _HEAD.fullmatch(text.strip())
    if match is None:
        message = f"--known-head {text!r} is not of the form '<run> <records> b3:<64 hexadecimal digits>'"
        raise UsageError(message, remedy="Copy the whole line that `run` printed.")
    return KnownHead(run=match["run"], size=int(match["size"]), hash=match["hash"])


def check_heads(view: JournalView, heads: Sequence[KnownHead], notes: Notes) -> None:
    """B3: every known head lies on the chain, so what it vouches for is unchanged and nothing of it was removed."""
    for head in heads:
        place = f"known head of record {head.size - 1}"
        if head.run != view.run:
            outcome = "OTHER RUN"
            notes.find("K-RUN", place, f"is of run '{head.run}', the directory holds '{view.run}'")
        elif len(view.entries) < head.size:
            outcome = "ROLLBACK"
            notes.find("K-ROLLBACK", place, f"the journal has only {len(view.entries)} records")
        elif view.entries[head.size - 1].hash != head.hash:
            outcome = "FORK"
            notes.find("K-FORK", place, f"the journal has b3:{view.entries[head.size - 1].hash} there")
        else:
            outcome = "CONSISTENT"
        notes.fact("known head", f"{head.run} {head.size} {outcome}")
