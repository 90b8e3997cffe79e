"""R7, R8: what was evaluated were the sealed policies, and what a reviewer was given is what they played."""

from __future__ import annotations

from itertools import islice

from experiment.audit.case import Case
from experiment.decisions.inspection import build_samples, inspected_evaluations, inspected_items
from experiment.decisions.merging import has_no_effect, merge_problems
from experiment.journal.chain import Entry
from experiment.journal.progress import fold_progress
from experiment.records.entry import EvaluationFinished, PolicyMerged, SamplesExported
from experiment.records.rollout import Rollout
from experiment.records.verdict import Suite
from experiment.sealing.canonical import decode_record, encode_record
from experiment.sealing.digests import digest_bytes


class _ReportedError(Exception):
    """Evidence is not usable, which is a finding already."""


def recompute_merge(case: Case, body: PolicyMerged, place: str) -> bool:
    """R7: the weights of a policy were the reference policy's with the sealed adapter on them."""
    progress = fold_progress(case.view.entries)
    branch = progress.branches.get((body.arm, "straight"))
    checkpoint = progress.checkpoints.get((body.arm, body.step))
    if branch is None or checkpoint is None:
        return case.notes.require(False, "R-MERGE", place, "there is no branch or no checkpoint to hold it against")
    problems = list(merge_problems(body.facts, reference=branch.reference, state=dict(checkpoint.state)))
    is_final = any((key.arm, key.step, key.stage) == (body.arm, body.step, "final") for key in progress.evaluations)
    if is_final and has_no_effect(body.facts):
        problems.append("the adapter changes no weight, and the policy was assessed as if it did")
    for problem in problems:
        case.notes.find("R-MERGE", place, f"{body.arm}@{body.step}: {problem}")
    return not problems


def recompute_samples(case: Case, body: SamplesExported, place: str) -> bool:
    """R8: the exported samples, made from the final rollouts again, have the same bytes."""
    items = inspected_items(case.plan)
    try:
        samples = build_samples(case.plan, _played(case, {suite: len(names) for suite, names in items.items()}))
    except _ReportedError:
        return False
    except (KeyError, ValueError, OSError) as error:
        return case.notes.require(False, "R-SAMPLES", place, f"cannot be made again: {error}")
    data = b"".join(encode_record(sample) + b"\n" for sample in samples)
    return case.notes.require(
        digest_bytes(data) == body.samples, "R-SAMPLES", place, "the samples are not what the policies played"
    )


def _played(case: Case, numbers: dict[Suite, int]) -> dict[tuple[str, Suite], list[Rollout]]:
    """The first rollouts of the evaluations that samples are taken from."""
    entries = {id(each.body): each for each in case.view.entries}
    bodies = [each.body for each in case.view.entries if isinstance(each.body, EvaluationFinished)]
    return {
        (label, suite): _read(case, entries[id(body)], body.evidence, numbers[suite])
        for label, suite, body in inspected_evaluations(case.plan, bodies)
    }


def _read(case: Case, entry: Entry, evidence: str, number: int) -> list[Rollout]:
    path = case.evidence(entry, evidence)
    if path is None:
        raise _ReportedError
    with path.open("rb") as stream:
        return [decode_record(Rollout, line.rstrip(b"\n")) for line in islice(stream, number)]
