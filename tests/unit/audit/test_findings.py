from __future__ import annotations

import pytest

from experiment.audit.findings import AuditReport, Finding, Notes, printable

WORST_FIRST = ("J-CHAIN", "K-FORK", "I-INPUT", "P-ORDER", "A-MISSING", "J-OPEN")
CODES = (4, 6, 5, 8, 7, 3)


def report(*ids: str) -> AuditReport:
    notes = Notes()
    for id_ in ids:
        notes.find(id_, "place", "message")
    return notes.report()


def test_no_finding_is_exit_0() -> None:
    assert report().exit_code == 0


@pytest.mark.parametrize(("position", "code"), list(enumerate(CODES)))
def test_the_worst_finding_decides_the_exit_code(position: int, code: int) -> None:
    assert report(*reversed(WORST_FIRST[position:])).exit_code == code


def test_a_verdict_exists_for_every_exit_code() -> None:
    assert all(report(id_).verdict.startswith("VERDICT: ") for id_ in WORST_FIRST)


@pytest.mark.parametrize(
    "hostile", ["\x1b[2J", "a\nVERDICT: fine", "\r", "\x9b31m", "\u202egnirts", "\u2028", "\u200b"]
)
def test_text_of_the_run_cannot_steer_the_terminal(hostile: str) -> None:
    found = AuditReport(facts=(("run", hostile),), findings=(Finding("J-OPEN", hostile, hostile),))

    assert not any(char in line for line in found.lines() for char in hostile if not char.isascii() or ord(char) < 32)
    assert len(found.lines()) == 3


def test_harmless_text_is_printed_as_it_is() -> None:
    assert printable("Größe 1 234 €, 漢字 🙂") == "Größe 1 234 €, 漢字 🙂"


def test_the_document_says_what_the_lines_say() -> None:
    found = report("J-OPEN")

    assert found.document()["exit_code"] == 3
    assert found.document()["verdict"] == found.lines()[-1]
