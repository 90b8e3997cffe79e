from __future__ import annotations

import os
from pathlib import Path

import pytest

from experiment.errors import JournalError
from experiment.journal.inspections import append_inspection, read_inspections
from experiment.records.inspection import InspectedSample, Inspection

HEAD = "ab" * 32
FINDING = InspectedSample(
    suite="agent", episode="final-0000", policy="grpo@4", language="ok", format="not ok", note="…"
)


def inspection(number: int, prev: str, run: str = "small") -> Inspection:
    return Inspection(
        run=run,
        number=number,
        prev=prev,
        t="2026-01-01T00:00:00.000000Z",
        reviewer="Ada Beispiel",
        kind="human",
        samples="cd" * 32,
        findings=(FINDING,),
        remarks="",
    )


def test_inspections_are_read_back_in_order_as_a_chain(tmp_path: Path) -> None:
    assert read_inspections(tmp_path, run="small", head=HEAD) == ((), HEAD)
    first = inspection(0, HEAD)
    line = append_inspection(tmp_path, first)
    found, tip = read_inspections(tmp_path, run="small", head=HEAD)
    assert found == (first,)
    assert line == f"small/inspections 1 b3:{tip}"
    second = inspection(1, tip)
    append_inspection(tmp_path, second)
    assert read_inspections(tmp_path, run="small", head=HEAD)[0] == (first, second)


def test_two_reviewers_at_once_do_not_overwrite_each_other(tmp_path: Path) -> None:
    append_inspection(tmp_path, inspection(0, HEAD))
    with pytest.raises(JournalError, match="somebody else"):
        append_inspection(tmp_path, inspection(0, HEAD).model_copy(update={"reviewer": "Bob Beispiel"}))
    assert read_inspections(tmp_path, run="small", head=HEAD)[0][0].reviewer == "Ada Beispiel"
    assert sorted(os.listdir(tmp_path / "inspections")) == ["000000.json"]


def test_every_changed_bit_is_found(tmp_path: Path) -> None:
    append_inspection(tmp_path, inspection(0, HEAD))
    path = tmp_path / "inspections/000000.json"
    data = path.read_bytes()
    for position in range(len(data)):
        path.write_bytes(data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :])
        with pytest.raises(JournalError, match=r"^J-"):
            read_inspections(tmp_path, run="small", head=HEAD)


@pytest.mark.parametrize(
    "wrong",
    [inspection(1, HEAD), inspection(0, "0" * 64), inspection(0, HEAD, run="other")],
    ids=["number", "prev", "run"],
)
def test_an_inspection_that_continues_something_else_is_found(tmp_path: Path, wrong: Inspection) -> None:
    append_inspection(tmp_path, wrong)
    with pytest.raises(JournalError, match="J-INSPECTION"):
        read_inspections(tmp_path, run="small", head=HEAD)


@pytest.mark.parametrize("name", ["notes.txt", "000002.json", "000001.JSON"])
def test_anything_else_in_the_folder_is_found(tmp_path: Path, name: str) -> None:
    append_inspection(tmp_path, inspection(0, HEAD))
    (tmp_path / "inspections" / name).write_text("x")
    with pytest.raises(JournalError, match="J-INSPECTION"):
        read_inspections(tmp_path, run="small", head=HEAD)


def test_a_link_is_no_inspection(tmp_path: Path) -> None:
    append_inspection(tmp_path, inspection(0, HEAD))
    path = tmp_path / "inspections/000000.json"
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(JournalError, match="J-INSPECTION"):
        read_inspections(tmp_path, run="small", head=HEAD)
