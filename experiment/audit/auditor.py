"""The order of the checks, and what a verdict is worth."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from experiment import __version__
from experiment.audit.artifacts import check_artifacts, check_extras, check_trees
from experiment.audit.case import Case
from experiment.audit.evaluations import check_evaluations
from experiment.audit.findings import AuditReport, Level, Notes
from experiment.audit.heads import KnownHead, check_heads, parse_head
from experiment.audit.inputs import check_claim, check_inputs, check_plan
from experiment.audit.inspections import check_inspections
from experiment.audit.plan_rules import check_plan_rules
from experiment.audit.protocol import Protocol
from experiment.audit.recompute import recompute_all
from experiment.audit.steps import StepChecks
from experiment.errors import JournalError, StorageError, UsageError
from experiment.journal.reader import JournalView, read_journal
from experiment.records.entry import Aborted, Closed, Resume, Warned
from experiment.records.plan import Plan
from experiment.sealing.sources import scan_sources

_FINDING_ID = re.compile(r"^([A-Z]-[A-Z]+): (.*)$", re.DOTALL)
_NOT_PROVEN = (
    "that the evidence was produced by the plan's policy and world; the auditor runs neither",
    "the time of anything before the first head that was kept elsewhere",
    "that nothing was cut off after the last head that was kept elsewhere",
    "that no other run of the same recipe was made and dropped",
)


def audit_run(
    run_dir: Path, *, plan: Path | None = None, level: Level = "recompute", known_heads: Sequence[str] = ()
) -> AuditReport:
    """Verify a run from its files alone; nothing is written and no lock is taken.

    Args:
        run_dir: The run's directory.
        plan: The plan that the run has to be of; None takes the one the journal names.
        level: `bytes`, `protocol` (and bytes) or `recompute` (all).
        known_heads: Head lines, `<run> <records> b3:<hash>`, that were kept outside of the run.

    Raises:
        UsageError: There is no run in the directory, or a known head is not a head line.
    """
    heads = [parse_head(text) for text in known_heads]
    if not run_dir.is_dir():
        message = f"{run_dir}: there is no such run"
        raise UsageError(message, remedy="Name the run's own directory, the one that holds `journal/`.")
    notes = Notes()
    notes.fact("auditor", f"experiment {__version__}, sources b3:{scan_sources().digest}")
    notes.fact("level", level)
    view = _read(run_dir, notes)
    if view is not None:
        frozen = _check_bytes(run_dir, view, plan, heads, notes)
        if level != "bytes" and frozen is not None:
            _check_upper_levels(Case(run_dir=run_dir, view=view, plan=frozen, notes=notes), level)
    _state_worth(view, heads, notes)
    return notes.report()


def _read(run_dir: Path, notes: Notes) -> JournalView | None:
    """B1: the journal's bytes are one unbroken chain."""
    try:
        return read_journal(run_dir)
    except StorageError as error:
        notes.find("J-MISSING", "journal", str(error))
    except JournalError as error:
        match = _FINDING_ID.match(str(error))
        id_, message = match.groups() if match else ("J-CHAIN", str(error))
        notes.find(id_, "journal", message)
    notes.fact("journal", "cannot be followed; nothing else was checked")
    return None


def _check_bytes(
    run_dir: Path, view: JournalView, given: Path | None, heads: Sequence[KnownHead], notes: Notes
) -> Plan | None:
    _state_journal(view, notes)
    # B2: a run that goes on, or was stopped, is no finished claim.
    notes.require(view.is_closed, "J-OPEN", "journal", "is not closed: the run is unfinished, or still going on")
    notes.require(not view.torn_bytes, "J-TORN", "journal", f"ends in {view.torn_bytes} bytes of an incomplete record")
    check_heads(view, heads, notes)
    frozen = check_plan(run_dir, view, given, notes)
    workspace = Path.cwd()
    check_claim(view, workspace, notes)
    if frozen is not None:
        check_inputs(frozen, workspace, notes)
    check_artifacts(run_dir, view, notes)
    check_trees(run_dir, view, notes)
    check_extras(run_dir, view, notes)
    check_inspections(run_dir, view, notes)
    if frozen is not None:
        notes.fact("supersedes", frozen.recipe.supersedes or "no plan")
        notes.fact("earlier runs on these final episodes", len(frozen.predecessors))
    return frozen


def _state_journal(view: JournalView, notes: Notes) -> None:
    entries = view.entries
    notes.fact("run", view.run)
    notes.fact("records", len(entries))
    notes.fact("head", f"{view.run} {len(entries)} b3:{view.head}")
    for end in view.segments:
        notes.fact(f"segment {end.seg}", f"{end.good} bytes, {end.torn} torn")
    notes.fact("first record", entries[0].t)
    notes.fact("last record", entries[-1].t)
    backwards = sum(one.t > other.t for one, other in pairwise(entries))
    notes.fact("wall clock went back", f"{backwards} times")
    notes.fact("machine starts", len({entry.boot for entry in entries}))
    moved = sum(len(entry.body.moved) for entry in entries if isinstance(entry.body, Resume))
    notes.fact("moved to recovery", moved)
    notes.fact("warnings", sum(isinstance(entry.body, Warned) for entry in entries))
    aborts = [entry.body.kind for entry in entries if isinstance(entry.body, Aborted)]
    notes.fact("sessions ended early", ", ".join(aborts) or "none")
    last = entries[-1].body
    notes.fact("closed", last.outcome if isinstance(last, Closed) else "no")


def _check_upper_levels(case: Case, level: Level) -> None:
    check_plan_rules(case.plan, case.notes)
    Protocol(case).walk()
    StepChecks(case, level).check_all()
    check_evaluations(case, level)
    if level == "recompute":
        recompute_all(case)
        case.notes.fact("protocol findings", case.notes.count("P-"))
        case.notes.fact("recompute findings", case.notes.count("R-"))


def _state_worth(view: JournalView | None, heads: Sequence[KnownHead], notes: Notes) -> None:
    """Say who vouches for the history: a head kept elsewhere reaches as far as its record and no further."""
    worth = "SELF-ATTESTED"
    if view is not None and heads and notes.count("K-") == 0:
        worth = f"EXTERNAL-HEAD for {max(head.size for head in heads)} of {len(view.entries)} records"
    notes.fact("evidence level", worth)
    for claim in _NOT_PROVEN:
        notes.fact("NOT-PROVEN", claim)
