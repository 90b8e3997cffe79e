"""Everything of a run that has to come out the same however often it was interrupted, as named digests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiment.journal.chain import Entry
from experiment.journal.reader import read_journal
from experiment.records.base import Record
from experiment.records.entry import (
    AssessmentMade,
    BranchFinished,
    CheckpointSealed,
    EvaluationFinished,
    QualificationResult,
    SelectionMade,
    TrainFinished,
    TrainStep,
)
from experiment.records.verdict import EvaluationKey
from experiment.sealing.canonical import encode_record
from experiment.sealing.digests import digest_bytes, digest_file
from experiment.sealing.trees import verify_tree

CHECKPOINT = "checkpoint"
CLOCKS = {"seconds", "rollout_seconds"}
"""What a record says of its own speed."""

PLACES: dict[type[Record], Callable[[Any], str]] = {
    BranchFinished: lambda body: f"qualify {body.arm} {body.branch}",
    QualificationResult: lambda body: f"qualify {body.arm}",
    TrainStep: lambda body: f"train {body.arm} step {body.facts.step}",
    TrainFinished: lambda body: f"train {body.arm}",
    CheckpointSealed: lambda body: f"{CHECKPOINT} {body.arm} step {body.step}",
    EvaluationFinished: lambda body: _policy_and_set(body.key),
    SelectionMade: lambda body: f"select {body.verdict.arm}",
    AssessmentMade: lambda body: "assess",
}
"""What a record is about, for every kind of record that has to come out the same."""


@dataclass(frozen=True)
class Compared:
    """What comparing two runs found."""

    total: int
    differing: tuple[str, ...]
    """Names that differ or that one of the runs lacks."""

    @property
    def sentence(self) -> str:
        """How many are equal."""
        return f"{self.total - len(self.differing)} of {self.total}"


def compare_runs(undisturbed: Path, disturbed: Path) -> Compared:
    """Compare all digests; the disturbed run may have sealed its trainer at further steps, where it was stopped."""
    expected, found = run_digests(undisturbed), run_digests(disturbed)
    names = expected.keys() | {name for name in found if not name.startswith(CHECKPOINT)}
    differing = sorted(name for name in names if expected.get(name) != found.get(name))
    return Compared(len(names), tuple(differing))


def run_digests(run_dir: Path) -> dict[str, str]:
    """Every digest of a run by name; files are read, not believed."""
    digests: dict[str, str] = {}
    for entry in read_journal(run_dir).entries:
        for name, digest in _digests(run_dir, entry):
            assert name not in digests, f"{name} is recorded twice"
            digests[name] = digest
    return digests


def _policy_and_set(key: EvaluationKey) -> str:
    return f"{key.stage} {key.arm}@{key.step} {key.suite} {key.seed}"


def _digests(run_dir: Path, entry: Entry) -> Iterator[tuple[str, str]]:
    """Named digests of one record and of its files; records of sessions and warnings have none."""
    body = entry.body
    if type(body) not in PLACES:
        return
    place = PLACES[type(body)](body)
    yield place, digest_bytes(encode_record(body.model_copy(update=dict.fromkeys(CLOCKS & body.__dict__.keys(), 0.0))))
    yield from ((f"{place}, {each.path}", digest_file(run_dir / each.path)) for each in entry.artifacts)
    if isinstance(body, TrainStep):
        yield f"{place}, facts", digest_bytes(encode_record(body.facts))
    elif isinstance(body, CheckpointSealed):
        seal = verify_tree(run_dir / body.path, body.tree)
        yield f"{place}, tree", seal.tree
        yield from ((f"{place}, {each.path}", each.b3) for each in seal.entries)
        yield from ((f"{place}, state of {part}", digest) for part, digest in body.state)
    elif isinstance(body, AssessmentMade):
        yield from ((f"{place}, {each.name}", digest_bytes(encode_record(each))) for each in body.comparisons)
