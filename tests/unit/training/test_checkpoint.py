"""Sealed recovery checkpoints: completeness and the comparison after restoring."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiment.errors import JournalError, QualificationError
from experiment.training.checkpoint import PARTS, STATE_FILE, open_checkpoint, seal_checkpoint, verify_restored

STATE = {"adapter/a": "0" * 64, "random/torch": "1" * 64}


def saved(tmp_path: Path) -> Path:
    folder = tmp_path / "work" / "checkpoint-2"
    (folder / "extra").mkdir(parents=True)
    for name in (*PARTS, "README.md", "extra/more"):
        (folder / name).write_bytes(name.encode())
    return folder


def test_sealed_checkpoint_holds_the_parts_and_the_state_and_nothing_else(tmp_path: Path) -> None:
    final = tmp_path / "checkpoints" / "step-000002"
    seal = seal_checkpoint(saved(tmp_path), final, STATE)
    assert sorted(path.name for path in final.iterdir()) == sorted((*PARTS, STATE_FILE, "seal.json"))
    assert open_checkpoint(final, seal.tree) == STATE
    assert not (tmp_path / "work" / "checkpoint-2").exists()


@pytest.mark.parametrize("part", PARTS)
def test_part_that_the_trainer_did_not_save_is_named(tmp_path: Path, part: str) -> None:
    folder = saved(tmp_path)
    (folder / part).unlink()
    with pytest.raises(JournalError, match=part):
        seal_checkpoint(folder, tmp_path / "final", STATE)
    assert not (tmp_path / "final").exists()


@pytest.mark.parametrize("fault", ["missing", "truncated", "emptied", "swapped"])
def test_changed_part_is_refused_by_its_name(tmp_path: Path, fault: str) -> None:
    final = tmp_path / "step-000002"
    seal_checkpoint(saved(tmp_path), final, STATE)
    for name in (*PARTS, STATE_FILE):
        path = final / name
        data = path.read_bytes()
        path.unlink()
        if fault != "missing":
            path.write_bytes({"truncated": data[:-1], "emptied": b"", "swapped": data[::-1]}[fault])
        with pytest.raises(JournalError, match=name):
            open_checkpoint(final)
        path.write_bytes(data)
    assert open_checkpoint(final) == STATE


def test_unsealed_folder_and_other_tree_are_refused(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="no seal"):
        open_checkpoint(saved(tmp_path))
    seal_checkpoint(saved(tmp_path / "again"), tmp_path / "step-000002", STATE)
    with pytest.raises(JournalError, match="T-TREE"):
        open_checkpoint(tmp_path / "step-000002", "f" * 64)


@pytest.mark.parametrize(
    ("live", "name"),
    [
        (STATE | {"random/torch": "2" * 64}, "random/torch"),
        (STATE | {"adapter/b": "2" * 64}, "adapter/b"),
        ({"random/torch": "1" * 64}, "adapter/a"),
        ({}, "adapter/a"),
    ],
)
def test_first_part_that_was_not_restored_is_named(live: dict[str, str], name: str) -> None:
    verify_restored(STATE, dict(reversed(STATE.items())), Path("work"))
    with pytest.raises(QualificationError, match=f"work: after restoring, '{name}'"):
        verify_restored(STATE, live, Path("work"))
