"""Runs whose files were cut, half written or planted before somebody goes on with them."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from experiment.audit import audit_run
from experiment.decisions import assessment
from experiment.errors import FaultError, JournalError
from experiment.journal.head import Head, write_head
from experiment.journal.reader import JournalView, read_journal
from experiment.pipeline.stage4_assess import compare_all
from experiment.records.entry import (
    AssessmentMade,
    CheckpointSealed,
    EvaluationFinished,
    Resume,
    SelectionMade,
    TrainStarted,
    TrainStep,
    Warned,
)
from experiment.records.recipe import Arm
from experiment.records.verdict import Comparison
from experiment.sealing.digests import digest_bytes
from experiment.sealing.trees import SEAL_NAME, seal_tree
from tests.doubles.small_plan import small_recipe
from tests.doubles.small_run import SmallRun
from tests.doubles.stand_in_run import (
    RUN_DIR,
    Workspace,
    draft_script,
    drive,
    drive_until,
    end,
    exit_code,
    small_workspace,
    stand_in_recipe,
)

ONE_ARM = stand_in_recipe(
    arms=(Arm(name="echo", algorithm="echo", observation_weight=0.05),),
    assessment=small_recipe().assessment.model_copy(update={"seeds": (11,), "retention_seeds": (21,)}),
)
SIGKILLED = -signal.SIGKILL


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> SmallRun:
    return draft_script(tmp_path_factory.mktemp("script"), ONE_ARM)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, script: SmallRun) -> Workspace:
    """A run that nothing happened to."""
    workspace = small_workspace(tmp_path_factory.mktemp("finished"), script)
    assert exit_code(workspace.fork(drive)) == 0
    return workspace


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory, script: SmallRun) -> Workspace:
    """A run whose driver died at the record of step 3, after the state of step 2 was sealed."""
    workspace = small_workspace(tmp_path_factory.mktemp("killed"), script)
    dead = workspace.fork(partial(drive_until, "train.step", 3, before=False), fault="wait@train/echo/4")
    assert exit_code(dead) == SIGKILLED
    return workspace


@pytest.fixture
def copy(tmp_path: Path) -> Callable[[Workspace], Workspace]:
    """Copies a workspace that may then be damaged."""

    def make(workspace: Workspace) -> Workspace:
        shutil.copytree(workspace.folder, tmp_path, dirs_exist_ok=True)
        return Workspace(tmp_path, workspace.script, workspace.plan)

    return make


@pytest.fixture
def go_on() -> Iterator[Callable[..., int]]:
    """Resumes a run in a process of its own, of which nothing is left behind; returns the exit code."""
    pids: list[int] = []

    def resume(workspace: Workspace, fault: str = "") -> int:
        pids.append(workspace.fork(partial(drive, resume=True), fault=fault))
        return exit_code(pids.pop())

    yield resume
    for pid in pids:
        end(pid)


def audited(workspace: Workspace, *known_heads: str) -> tuple[int, set[str]]:
    report = audit_run(workspace.run_dir, known_heads=known_heads)
    return report.exit_code, {finding.id for finding in report.findings}


def bodies(view: JournalView, kind: type[Any]) -> list[Any]:
    return [entry.body for entry in view.entries if isinstance(entry.body, kind)]


def last_segment(workspace: Workspace) -> Path:
    return max((workspace.run_dir / "journal").iterdir())


def digests_of(workspace: Workspace) -> dict[str, str]:
    """Everything of a run but its lock, which says who works on it, and logs."""
    paths = (path for path in sorted(workspace.run_dir.rglob("*")) if path.is_file() and path.name != "lock")
    return {path.as_posix(): digest_bytes(path.read_bytes()) for path in paths if "logs" not in path.parts}


def comparisons(view: JournalView) -> tuple[Comparison, ...]:
    (body,) = bodies(view, AssessmentMade)
    found: tuple[Comparison, ...] = body.comparisons
    return found


@pytest.mark.parametrize("kept", ["half", "all but the newline"])
def test_a_run_whose_last_record_was_cut_goes_on_and_audits_clean(
    killed: Workspace,
    finished: Workspace,
    copy: Callable[[Workspace], Workspace],
    go_on: Callable[..., int],
    kept: str,
) -> None:
    workspace = copy(killed)
    segment = last_segment(workspace)
    data = segment.read_bytes()
    good = data.rindex(b"\n", 0, -1) + 1
    torn = (len(data) - good) // 2 if kept == "half" else len(data) - good - 1
    segment.write_bytes(data[: good + torn])
    before = workspace.view().entries
    assert go_on(workspace) == 0
    # The fragment stays where it is, and the next record vouches for it.
    assert segment.read_bytes() == data[: good + torn]
    repair = workspace.view().entries[len(before)].body
    assert isinstance(repair, Resume)
    assert [each.torn for each in repair.closes] == [torn]
    assert audited(workspace) == (0, set())
    assert comparisons(workspace.view()) == comparisons(finished.view())


def test_a_final_assessment_that_was_cut_off_is_missed_and_never_made_again(
    finished: Workspace, copy: Callable[[Workspace], Workspace], go_on: Callable[..., int]
) -> None:
    workspace = copy(finished)
    lines = last_segment(workspace).read_bytes().splitlines(keepends=True)
    last_segment(workspace).write_bytes(b"".join(lines[:-3]))
    assert audited(workspace) == (4, {"J-WATERMARK"})
    before = digests_of(workspace)
    assert go_on(workspace) == JournalError.exit_code
    assert digests_of(workspace) == before
    assert audited(workspace) == (4, {"J-WATERMARK"})
    (workspace.run_dir / "head.json").unlink()
    assert audited(workspace) == (4, {"J-WATERMARK"})
    assert go_on(workspace) == JournalError.exit_code


def test_a_cut_that_also_forges_the_watermark_leaves_its_evidence_and_not_the_head_that_was_kept(
    finished: Workspace, copy: Callable[[Workspace], Workspace], go_on: Callable[..., int]
) -> None:
    workspace = copy(finished)
    whole = workspace.view()
    kept_head = f"{whole.run} {len(whole.entries)} b3:{whole.head}"
    last_segment(workspace).write_bytes(b"".join(last_segment(workspace).read_bytes().splitlines(keepends=True)[:-4]))
    last = whole.entries[-5]
    head = Head(v=1, run=whole.run, size=last.seq + 1, h=last.hash, seg=0, bytes=last_segment(workspace).stat().st_size)
    write_head(workspace.run_dir, head)
    assert audited(workspace) == (3, {"J-OPEN", "T-LEFTOVER"})
    assert audited(workspace, kept_head)[0] == 6
    assert go_on(workspace) == 0
    # Played again, the result that was to be dropped lies in `recovery/`, and a record says so.
    (resumed,) = bodies(workspace.view(), Resume)
    assert [path for path in resumed.moved if "evidence+final" in path]
    assert audited(workspace, kept_head)[0] == 6


def test_only_the_last_sealed_state_is_gone_on_from(
    killed: Workspace,
    finished: Workspace,
    copy: Callable[[Workspace], Workspace],
    go_on: Callable[..., int],
) -> None:
    workspace = copy(killed)
    folder = workspace.run_dir / "checkpoints/echo"
    sealed = folder / "step-000002"
    for name in ("step-000004", "step-000999", ".partial-5"):
        (folder / name).mkdir()
        (folder / name / "adapter.bin").write_bytes(b"echo 998")
    # Sealed like a true one, but the driver died before it recorded it.
    shutil.copytree(sealed, folder / "draft", ignore=shutil.ignore_patterns(SEAL_NAME))
    (folder / "draft/adapter.bin").write_bytes(b"echo 3")
    seal_tree(folder / "draft", folder / "step-000003")
    assert go_on(workspace) == 0
    started = bodies(workspace.view(), TrainStarted)[-1]
    assert started.from_step == 2
    (resumed,) = bodies(workspace.view(), Resume)
    names = (".partial-5", "step-000003", "step-000004", "step-000999")
    assert [path for path in resumed.moved if "checkpoints" in path] == [
        f"recovery/000001-checkpoints+echo+{name}" for name in names
    ]
    assert all((workspace.run_dir / path).is_dir() for path in resumed.moved if "checkpoints" in path)
    assert audited(workspace) == (0, set())
    assert comparisons(workspace.view()) == comparisons(finished.view())


def test_a_damaged_newest_state_stops_a_resume_instead_of_starting_elsewhere(
    killed: Workspace, copy: Callable[[Workspace], Workspace], go_on: Callable[..., int]
) -> None:
    workspace = copy(killed)
    (body,) = bodies(workspace.view(), CheckpointSealed)
    (workspace.run_dir / body.path / "adapter.bin").write_bytes(b"")
    before = digests_of(workspace)
    assert go_on(workspace) == JournalError.exit_code
    assert digests_of(workspace) == before


def test_a_loss_that_is_no_number_is_recorded_as_such_and_stops_the_run_for_good(
    killed: Workspace, copy: Callable[[Workspace], Workspace], go_on: Callable[..., int]
) -> None:
    workspace = copy(killed)
    assert go_on(workspace, fault="nan@train/echo/4") == FaultError.exit_code
    step = bodies(workspace.view(), TrainStep)[-1].facts
    assert (step.step, step.loss, step.not_finite) == (4, None, ("loss",))
    assert [body.kind for body in bodies(workspace.view(), Warned)] == ["not_finite/loss"]
    assert b"NaN" not in last_segment(workspace).read_bytes()
    assert [body.step for body in bodies(workspace.view(), CheckpointSealed)] == [2]
    assert go_on(workspace) == FaultError.exit_code
    assert "this stopped the run for good" in workspace.view().entries[-1].body.message
    assert audited(workspace)[0] == 3


def test_intervals_are_the_same_alone_in_the_auditor_and_after_a_kill_between_two_of_them(
    finished: Workspace, script: SmallRun, tmp_path: Path
) -> None:
    plan, view = finished.plan, finished.view()
    alone = compare_all(
        plan,
        [body.verdict for body in bodies(view, SelectionMade)],
        {body.key: body for body in bodies(view, EvaluationFinished)},
    )
    assert comparisons(view) == alone
    assert any(not each.interval.degenerate for each in alone)
    workspace = small_workspace(tmp_path, script)

    def die_between() -> None:
        interval, calls = assessment.exact_interval, []

        def fatal(*args: Any, **settings: Any) -> Any:
            calls.append(interval(*args, **settings))
            if len(calls) > 1:
                os.kill(os.getpid(), signal.SIGKILL)
            return calls[-1]

        assessment.exact_interval = fatal
        drive()

    assert exit_code(workspace.fork(die_between)) == SIGKILLED
    assert bodies(workspace.view(), AssessmentMade) == []
    assert exit_code(workspace.fork(partial(drive, resume=True))) == 0
    assert comparisons(read_journal(workspace.folder / RUN_DIR)) == alone
    for each in (finished, workspace):
        assert audited(each) == (0, set())
