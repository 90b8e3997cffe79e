"""Preselected samples for a named reviewer: exported by the run, inspected by a person or an agent afterwards."""

from __future__ import annotations

import datetime
import tomllib
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from experiment.decisions.inspection import build_samples, inspected_evaluations, inspected_items
from experiment.errors import FaultError, JournalError, UsageError
from experiment.journal.inspections import append_inspection, read_inspections
from experiment.journal.reader import read_journal
from experiment.pipeline.context import RunContext
from experiment.records.entry import EvaluationFinished, SamplesExported
from experiment.records.inspection import InspectedSample, Inspection, ReviewerKind, Sample
from experiment.records.rollout import Rollout
from experiment.records.verdict import Suite
from experiment.report.samples import build_blank_form, build_samples_page, inspected_answers
from experiment.sealing.canonical import decode_record, encode_record
from experiment.sealing.digests import digest_bytes, digest_file
from experiment.sealing.files import write_atomic

SAMPLES_DIR: Final = "samples"
SAMPLES_FILE: Final = "samples.jsonl"


def export_samples(context: RunContext) -> None:
    """Leave the preselected samples, a page to read them and a form to fill in beside the run, and journal them."""
    entries = context.journal.entries
    if not context.plan.recipe.assessment.inspected or any(isinstance(each.body, SamplesExported) for each in entries):
        return
    items = inspected_items(context.plan)
    try:
        samples = build_samples(context.plan, _played(context, {suite: len(names) for suite, names in items.items()}))
    except KeyError as error:
        message = f"{context.run_dir}: no final rollout of the inspected episode {error}"
        raise FaultError(message) from error
    contents = {
        SAMPLES_FILE: b"".join(encode_record(sample) + b"\n" for sample in samples),
        "samples.md": build_samples_page(context.journal.run, samples).encode(),
        "form.toml": build_blank_form(samples).encode(),
    }
    folder = context.run_dir / SAMPLES_DIR
    folder.mkdir(exist_ok=True)
    for name, data in contents.items():
        write_atomic(folder / name, data)
    artifacts = [
        context.artifact(str(folder / name), digest_bytes(data), len(data), "samples")
        for name, data in contents.items()
    ]
    body = SamplesExported(
        agent=items["agent"], retention=items["retention"], samples=digest_bytes(contents[SAMPLES_FILE])
    )
    context.append("samples.exported", body, artifacts)
    context.watcher.note(f"samples for a reviewer: {folder / 'samples.md'}")


def record_inspection(run_dir: Path, form: Path, *, reviewer: str, kind: ReviewerKind) -> str:
    """Append a filled-in form to a finished run's inspections, and return its line, to be kept like a head.

    Raises:
        UsageError: The run is not closed or exported nothing, or the form is incomplete; the message names the place.
        JournalError: Journal, samples or earlier inspections are damaged.
    """
    view = read_journal(run_dir)
    exported = next((each.body for each in view.entries if isinstance(each.body, SamplesExported)), None)
    if not view.is_closed or exported is None:
        what = "is not finished" if not view.is_closed else "exported no samples"
        message = f"{run_dir}: the run {what}, so there is nothing to inspect"
        raise UsageError(message, remedy="Finish the run first; `assessment.inspected` in its recipe must not be 0.")
    findings, remarks = _read_form(form, _samples(run_dir, exported))
    earlier, head = read_inspections(run_dir, run=view.run, head=view.head)
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    try:
        inspection = Inspection(
            run=view.run,
            number=len(earlier),
            prev=head,
            t=now,
            reviewer=reviewer,
            kind=kind,
            samples=exported.samples,
            findings=findings,
            remarks=remarks,
        )
    except ValidationError as error:
        message = f"--reviewer {reviewer!r}: {error.errors()[0]['msg'].lower()}"
        raise UsageError(message, remedy="Name who read the samples.") from error
    return append_inspection(run_dir, inspection)


def _played(context: RunContext, numbers: dict[Suite, int]) -> dict[tuple[str, Suite], list[Rollout]]:
    """The first rollouts of the evaluations that samples are taken from."""
    entries = [each for each in context.journal.entries if isinstance(each.body, EvaluationFinished)]
    paths = {id(each.body): context.run_dir / each.artifacts[0].path for each in entries}
    bodies = [each.body for each in entries if isinstance(each.body, EvaluationFinished)]
    return {
        (label, suite): _read_rollouts(paths[id(body)], numbers[suite])
        for label, suite, body in inspected_evaluations(context.plan, bodies)
    }


def _read_rollouts(path: Path, number: int) -> list[Rollout]:
    with path.open("rb") as stream:
        return [decode_record(Rollout, line.rstrip(b"\n")) for line in islice(stream, number)]


def _samples(run_dir: Path, exported: SamplesExported) -> list[Sample]:
    path = run_dir / SAMPLES_DIR / SAMPLES_FILE
    if digest_file(path) != exported.samples:
        message = f"A-DIGEST: {path}: these are not the samples that the run exported"
        raise JournalError(message)
    return [decode_record(Sample, line) for line in path.read_bytes().splitlines()]


def _read_form(form: Path, samples: Sequence[Sample]) -> tuple[tuple[InspectedSample, ...], str]:
    try:
        data = tomllib.loads(form.read_bytes().decode("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        message = f"{form}: cannot be read as TOML ({error})"
        raise UsageError(message, remedy="Fill in a copy of the `form.toml` that lies beside the samples.") from error
    given = {(row.get("suite"), row.get("episode"), row.get("policy")): row for row in data.get("findings", [])}
    wanted = [(sample.suite, sample.episode, answer.policy) for sample, answer in inspected_answers(samples)]
    if set(given) != set(wanted) or len(data.get("findings", [])) != len(wanted):
        missing = next((key for key in wanted if key not in given), "one that is not in the samples, or is doubled")
        message = f"{form}: the findings are not those of the samples, for example {missing}"
        raise UsageError(message, remedy="Keep the sections of `form.toml` as they are, and fill in all of them.")
    findings = []
    for key in wanted:
        try:
            findings.append(InspectedSample.model_validate(given[key]))
        except ValidationError as error:
            problem = error.errors()[0]
            message = (
                f"{form}: finding {key}, key '{problem['loc'][0]}': {problem['msg'][0].lower()}{problem['msg'][1:]}"
            )
            raise UsageError(
                message, remedy='Write "ok" or "not ok", and a note where there is something to say.'
            ) from error
    return tuple(findings), str(data.get("remarks", ""))
