"""When and how sessions of a run are killed: a deck of blows for each stage, drawn from a seed."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TypeVar

from experiment.sealing.seeds import derive_seed

STAGES = ("qualify", "train", "select", "assess")
GATES = {"qualify": "qual.result", "train": "train.stop", "select": "select.decision"}
"""The record that ends a stage of one arm."""

FACTS = {
    "qualify": {"qual.branch"},
    "train": {"train.step", "train.redone", "ckpt.sealed"},
    "select": {"dev.result"},
    "assess": {"final.result"},
}
"""Records that tell of work, which takes some time."""

_TYPE = re.compile(rb'"type":"([a-z.]+)","v":1')
_Thing = TypeVar("_Thing")


class Moment(Enum):
    """When a session is dealt its blow."""

    STARTING = "starting"
    """After the driver's start or that of the stage: interpreter, recovery, the first second of workers."""
    LOADING = "loading"
    """After the inputs were verified: workers import their packages and load the model."""
    WORKING = "working"
    """After some records of this session."""
    RECORDING = "recording"
    """At one of them: between a record and its head, between a file and its record."""
    SAVING = "saving"
    """After the trainer began to save a checkpoint."""


LONGEST_S = {
    Moment.STARTING: 1.5,
    Moment.LOADING: 6.0,
    Moment.WORKING: 1.5,
    Moment.RECORDING: 0.02,
    Moment.SAVING: 0.05,
}
"""The longest delay after what a moment waits for."""

_EARLY = (Moment.STARTING, Moment.LOADING)
"""Moments before any work is done."""

_MOMENTS = (Moment.LOADING, Moment.LOADING, Moment.WORKING, Moment.WORKING, Moment.RECORDING)
_MORE_MOMENTS = {"qualify": (Moment.SAVING, Moment.SAVING), "train": (Moment.SAVING, Moment.SAVING)}
"""Where a stage saves no checkpoints, it is killed while it records."""


class Means(Enum):
    """How a blow is dealt."""

    KILL = "SIGKILL to the driver"
    WORKER = "SIGKILL to a worker"
    TERM = "SIGTERM"
    CTRL_C = "SIGINT"
    CTRL_C_TWICE = "SIGINT twice"
    TERM_KILL = "SIGTERM, then SIGKILL"


_MEANS = (*(4 * [Means.KILL]), Means.TERM, Means.CTRL_C, Means.CTRL_C_TWICE, Means.TERM_KILL)
"""Means of a stage, beside one `WORKER`: that needs workers, and is never paired with `STARTING`."""


@dataclass(frozen=True)
class Blow:
    """What is drawn for one session."""

    moment: Moment
    means: Means
    when: float
    """Share of the moment's longest delay, in [0, 1)."""
    which: float
    """Share that picks a record, a worker and the gap between two signals, in [0, 1)."""

    @property
    def is_early(self) -> bool:
        """Whether it falls before the session has done any work."""
        return self.moment in _EARLY


def draw_deck(seed: int, stage: str) -> list[Blow]:
    """The blows of one stage, the same for the same seed."""

    def share(*names: str | int) -> float:
        return derive_seed(seed, "kill", stage, *names) / 2**63

    def shuffled(name: str, things: Sequence[_Thing]) -> list[_Thing]:
        return [things[each] for each in sorted(range(len(things)), key=lambda each: share(name, each))]

    first, second, *rest = shuffled("means", _MEANS)
    means = [first, second, *shuffled("worker", [*rest, Means.WORKER])]
    others = [*_MOMENTS, *_MORE_MOMENTS.get(stage, (Moment.RECORDING, Moment.RECORDING))]
    moments = [Moment.STARTING, Moment.STARTING, *shuffled("moments", others)]
    pairs = shuffled("order", list(zip(moments, means, strict=True)))
    return [Blow(*pair, share("when", number), share("which", number)) for number, pair in enumerate(pairs)]


def stage_of(types: Sequence[str], arms: int) -> str:
    """The stage of a run with records of these types."""
    return next((stage for stage, gate in GATES.items() if types.count(gate) < arms), STAGES[-1])


