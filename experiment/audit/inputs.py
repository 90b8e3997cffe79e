"""B4 to B6: the plan and what it froze."""

from __future__ import annotations

from pathlib import Path

from experiment.audit.findings import Notes
from experiment.errors import ExperimentError
from experiment.journal.reader import JournalView
from experiment.records.entry import Genesis
from experiment.records.plan import FrozenInput, Plan
from experiment.sealing.canonical import decode_record
from experiment.sealing.digests import CONTEXT_PLAN, derive, digest_file
from experiment.sealing.sources import scan_sources
from experiment.sealing.trees import scan_tree

PLAN_NAME = "plan.json"
SEAL_NAME = "plan.seal"


def check_plan(run_dir: Path, view: JournalView, given: Path | None, notes: Notes) -> Plan | None:
    """B4: the run's plan is the one that the first record names; the result is None where it cannot be used."""
    try:
        data = (run_dir / PLAN_NAME).read_bytes()
    except OSError as error:
        notes.find("I-SCHEMA", PLAN_NAME, f"cannot be read ({error.strerror})")
        notes.fact("plan", "missing")
        return None
    digest = derive(CONTEXT_PLAN, data)
    is_same = notes.require(
        digest == view.plan, "I-PLAN", PLAN_NAME, f"has b3:{digest}, the journal was begun with b3:{view.plan}"
    )
    _check_given(data, given, notes)
    notes.fact("plan", f"b3:{view.plan} {'ok' if is_same else 'DIFFERS'}")
    if not is_same:
        return None
    try:
        return decode_record(Plan, data)
    except ValueError as error:
        notes.find("I-SCHEMA", PLAN_NAME, f"is not a plan this version knows: {_first_line(error)}")
        return None


def _check_given(data: bytes, given: Path | None, notes: Notes) -> None:
    if given is None:
        return
    try:
        is_same = given.read_bytes() == data
    except OSError as error:
        notes.find("I-GIVEN", str(given), f"cannot be read ({error.strerror})")
    else:
        notes.require(is_same, "I-GIVEN", str(given), "is not the plan of this run")


def _first_line(error: ValueError) -> str:
    return " ".join(str(error).split())[:300]


def check_claim(view: JournalView, workspace: Path, notes: Notes) -> None:
    """B5: the plan's claim, where it is at hand, names this run, so no other run can have claimed it here."""
    body = view.entries[0].body
    if not isinstance(body, Genesis):
        return
    claim = workspace / body.claim
    if not claim.is_file():
        notes.fact("claim", "not checked (not at hand)")
        return
    text = claim.read_text(encoding="utf-8", errors="replace")
    is_ours = notes.require(view.run in text.split(), "I-CLAIM", body.claim, f"does not name run '{view.run}'")
    _check_claimed_plan(claim.parent, view, notes)
    notes.fact("claim", "ok" if is_ours else "DIFFERS")


def _check_claimed_plan(folder: Path, view: JournalView, notes: Notes) -> None:
    """B5: the plan and the seal beside the claim are those of the run."""
    try:
        sealed = (folder / SEAL_NAME).read_text(encoding="ascii").strip()
        found = derive(CONTEXT_PLAN, (folder / PLAN_NAME).read_bytes())
    except (OSError, UnicodeDecodeError) as error:
        notes.find("I-SEAL", str(folder.name), f"plan or seal cannot be read ({error})")
        return
    for name, digest in ((SEAL_NAME, sealed), (PLAN_NAME, found)):
        notes.require(
            digest == view.plan,
            "I-SEAL",
            f"{folder.name}/{name}",
            f"has b3:{digest}, the run's plan has b3:{view.plan}",
        )


def check_inputs(plan: Plan, workspace: Path, notes: Notes) -> None:
    """B6: each frozen input is unchanged where it is at hand; where not, the facts say so."""
    for frozen in plan.inputs:
        place = workspace / frozen.path
        if not place.exists():
            notes.fact(f"input {frozen.role}", f"{frozen.path} not checked (not at hand)")
            continue
        found = _digest(frozen, place)
        is_same = notes.require(
            found == frozen.digest, "I-INPUT", frozen.path, f"({frozen.role}) has {found}, frozen was {frozen.digest}"
        )
        notes.fact(f"input {frozen.role}", f"{frozen.path} {'ok' if is_same else 'DIFFERS'}")


def _digest(frozen: FrozenInput, place: Path) -> str:
    try:
        if frozen.role == "sources":
            return scan_sources(place).digest
        return digest_file(place) if frozen.kind == "file" else scan_tree(place).tree
    except ExperimentError as error:
        return f"no digest ({error})"
