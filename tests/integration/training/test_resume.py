"""Stop and resume change no bit; a checkpoint that is not what was sealed is refused before the first update."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from trl import GRPOTrainer

from experiment.errors import JournalError, QualificationError
from experiment.records.job import EVENTS, CheckpointDone, Job, StepDone, TrainingDone
from experiment.records.plan import Plan
from experiment.records.recipe import Lora
from experiment.sealing.canonical import decode, encode, encode_record
from experiment.sealing.trees import SEAL_NAME, seal_tree, verify_tree
from experiment.training.checkpoint import PARTS as ALL_PARTS
from tests.doubles.tiny_training import WORLD, Branch, tiny_plan


def plan_of(baseline: Path) -> Plan:
    return tiny_plan(
        baseline,
        schedule="linear",
        warmup_steps=1,
        gradient_accumulation=2,
        lora=Lora(rank=4, alpha=8, dropout=0.1),
    )


@pytest.fixture(scope="module")
def straight(baseline: Path, tmp_path_factory: pytest.TempPathFactory) -> Branch:
    """Four steps of ECHO in the real world, straight through."""
    return Branch(tmp_path_factory.mktemp("straight"), plan_of(baseline), world=WORLD).train(4)


def test_training_in_halves_equals_training_straight_through(baseline: Path, tmp_path: Path) -> None:
    plan = plan_of(baseline)
    whole = Branch(tmp_path / "whole", plan, "grpo").train(4)
    halves = Branch(tmp_path / "halves", plan, "grpo").train(2)
    halves.train(4, halves.checkpoint(2))
    assert [each.facts for each in halves.steps] == [each.facts for each in whole.steps]
    assert halves.state == whole.state
    assert halves.evidence() == whole.evidence()
    assert halves.of(CheckpointDone) == [
        each.model_copy(update={"path": each.path.replace("whole", "halves")}) for each in whole.of(CheckpointDone)
    ]
    first, *_, last = whole.steps
    assert len(whole.steps) == 4
    assert first.facts.grad_norm and last.facts.grad_norm
    assert whole.of(TrainingDone)[0].reference == halves.of(TrainingDone)[1].reference


def test_fresh_process_goes_on_bit_for_bit(straight: Branch, tmp_path: Path, repository: Path) -> None:
    fresh = Branch(tmp_path, straight.plan)
    job = tmp_path / "job.json"
    job.write_bytes(encode_record(Job(tasks=(fresh.job(4, straight.checkpoint(2)),))))
    done = subprocess.run(
        [sys.executable, "-m", "experiment.training.worker", str(job)],
        cwd=repository,
        capture_output=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    for line in done.stdout.splitlines():
        event: Any = decode(line)
        fresh.events.append(EVENTS[event["event"]].model_validate_json(encode(event["body"])))
    assert [each.facts for each in fresh.steps] == [each.facts for each in straight.steps[2:]]
    assert fresh.state == straight.state
    expected = straight.evidence()
    assert fresh.evidence() == {name: expected[name] for name in ("step-000003.jsonl", "step-000004.jsonl")}


def copied(straight: Branch, folder: Path, step: int = 2) -> Path:
    return shutil.copytree(straight.checkpoint(step), folder / f"step-{step:06d}")


def reseal(path: Path) -> Path:
    (path / SEAL_NAME).unlink()
    partial = path.rename(path.with_suffix(".partial"))
    seal_tree(partial, path)
    return path


def refused(straight: Branch, folder: Path, checkpoint: Path, kind: type[Exception], match: str) -> None:
    branch = Branch(folder / "resumed", straight.plan, world=WORLD)
    with pytest.raises(kind, match=match):
        branch.train(3, checkpoint)
    assert branch.of(StepDone) == []
    assert not (branch.folder / "evidence").exists()


PARTS = ("optimizer.pt", "scheduler.pt", "rng_state.pth")


@pytest.mark.parametrize("fault", ["missing", "truncated", "of another step"])
def test_damaged_part_is_refused_by_its_name(straight: Branch, tmp_path: Path, fault: str) -> None:
    for part in PARTS:
        checkpoint = copied(straight, tmp_path / part)
        path = checkpoint / part
        data = path.read_bytes()
        other = (straight.checkpoint(1) / part).read_bytes()
        path.unlink()
        if fault != "missing":
            path.write_bytes(data[:-1] if fault == "truncated" else other)
        assert other != data
        refused(straight, tmp_path / part, checkpoint, JournalError, part)


def test_unsealed_checkpoint_is_refused(straight: Branch, tmp_path: Path) -> None:
    checkpoint = copied(straight, tmp_path)
    (checkpoint / SEAL_NAME).unlink()
    refused(straight, tmp_path, checkpoint, JournalError, "no seal")


@pytest.mark.parametrize("part", PARTS)
def test_part_that_is_missing_under_a_true_seal_is_refused(straight: Branch, tmp_path: Path, part: str) -> None:
    checkpoint = copied(straight, tmp_path)
    (checkpoint / part).unlink()
    refused(straight, tmp_path, reseal(checkpoint), JournalError, f"lacks {part}")


@pytest.mark.parametrize("part", ALL_PARTS)
def test_part_that_was_written_wrong_is_refused_under_a_true_seal(straight: Branch, tmp_path: Path, part: str) -> None:
    checkpoint = copied(straight, tmp_path)
    path = checkpoint / part
    path.write_bytes(path.read_bytes()[:-2])
    refused(straight, tmp_path, reseal(checkpoint), JournalError, f"{part}: cannot be read")


@pytest.mark.parametrize(
    ("part", "name"),
    [
        ("adapter_model.safetensors", "adapter/"),
        ("optimizer.pt", "optimizer/"),
        ("scheduler.pt", "scheduler/"),
        ("rng_state.pth", "random/"),
        ("trainer_state.json", "counters/"),
        ("state.json", "adapter/"),
    ],
)
def test_part_of_another_step_under_a_true_seal_is_found_after_restoring(
    straight: Branch, tmp_path: Path, part: str, name: str
) -> None:
    checkpoint = copied(straight, tmp_path)
    shutil.copyfile(straight.checkpoint(1) / part, checkpoint / part)
    refused(straight, tmp_path, reseal(checkpoint), QualificationError, f"after restoring, '{name}")


@pytest.mark.parametrize(
    ("hook", "name"),
    [
        ("_load_from_checkpoint", "adapter/"),
        ("_load_optimizer_and_scheduler", "optimizer/"),
        ("_load_rng_state", "random/"),
    ],
)
def test_state_that_is_silently_not_restored_is_found(
    straight: Branch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hook: str, name: str
) -> None:
    monkeypatch.setattr(GRPOTrainer, hook, lambda *_, **__: None)
    refused(straight, tmp_path, straight.checkpoint(2), QualificationError, f"after restoring, '{name}")


class Killed(BaseException):
    """The process ended; nothing that it would do on an error is done."""


def test_save_that_was_killed_half_way_is_no_state_to_go_on_from(
    straight: Branch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    branch, save = Branch(tmp_path, straight.plan, world=WORLD), torch.save

    def cut(value: object, target: Any, *rest: Any, **settings: Any) -> None:
        save(value, target, *rest, **settings)
        if Path(target).name == "scheduler.pt":
            data = Path(target).read_bytes()
            Path(target).write_bytes(data[: len(data) // 2])
            raise Killed

    monkeypatch.setattr(torch, "save", cut)
    with pytest.raises(Killed):
        branch.train(4, straight.checkpoint(3))
    monkeypatch.setattr(torch, "save", save)
    assert not (branch.folder / "checkpoints").exists()
    assert (branch.folder / "work/checkpoint-4/optimizer.pt").is_file()
    # What is left in the work folder neither stands in the way nor gets into the state that is sealed now.
    branch.train(4, straight.checkpoint(3))
    assert branch.state == straight.state
    assert branch.of(CheckpointDone)[-1].state == straight.of(CheckpointDone)[-1].state
    verify_tree(branch.checkpoint(4))
    last = "step-000004.jsonl"
    assert branch.evidence() == {last: straight.evidence()[last]}