@dataclass
class Tail:
    """The types of a journal's records, read while a driver appends them."""

    journal: Path
    types: list[str] = field(default_factory=list)
    _offsets: Counter[str] = field(default_factory=Counter)

    def read(self) -> list[str]:
        """All types up to now; a record counts once its line is complete."""
        with contextlib.suppress(FileNotFoundError):
            for name in sorted(os.listdir(self.journal)):
                path = self.journal / name
                if path.stat().st_size == self._offsets[name]:
                    continue
                with path.open("rb") as stream:
                    stream.seek(self._offsets[name])
                    lines = stream.read()
                lines = lines[: lines.rfind(b"\n") + 1]
                self.types += [each.decode() for each in _TYPE.findall(lines)]
                self._offsets[name] += len(lines)
        return self.types


class Watch:
    """Waits for the moment of one blow while a session works, and lets no session finish the stage of its blow."""

    def __init__(self, run_dir: Path, tail: Tail, planned: Counter[str], stage: str) -> None:
        """Begin before the session does.

        Args:
            run_dir: The run's folder.
            tail: Its journal.
            planned: How many records of each type an undisturbed run has.
            stage: Where the blow is to fall; a later stage takes its place where the run is beyond it.
        """
        self.stage = ""
        """The stage of the run when it was last asked."""
        self.moment = Moment.STARTING
        """What was waited for: the blow's moment, or an earlier one."""
        self._run_dir, self._tail, self._planned, self._target = run_dir, tail, planned, stage
        self._first = self._session = len(tail.read())
        self._begun = time.monotonic()
        self._saved = self._saves()
        self._since: dict[Moment, float] = {}

    def is_due(self, blow: Blow, lasting: int) -> bool:
        """Whether the moment has come.

        Args:
            blow: The blow.
            lasting: How many blows of the stage that let work be done are still to come, this one included.
        """
        types, now = self._tail.read(), time.monotonic()
        stage = stage_of(types, self._planned["select.decision"])
        if stage != self.stage:
            if self.stage:  # the session has got into it at work
                self._first, self._begun = len(types), now
            self.stage = stage
        if STAGES.index(stage) < STAGES.index(self._target):
            return False
        facts = [each for each in types[self._first :] if each in FACTS[stage]]
        fresh = sum(each != "train.redone" for each in facts)
        self.moment, most = self._hold_back(blow, types[: self._first], lasting)
        if fresh > most:
            return True
        if not self._has_come(types, len(facts) >= 1 + int(blow.which * most)):
            return False
        since = self._since.setdefault(self.moment, self._begun if self.moment is Moment.STARTING else now)
        return now - since >= blow.when * LONGEST_S[self.moment]

    def _hold_back(self, blow: Blow, before: Sequence[str], lasting: int) -> tuple[Moment, int]:
        """The blow's moment, and how many facts the session may add before it.

        The facts of a stage are shared out between its blows; where too few are left, the blow comes earlier.
        """
        kinds = FACTS[self.stage] - {"train.redone"}
        left = sum(self._planned[kind] for kind in kinds) - sum(each in kinds for each in before)
        if left < 2:
            return Moment.STARTING, 0
        if blow.is_early or left < 3:
            return blow.moment if blow.is_early else Moment.LOADING, 0
        return blow.moment, max(1, (left - 2) // lasting)

    def _has_come(self, types: Sequence[str], is_enough: bool) -> bool:
        """Whether what the moment waits for is there."""
        if self.moment is Moment.STARTING:
            return True
        if self.moment is Moment.LOADING:
            return "inputs.verified" in types[self._session :]
        return not self._saves() <= self._saved if self.moment is Moment.SAVING else is_enough

    def _saves(self) -> set[tuple[str, int]]:
        """Files of checkpoints that trainers have begun to save, and their times."""
        found = set()
        for path in self._run_dir.glob("work/*/checkpoint-*/*"):
            with contextlib.suppress(FileNotFoundError):  # sealed and moved meanwhile
                found.add((str(path), path.stat().st_mtime_ns))
        return found
