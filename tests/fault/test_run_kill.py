"""A whole run survives every death of its driver and its workers: no fact is lost, none comes out different."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from experiment.audit import audit_run
from experiment.errors import (
    AlignmentError,
    BudgetExhaustedError,
    FaultError,
    LockedError,
    QualificationError,
    StoppedError,
)
from experiment.journal.progress import active_seconds
from experiment.records.base import Record
from experiment.records.entry import (
    Aborted,
    AssessmentMade,
    CheckpointSealed,
    Closed,
    EvaluationFinished,
    QualificationResult,
    SelectionMade,
    TrainFinished,
    TrainStep,
)
from experiment.sealing.seeds import derive_seed
from tests.doubles.run_digests import compare_runs, run_digests
from tests.doubles.small_run import SmallRun
from tests.doubles.stand_in_run import (
    Workspace,
    draft_script,
    drive,
    drive_until,
    end,
    exit_code,
    one_arm_recipe,
    small_workspace,
)

STAGES = (
    ("genesis", 1),
    ("inputs.verified", 1),
    ("qual.branch", 3),
    ("qual.result", 1),
    ("train.start", 1),
    ("train.step", 4),
    ("ckpt.sealed", 2),
    ("train.stop", 1),
    ("dev.result", 6),
    ("select.decision", 1),
    ("final.result", 4),
    ("stats.result", 1),
    ("close", 1),
)
"""Types of record in the order of a run, and how many an undisturbed run has of each."""

SIGKILLED = -signal.SIGKILL


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> SmallRun:
    return draft_script(tmp_path_factory.mktemp("script"), one_arm_recipe())


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, script: SmallRun) -> Workspace:
    """A run that nothing happened to."""
    workspace = small_workspace(tmp_path_factory.mktemp("undisturbed"), script)
    assert exit_code(workspace.fork(drive)) == 0
    return workspace


@pytest.fixture
def workspace(tmp_path: Path, script: SmallRun) -> Workspace:
    return small_workspace(tmp_path, script)


@pytest.fixture
def fork(workspace: Workspace) -> Iterator[Callable[..., int]]:
    """Forks drivers of the workspace, and leaves none behind."""
    pids: list[int] = []

    def start(*, resume: bool = False, pace_s: float = 0.0, fault: str = "") -> int:
        pids.append(workspace.fork(partial(drive, resume=resume), pace_s=pace_s, fault=fault))
        return pids[-1]

    yield start
    for pid in pids:
        end(pid)


def _facts(workspace: Workspace) -> list[Record]:
    """Everything that has to be the same however often a run was interrupted, ordered by what it is about."""
    kinds = (TrainStep, TrainFinished, EvaluationFinished, SelectionMade, AssessmentMade)
    bodies = [entry.body for entry in workspace.view().entries if isinstance(entry.body, kinds)]
    return sorted(bodies, key=lambda body: (type(body).__name__, body.model_dump_json()))


def _sealed(workspace: Workspace, steps: tuple[int, ...]) -> dict[int, str]:
    bodies = [entry.body for entry in workspace.view().entries if isinstance(entry.body, CheckpointSealed)]
    return {body.step: body.tree for body in bodies if body.step in steps}


def _last_abort(workspace: Workspace) -> Aborted:
    return [entry.body for entry in workspace.view().entries if isinstance(entry.body, Aborted)][-1]


def _wait_for(workspace: Workspace, type_: str, number: int = 1) -> None:
    """Return once the journal has so many records of a type."""
    mark = f'"type":"{type_}"'.encode()
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if sum(path.read_bytes().count(mark) for path in workspace.run_dir.glob("journal/*.jsonl")) >= number:
            return
        time.sleep(0.005)
    pytest.fail(f"no {type_} within a minute")


def _workers(workspace: Workspace) -> list[int]:
    """Processes that work on a job of this run."""
    jobs = f"{workspace.run_dir.relative_to(workspace.folder)}/logs/"
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            is_ours = jobs.encode() in (path / "cmdline").read_bytes()
            if is_ours and (path / "cwd").resolve() == workspace.folder.resolve():
                found.append(int(path.name))
        except OSError:
            continue
    return found


def _assert_same(workspace: Workspace, undisturbed: Workspace) -> None:
    assert compare_runs(undisturbed.run_dir, workspace.run_dir).differing == ()
    report = audit_run(workspace.run_dir, level="recompute")
    assert (report.exit_code, report.findings) == (0, ())


def test_a_run_that_came_out_different_is_not_taken_for_the_same(
    workspace: Workspace, undisturbed: Workspace, fork: Callable[..., int]
) -> None:
    assert exit_code(fork(fault="differ@train/echo/3")) == 0
    compared = compare_runs(undisturbed.run_dir, workspace.run_dir)
    assert compared.differing == ("train echo step 3", "train echo step 3, facts")
    assert compared.total == len(run_digests(undisturbed.run_dir))
    assert compared.sentence == f"{compared.total - 2} of {compared.total}"


def test_an_undisturbed_run_has_the_records_that_the_kills_are_aimed_at(undisturbed: Workspace) -> None:
    types = [entry.type for entry in undisturbed.view().entries]
    assert {type_: types.count(type_) for type_, _ in STAGES} == dict(STAGES)
    assert audit_run(undisturbed.run_dir, level="recompute").exit_code == 0


@pytest.mark.parametrize("side", [0, 1])
def test_a_driver_killed_in_every_stage_ends_where_an_undisturbed_one_does(
    workspace: Workspace, undisturbed: Workspace, side: int
) -> None:
    """Each session dies at a record drawn from the next stage, by turns before and after it is durable."""
    for number, (type_, count) in enumerate(STAGES):
        # A session finds done what the one before it did, and after four steps one checkpoint is left to seal.
        nth = 1 if type_ == "ckpt.sealed" else 1 + derive_seed(3, "kill", type_, side) % count
        is_before = (number + side) % 2 == 0
        dead = exit_code(workspace.fork(partial(drive_until, type_, nth, before=is_before)))
        assert (type_, nth, is_before, dead) == (type_, nth, is_before, SIGKILLED)
    if not workspace.view().is_closed:
        assert exit_code(workspace.fork(partial(drive, resume=True))) == 0
    _assert_same(workspace, undisturbed)


@pytest.mark.parametrize("asked_by", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_seals_the_current_step_and_says_so(
    workspace: Workspace, undisturbed: Workspace, fork: Callable[..., int], asked_by: signal.Signals
) -> None:
    driver = fork(fault="wait@train/echo/3")
    _wait_for(workspace, "train.step", 2)
    os.kill(driver, asked_by)
    assert exit_code(driver) == StoppedError.exit_code
    steps = max(body.facts.step for body in _facts(workspace) if isinstance(body, TrainStep))
    assert steps == 3
    assert list(_sealed(workspace, (3, 4))) == [3]
    abort = _last_abort(workspace)
    assert (abort.kind, abort.exit_code, abort.resumable) == ("StoppedError", 130, True)
    assert _workers(workspace) == []
    assert exit_code(fork(resume=True)) == 0
    assert "train.redone" not in [entry.type for entry in workspace.view().entries]
    _assert_same(workspace, undisturbed)


def test_a_stop_while_workers_are_loading_is_a_stop_and_no_fault(
    workspace: Workspace, fork: Callable[..., int]
) -> None:
    driver = fork(pace_s=0.05)
    _wait_for(workspace, "inputs.verified")
    os.kill(driver, signal.SIGTERM)
    assert exit_code(driver) == StoppedError.exit_code
    assert _last_abort(workspace).kind == "StoppedError"


def test_a_second_stop_ends_workers_at_once(workspace: Workspace, fork: Callable[..., int]) -> None:
    driver = fork(pace_s=30)
    _wait_for(workspace, "inputs.verified")
    deadline = time.monotonic() + 30
    while not _workers(workspace) and time.monotonic() < deadline:
        time.sleep(0.005)
    for _ in range(2):
        os.kill(driver, signal.SIGINT)
        time.sleep(0.05)
    started = time.monotonic()
    assert exit_code(driver) == StoppedError.exit_code
    assert time.monotonic() - started < 15
    assert _workers(workspace) == []


def test_no_worker_survives_a_killed_driver(workspace: Workspace, fork: Callable[..., int]) -> None:
    driver = fork(pace_s=30)
    _wait_for(workspace, "inputs.verified")
    deadline = time.monotonic() + 30
    while len(_workers(workspace)) < 2 and time.monotonic() < deadline:
        time.sleep(0.005)
    assert _workers(workspace)
    end(driver)
    deadline = time.monotonic() + 10
    while _workers(workspace) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert _workers(workspace) == []


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("exit@train/echo/3", "ended with code 1"),
        ("half@train/echo/3", "no event"),
        ("garbage@train/echo/3", "no event"),
        ("stranger@qualify/echo/2", "no event"),
        ("astray@qualify/echo/2", "task 7 of 1"),
        ("kill@final/baseline@0/agent-11", "ended with code -9"),
    ],
)
def test_a_broken_worker_is_a_fault_that_a_resumed_run_recovers_from(
    workspace: Workspace, undisturbed: Workspace, fork: Callable[..., int], fault: str, said: str
) -> None:
    assert exit_code(fork(fault=fault)) == FaultError.exit_code
    abort = _last_abort(workspace)
    assert said in abort.message and "logs/" in abort.message
    assert abort.resumable
    assert exit_code(fork(resume=True)) == 0
    _assert_same(workspace, undisturbed)


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("lose@final/baseline@0/agent-11", "final agent of baseline@0, seed 11: item 'final-0000' is missing"),
        ("double@dev/echo@2/retention-21", "dev retention of echo@2, seed 21: item 'retention-dev-0000' has two"),
        ("other@final/baseline@0/agent-11", "a worker played baseline@0, which it was not asked for"),
        ("vanish@final/baseline@0/agent-11", "seed 11: its worker ended without a result"),
    ],
)
def test_an_evaluation_is_recorded_with_each_planned_item_or_not_at_all(
    workspace: Workspace, fork: Callable[..., int], fault: str, said: str
) -> None:
    assert exit_code(fork(fault=fault)) == FaultError.exit_code
    abort = _last_abort(workspace)
    assert said in abort.message
    assert abort.resumable
    items = {"dev agent": 6, "dev retention": 4, "final agent": 6, "final retention": 5}
    for body in _facts(workspace):
        if isinstance(body, EvaluationFinished):
            assert len({each.item for each in body.outcomes}) == items[f"{body.key.stage} {body.key.suite}"]
            assert f"{body.key.stage}/{body.key.arm}@{body.key.step}/{body.key.suite}" not in fault


def test_what_a_worker_reports_is_raised_as_what_it_is(workspace: Workspace, fork: Callable[..., int]) -> None:
    assert exit_code(fork(fault="report@train/echo/2")) == AlignmentError.exit_code
    abort = _last_abort(workspace)
    assert abort.kind == "AlignmentError"
    assert "sampled ids and mask disagree" in abort.message


def test_a_step_that_comes_out_different_the_second_time_stops_the_run(
    workspace: Workspace, fork: Callable[..., int]
) -> None:
    dead = workspace.fork(partial(drive_until, "train.step", 3, before=False))
    assert exit_code(dead) == SIGKILLED
    first = (workspace.run_dir / "evidence/train/echo/step-000003.jsonl").read_bytes()
    assert exit_code(fork(resume=True, fault="differ@train/echo/3")) == QualificationError.exit_code
    abort = _last_abort(workspace)
    assert "step 3: metrics differ from the interrupted session" in abort.message
    assert not abort.resumable
    steps = [entry.body.facts.step for entry in workspace.view().entries if isinstance(entry.body, TrainStep)]
    assert steps == [1, 2, 3]
    assert list(_sealed(workspace, (3, 4))) == []  # a state that follows from the difference is never gone on from
    assert (workspace.run_dir / "evidence/train/echo/step-000003.jsonl").read_bytes() == first


def test_a_step_that_differs_from_the_qualification_stops_the_run(
    workspace: Workspace, fork: Callable[..., int]
) -> None:
    assert exit_code(fork(fault="differ@train/echo/1")) == QualificationError.exit_code
    assert "step 1: metrics differ from the qualification" in _last_abort(workspace).message
    assert _facts(workspace) == []


def test_a_state_on_other_base_weights_is_never_recorded(
    workspace: Workspace, undisturbed: Workspace, fork: Callable[..., int]
) -> None:
    assert exit_code(fork(fault="moved@train/echo/4")) == QualificationError.exit_code
    assert "step 4: the weights below the adapter are not those that qualified" in _last_abort(workspace).message
    assert list(_sealed(workspace, (2, 4))) == [2]
    assert exit_code(fork(resume=True)) == 0
    _assert_same(workspace, undisturbed)


def test_a_failed_qualification_closes_the_run_and_audits_as_honest(
    workspace: Workspace, fork: Callable[..., int]
) -> None:
    assert exit_code(fork(fault="lie@qualify/echo/resumed")) == QualificationError.exit_code
    judged, closed = (entry.body for entry in workspace.view().entries[-2:])
    assert isinstance(judged, QualificationResult)
    assert [each.branch for each in judged.verdict.divergences] == ["resumed"]
    assert isinstance(closed, Closed) and closed.outcome == "qualification_failed"
    assert audit_run(workspace.run_dir, level="recompute").exit_code == 0
    assert exit_code(fork(resume=True)) == 2  # nothing is trained after all


def test_of_two_resumes_one_goes_on_and_one_is_told_who_does(
    workspace: Workspace, undisturbed: Workspace, fork: Callable[..., int]
) -> None:
    assert exit_code(workspace.fork(partial(drive_until, "train.step", 2, before=False))) == SIGKILLED
    both = [fork(resume=True, pace_s=0.2) for _ in range(2)]
    assert sorted(exit_code(pid) for pid in both) == [0, LockedError.exit_code]
    _assert_same(workspace, undisturbed)


def test_a_sleeping_driver_keeps_its_run(workspace: Workspace, fork: Callable[..., int]) -> None:
    driver = fork(pace_s=0.3)
    _wait_for(workspace, "inputs.verified")
    os.kill(driver, signal.SIGSTOP)
    before = b"".join(path.read_bytes() for path in sorted(workspace.run_dir.glob("journal/*")))
    assert exit_code(fork(resume=True)) == LockedError.exit_code
    assert b"".join(path.read_bytes() for path in sorted(workspace.run_dir.glob("journal/*"))) == before
    os.kill(driver, signal.SIGCONT)
    assert exit_code(driver) == 0


def test_the_budget_is_not_reset_by_a_restart(tmp_path: Path, script: SmallRun) -> None:
    budget_s = 1.5
    workspace = small_workspace(tmp_path, script, budget_hours=budget_s / 3600)
    dead = workspace.fork(partial(drive_until, "qual.branch", 1, before=False), pace_s=0.1)
    assert exit_code(dead) in (SIGKILLED, BudgetExhaustedError.exit_code)
    second = workspace.fork(partial(drive, resume=True), pace_s=0.4)
    assert exit_code(second) == BudgetExhaustedError.exit_code
    spent = active_seconds(workspace.view().entries)
    assert spent >= budget_s
    records = len(workspace.view().entries)
    assert exit_code(workspace.fork(partial(drive, resume=True))) == BudgetExhaustedError.exit_code
    added = [entry.type for entry in workspace.view().entries[records:]]
    assert added == ["resume", "inputs.verified", "abort"]
    assert not _last_abort(workspace).resumable
    assert not any(isinstance(entry.body, Closed) for entry in workspace.view().entries)
