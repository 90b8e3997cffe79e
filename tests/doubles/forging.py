"""Journals written anew: every hash is right and every record in its place, and what they say is not what happened."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from experiment.decisions.assessment import compare
from experiment.journal.chain import Artifact, frame
from experiment.journal.head import HEAD_NAME, read_head, write_head
from experiment.journal.reader import JOURNAL_NAME, read_journal, segment_path
from experiment.journal.writer import JournalWriter
from experiment.records.entry import AssessmentMade, Closed, EvaluationFinished, Genesis, Resume
from experiment.records.plan import Plan
from experiment.sealing.canonical import encode

Json = Any
Story = list[tuple[str, Any, tuple[Artifact, ...]]]
"""What a forger may edit: type, body and artifacts of every record but the first and the closing one."""


def rewrite_chain(run_dir: Path, edit: Callable[[Story], None] = lambda _: None, *, close: bool = True) -> None:
    """Write a run's journal and head anew in one segment, after `edit` has changed what they say."""
    entries = read_journal(run_dir).entries
    genesis, closing = entries[0].body, entries[-1].body
    assert isinstance(genesis, Genesis)
    told = entries[1:-1] if isinstance(closing, Closed) else entries[1:]
    story: Story = [(each.type, each.body, each.artifacts) for each in told if not isinstance(each.body, Resume)]
    edit(story)
    shutil.rmtree(run_dir / JOURNAL_NAME)
    (run_dir / HEAD_NAME).unlink()
    writer = JournalWriter.create(run_dir, run=run_dir.name, genesis=genesis)
    for type_, body, artifacts in story:
        writer.append(type_, body, artifacts)
    if close and isinstance(closing, Closed):
        writer.close(closing)
    else:
        writer.mark()
        writer.release()


def edited(type_: str, change: Callable[[Json], None], number: int = 0) -> Callable[[Story], None]:
    """Change the n-th record of a type, given as JSON."""

    def edit(story: Story) -> None:
        index = [index for index, record in enumerate(story) if record[0] == type_][number]
        _, body, artifacts = story[index]
        document = body.model_dump(mode="json")
        change(document)
        story[index] = (type_, type(body).model_validate_json(encode(document)), artifacts)

    return edit


def made_to_win(plan: Plan, arm: str) -> Callable[[Story], None]:
    """Let an arm solve every final episode, and make all comparisons again from that."""

    def edit(story: Story) -> None:
        finals = [index for index, (type_, _, _) in enumerate(story) if type_ == "final.result"]
        for index in finals:
            type_, body, artifacts = story[index]
            if body.key.arm == arm:
                outcomes = tuple(each.model_copy(update={"success": True}) for each in body.outcomes)
                story[index] = (type_, body.model_copy(update={"outcomes": outcomes}), artifacts)
        last = next(index for index, (type_, _, _) in enumerate(story) if type_ == "stats.result")
        results = [story[index][1] for index in finals]
        again = tuple(_compared(plan, each, results) for each in story[last][1].comparisons)
        story[last] = ("stats.result", AssessmentMade(comparisons=again), ())

    return edit


def _compared(plan: Plan, each: Any, results: list[EvaluationFinished]) -> Any:
    def side(arm: str, step: int) -> list[EvaluationFinished]:
        wanted = (arm, step, each.suite)
        return [found for found in results if (found.key.arm, found.key.step, found.key.suite) == wanted]

    return compare(
        side(each.before_arm, each.before_step),
        side(each.after_arm, each.after_step),
        root_seed=plan.recipe.seed,
        resamples=plan.recipe.assessment.resamples,
        confidence=plan.recipe.assessment.confidence,
        promoted=each.promoted,
    )


def replace_in_last_record(old: bytes, new: bytes) -> Callable[[Path], None]:
    """Replace bytes of the last record, frame it with its true hash, and let the head name it."""

    def replace(run_dir: Path) -> None:
        head = read_head(run_dir)
        assert head is not None
        path = segment_path(run_dir, head.seg)
        lines = path.read_bytes().splitlines(keepends=True)
        raw = lines[-1][76:-2].replace(old, new)
        lines[-1] = frame(raw)
        path.write_bytes(b"".join(lines))
        digest = lines[-1][6:70].decode()
        write_head(run_dir, head.model_copy(update={"h": digest, "bytes": path.stat().st_size}))

    return replace
