from __future__ import annotations

import pytest

from experiment.audit.findings import Notes
from experiment.audit.heads import check_heads, parse_head
from experiment.errors import UsageError
from experiment.journal.reader import JournalView

HASHES = tuple(f"{number:064x}" for number in range(3))


@pytest.fixture
def view(drafted_view: JournalView) -> JournalView:
    return drafted_view


def line(view: JournalView, size: int) -> str:
    return f"{view.run} {size} b3:{view.entries[size - 1].hash}"


def outcome(view: JournalView, text: str) -> tuple[list[str], str]:
    notes = Notes()
    check_heads(view, [parse_head(text)], notes)
    report = notes.report()
    return [finding.id for finding in report.findings], report.facts[0][1]


def test_a_head_of_any_earlier_record_is_consistent(view: JournalView) -> None:
    for size in range(1, len(view.entries) + 1):
        assert outcome(view, line(view, size)) == ([], f"{view.run} {size} CONSISTENT")


def test_a_head_beyond_the_end_is_a_rollback(view: JournalView) -> None:
    size = len(view.entries) + 1

    assert outcome(view, f"{view.run} {size} b3:{HASHES[1]}")[0] == ["K-ROLLBACK"]


def test_another_hash_at_the_same_place_is_a_fork(view: JournalView) -> None:
    assert outcome(view, f"{view.run} 3 b3:{HASHES[1]}")[0] == ["K-FORK"]


def test_a_head_of_another_run_is_refused(view: JournalView) -> None:
    assert outcome(view, line(view, 3).replace(view.run, "other-run"))[0] == ["K-RUN"]


@pytest.mark.parametrize(
    "text", ["", "run 3", f"run 0 b3:{HASHES[0]}", f"run 3 b3:{HASHES[0]}0", f"../run 3 b3:{HASHES[0]}"]
)
def test_what_is_no_head_line_is_a_usage_error(text: str) -> None:
    with pytest.raises(UsageError, match="--known-head"):
        parse_head(text)
