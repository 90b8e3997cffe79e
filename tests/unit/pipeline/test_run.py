from __future__ import annotations

import os
import shutil
import signal
from functools import partial
from pathlib import Path

import pytest

from experiment.audit import audit_run
from experiment.errors import (
    ExperimentError,
    FaultError,
    JournalError,
    PlanError,
    QualificationError,
    UsageError,
)
from experiment.pipeline import stage1_qualify, stage2_train
from experiment.pipeline.run import run, run_dir_of, unfinished_plan
from experiment.pipeline.workers import WorkerPool
from experiment.records.entry import Aborted, EvaluationFinished, TrainStep
from experiment.records.recipe import Arm, Checkpoints
from tests.doubles.small_plan import small_recipe
from tests.doubles.small_run import SmallRun
from tests.doubles.stand_in_run import (
    PLAN,
    RUN_DIR,
    Silent,
    Workspace,
    draft_script,
    drive,
    small_workspace,
    stand_in_recipe,
)
from tests.planted import Planted

ONE_ARM = stand_in_recipe(
    arms=(Arm(name="grpo", algorithm="grpo"),),
    assessment=small_recipe().assessment.model_copy(update={"seeds": (11,), "retention_seeds": (21,)}),
)


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> SmallRun:
    return draft_script(tmp_path_factory.mktemp("script"), ONE_ARM)


def _enter(workspace: Workspace, monkeypatch: pytest.MonkeyPatch, *, fault: str = "") -> None:
    monkeypatch.chdir(workspace.folder)
    for name, value in workspace.environment(fault=fault).items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="module")
def qualified(tmp_path_factory: pytest.TempPathFactory, script: SmallRun) -> Workspace:
    """A workspace whose run stopped after stage 1; tests work on copies."""
    workspace = small_workspace(tmp_path_factory.mktemp("qualified"), script)
    with pytest.MonkeyPatch.context() as patch:
        _enter(workspace, patch)
        outcome = drive(qualification_only=True)
    assert outcome.comparisons == ()
    return workspace


@pytest.fixture
def fresh(tmp_path: Path, script: SmallRun, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """The current folder, with a plan that nobody has claimed."""
    workspace = small_workspace(tmp_path, script)
    _enter(workspace, monkeypatch)
    return workspace


@pytest.fixture
def half_done(tmp_path: Path, qualified: Workspace, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """The current folder, with a run that stopped after stage 1."""
    shutil.copytree(qualified.folder, tmp_path, dirs_exist_ok=True)
    workspace = Workspace(tmp_path, qualified.script, qualified.plan)
    _enter(workspace, monkeypatch)
    return workspace


def _files(folder: Path) -> dict[str, bytes]:
    """Everything below a folder but locks, which say who works on a run."""
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != "lock")
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def _refused(folder: Path, error: type[ExperimentError], said: str, **options: object) -> None:
    """A session that is refused, and leaves everything as it was."""
    before = _files(folder)
    with pytest.raises(error, match=said):
        drive(**options)  # type: ignore[arg-type]
    assert _files(folder) == before


def test_a_run_ends_with_its_comparisons_and_a_closed_journal(fresh: Workspace) -> None:
    outcome = drive()
    assert [each.name for each in outcome.comparisons] == [
        "grpo@2 vs baseline, agent",
        "grpo@2 vs baseline, retention",
    ]
    assert fresh.view().is_closed
    assert outcome.head == f"small {len(fresh.view().entries)} b3:{fresh.view().head}"


def test_a_run_goes_on_after_its_qualification(half_done: Workspace) -> None:
    before = len(half_done.view().entries)
    assert drive(resume=True).comparisons
    added = [entry.type for entry in half_done.view().entries[before:]]
    assert added[:3] == ["resume", "inputs.verified", "train.start"]
    assert half_done.view().is_closed


def test_a_qualification_that_is_done_is_not_done_again(half_done: Workspace) -> None:
    before = len(half_done.view().entries)
    drive(resume=True, qualification_only=True)
    assert [entry.type for entry in half_done.view().entries[before:]] == ["resume", "inputs.verified"]


@pytest.mark.parametrize("exists", [False, True])
def test_nothing_to_resume_is_refused(fresh: Workspace, exists: bool) -> None:
    if exists:
        RUN_DIR.mkdir(parents=True)
    _refused(fresh.folder, UsageError, "runs/small: there is nothing to resume", resume=True)


def test_a_resume_by_another_plan_is_refused(half_done: Workspace, script: SmallRun) -> None:
    shutil.rmtree(PLAN.parent)
    small_workspace(half_done.folder / "other", script, budget_hours=9.0)
    shutil.copytree("other/plans/small", PLAN.parent)
    _refused(half_done.folder, PlanError, "its journal belongs to plan", resume=True)


def test_a_run_that_is_there_is_not_begun_again(half_done: Workspace) -> None:
    _refused(half_done.folder, UsageError, "runs/small: there is a run already")


def test_a_finished_run_has_nothing_to_resume(half_done: Workspace) -> None:
    drive(resume=True)
    _refused(half_done.folder, UsageError, "its journal is closed, there is nothing to resume", resume=True)
    _refused(half_done.folder, UsageError, "runs/small: there is a run already")


def test_a_damaged_run_is_not_resumed(half_done: Workspace) -> None:
    segment = RUN_DIR / "journal/000000.jsonl"
    segment.write_bytes(segment.read_bytes().replace(b"straight", b"straighT", 1))
    _refused(half_done.folder, JournalError, "J-", resume=True)


@pytest.mark.parametrize("other", ["runs/other", "elsewhere/small"])
def test_a_plan_has_one_run(half_done: Workspace, other: str) -> None:
    _refused(
        half_done.folder, PlanError, "plans/small/plan.json: the plan's one run is runs/small", run_dir=Path(other)
    )


def test_a_claim_holds_after_the_workspace_has_moved(half_done: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    moved = half_done.folder / "moved"
    moved.mkdir()
    for name in ("plans", "runs", "lock.txt"):
        (half_done.folder / name).rename(moved / name)
    monkeypatch.chdir(moved)
    assert run_dir_of(PLAN) == RUN_DIR
    _refused(moved, PlanError, "the plan's one run is runs/small", run_dir=Path("runs/other"))


def test_a_folder_that_holds_something_is_no_place_for_a_run(fresh: Workspace) -> None:
    RUN_DIR.mkdir(parents=True)
    (RUN_DIR / "notes.txt").write_text("mine")
    _refused(fresh.folder, UsageError, "runs/small: not empty, it holds notes.txt")


def test_a_folder_whose_name_cannot_be_a_runs_is_refused(fresh: Workspace) -> None:
    _refused(fresh.folder, UsageError, "cannot be the name of a plan or run", run_dir=Path("runs/My Run"))


def test_what_a_start_left_that_was_killed_is_begun_again(fresh: Workspace) -> None:
    (PLAN.parent / "claim").write_text("small ../../runs/small\n")
    RUN_DIR.mkdir(parents=True)
    (RUN_DIR / "plan.json").write_bytes(PLAN.read_bytes()[:100])
    (RUN_DIR / "lock").write_bytes(b"")
    (RUN_DIR / ".plan.json.0123456789abcdef.tmp").write_bytes(b"{")
    assert drive(qualification_only=True).comparisons == ()
    assert (RUN_DIR / "plan.json").read_bytes() == PLAN.read_bytes()


def test_the_same_leftovers_without_a_claim_are_refused(fresh: Workspace) -> None:
    RUN_DIR.mkdir(parents=True)
    (RUN_DIR / "plan.json").write_bytes(PLAN.read_bytes())
    _refused(fresh.folder, UsageError, "runs/small: not empty, it holds plan.json")


def test_a_changed_input_is_refused_before_anything_is_written(fresh: Workspace) -> None:
    Path("lock.txt").write_bytes(b"loCk\n")
    _refused(fresh.folder, PlanError, "lock.txt: the lock changed since the plan was prepared")


def test_a_changed_input_stops_a_resumed_run_and_may_be_put_back(half_done: Workspace) -> None:
    Path("lock.txt").write_bytes(b"loCk\n")
    with pytest.raises(PlanError, match=r"lock.txt: the lock changed"):
        drive(resume=True)
    abort = half_done.view().entries[-1].body
    assert isinstance(abort, Aborted)
    assert (abort.exit_code, abort.resumable) == (3, True)
    Path("lock.txt").write_bytes(b"lock\n")
    assert drive(resume=True).comparisons


@pytest.mark.parametrize("is_missing", [False, True])
def test_workers_never_read_a_plan_that_is_not_the_runs(half_done: Workspace, is_missing: bool) -> None:
    copy = RUN_DIR / "plan.json"
    if is_missing:
        copy.unlink()
    else:
        copy.write_bytes(copy.read_bytes().replace(b'"kl":0.01', b'"kl":0.99'))
    with pytest.raises(PlanError, match="runs/small/plan.json: is not the plan of this run"):
        drive(resume=True)
    assert "train.start" not in [entry.type for entry in half_done.view().entries]


def test_a_stop_rule_is_not_escaped_by_a_restart(half_done: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAND_IN_FAULT", "corrupt@train/grpo/3")
    with pytest.raises(FaultError, match=r"arm grpo, step 3: 1 of 6 rollouts are corrupted"):
        drive(resume=True)
    monkeypatch.setenv("STAND_IN_FAULT", "")
    with pytest.raises(FaultError, match="this stopped the run for good"):
        drive(resume=True)
    steps = [entry.body.facts.step for entry in half_done.view().entries if isinstance(entry.body, TrainStep)]
    assert steps == [1, 2, 3]


@pytest.mark.planted("trained step has another learning rate than planned")
def test_a_learning_rate_that_is_not_the_planned_one_stops_the_run(
    half_done: Workspace, monkeypatch: pytest.MonkeyPatch, planted: Planted
) -> None:
    monkeypatch.setenv("STAND_IN_FAULT", "rate@train/grpo/3")
    with pytest.raises(QualificationError, match=r"arm grpo, step 3: learning rate -.*, planned ") as caught:
        drive(resume=True)
    monkeypatch.setattr(stage2_train._ArmRecorder, "_check_rate", lambda *_: None)
    assert drive(resume=True).comparisons
    assert {finding.id for finding in audit_run(half_done.run_dir).findings} == {"P-RATE"}
    planted(caught.value, place="arm grpo, step 3", without="the run ends as assessed; its audit finds P-RATE")


def test_a_checkpoint_that_changed_is_refused(half_done: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAND_IN_FAULT", "exit@train/grpo/3")
    with pytest.raises(FaultError):
        drive(resume=True)
    (RUN_DIR / "checkpoints/grpo/step-000002/adapter.bin").write_bytes(b"grpo 3")
    _refused(half_done.folder, JournalError, "step-000002", resume=True)


@pytest.mark.planted("first trained step is not the qualified one")
def test_a_first_step_that_differs_from_the_qualification_stops_the_run(
    half_done: Workspace, monkeypatch: pytest.MonkeyPatch, planted: Planted
) -> None:
    monkeypatch.setenv("STAND_IN_FAULT", "differ@train/grpo/1")
    with pytest.raises(QualificationError, match="step 1: metrics differ from the qualification") as caught:
        drive(resume=True)
    monkeypatch.setattr(stage2_train._ArmRecorder, "_check_same", lambda *_: None)
    assert drive(resume=True).comparisons
    assert {finding.id for finding in audit_run(half_done.run_dir).findings} == {"R-PREFIX", "R-STEP"}
    without = "the run ends as assessed; its audit finds R-PREFIX and R-STEP"
    planted(caught.value, place="arm grpo, step 1", without=without)


@pytest.mark.planted("worker that does too few steps and ends in good order, in training")
def test_a_worker_that_trains_too_little_is_a_fault(
    tmp_path: Path, script: SmallRun, monkeypatch: pytest.MonkeyPatch, planted: Planted
) -> None:
    marks = Checkpoints(recovery_every=2, candidates=(2,), diagnostic=2)
    workspace = small_workspace(tmp_path, script, checkpoints=marks)
    _enter(workspace, monkeypatch, fault="short@train/grpo/3")
    with pytest.raises(FaultError, match=r"arm grpo: its worker ended in good order before step 4") as caught:
        drive()
    monkeypatch.setattr(stage2_train, "_require_trained", lambda _: None)
    assert drive(resume=True).comparisons
    assert workspace.view().is_closed
    assert {finding.id for finding in audit_run(workspace.run_dir).findings} == {"P-ORDER"}
    planted(caught.value, place="arm grpo", without="the run ends as assessed; its audit finds P-ORDER")


@pytest.mark.planted("worker that does too few steps and ends in good order, in qualification")
def test_a_worker_that_qualifies_too_little_is_a_fault(
    fresh: Workspace, monkeypatch: pytest.MonkeyPatch, planted: Planted
) -> None:
    monkeypatch.setenv("STAND_IN_FAULT", "short@qualify/grpo/1")
    with pytest.raises(FaultError, match=r"arm grpo, branch 'straight': its worker ended in good order") as caught:
        drive()
    monkeypatch.setattr(stage1_qualify, "_require_branches", lambda *_: None)
    with pytest.raises(KeyError, match="straight"):
        drive(resume=True)
    planted(caught.value, place="branch 'straight'", without="the driver crashes on a branch that is not there")


def test_signals_are_as_before_after_a_run(fresh: Workspace) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    drive(qualification_only=True)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_the_only_new_plan_is_found(fresh: Workspace) -> None:
    assert unfinished_plan(resume=False) == PLAN
    with pytest.raises(UsageError, match=r"plans/: 0 interrupted plans \(none\)"):
        unfinished_plan(resume=True)


def test_the_only_interrupted_plan_is_found(half_done: Workspace) -> None:
    assert unfinished_plan(resume=True) == PLAN
    with pytest.raises(UsageError, match=r"plans/: 0 new plans \(none\)") as caught:
        unfinished_plan(resume=False)
    assert "--plan" in caught.value.remedy


def test_several_plans_are_listed(half_done: Workspace) -> None:
    for name in ("b", "a"):
        shutil.copytree(PLAN.parent, f"plans/{name}", ignore=shutil.ignore_patterns("claim"))
    with pytest.raises(UsageError, match=r"plans/: 2 new plans \(plans/a/plan.json, plans/b/plan.json\)"):
        unfinished_plan(resume=False)


def test_a_finished_plan_is_found_by_neither(half_done: Workspace) -> None:
    drive(resume=True)
    for resume in (False, True):
        with pytest.raises(UsageError, match=r"\(none\)"):
            unfinished_plan(resume=resume)


def test_an_interrupted_run_is_found_where_it_was_begun(half_done: Workspace) -> None:
    shutil.rmtree(RUN_DIR)
    (PLAN.parent / "claim").unlink()
    drive(qualification_only=True, run_dir=Path("elsewhere/mine"))
    assert unfinished_plan(resume=True) == PLAN
    assert run_dir_of(PLAN) == Path("elsewhere/mine")
    assert drive(resume=True, run_dir=run_dir_of(PLAN)).comparisons


def test_workers_get_the_planned_threads_and_no_network(
    fresh: Workspace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    probe = tmp_path / "modules/probe_worker.py"
    probe.parent.mkdir()
    probe.write_text("import os, sys; open(sys.argv[1] + '.env', 'w').write(repr(dict(os.environ))); sys.exit(1)")
    monkeypatch.setenv("PYTHONPATH", str(probe.parent), prepend=os.pathsep)
    with pytest.raises(FaultError, match="ended with code 1"):
        run(PLAN, RUN_DIR, Silent(), make_pool=partial(WorkerPool, module="probe_worker"))
    found = eval(next(RUN_DIR.glob("logs/*.env")).read_text())
    assert found["OMP_NUM_THREADS"] == str(fresh.plan.recipe.compute.threads)
    assert (found["HF_HUB_OFFLINE"], found["PYTHONHASHSEED"]) == ("1", "0")


@pytest.mark.parametrize(
    ("fault", "said", "stage"),
    [
        ("stray@dev/grpo@2", "grpo@2: 1 elements are not base plus adapter", "dev.result"),
        ("stray@final/grpo@2", "grpo@2: 1 elements are not base plus adapter", "final.result"),
        ("idle@final/grpo@2", "grpo@2: the adapter changes no weight, so this is the baseline again", "final.result"),
    ],
)
def test_weights_that_are_not_accounted_for_are_never_evaluated(
    half_done: Workspace, monkeypatch: pytest.MonkeyPatch, fault: str, said: str, stage: str
) -> None:
    monkeypatch.setenv("STAND_IN_FAULT", fault)
    with pytest.raises(FaultError, match=said):
        drive(resume=True)
    keys = [each.body.key for each in half_done.view().entries if isinstance(each.body, EvaluationFinished)]
    assert not [key for key in keys if (key.arm, key.step, f"{key.stage}.result") == ("grpo", 2, stage)]
    monkeypatch.setenv("STAND_IN_FAULT", "")
    assert drive(resume=True).comparisons


def test_an_adapter_without_effect_is_no_fault_while_it_is_only_a_candidate(
    half_done: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN_FAULT", "idle@dev/grpo@4")
    assert drive(resume=True).comparisons


def test_weights_that_differ_from_an_earlier_evaluation_s_stop_the_run(
    half_done: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN_FAULT", "idle@dev/grpo@2")
    with pytest.raises(FaultError, match="differ from those of an earlier evaluation"):
        drive(resume=True)


def test_a_worker_that_computes_otherwise_than_planned_is_refused_before_its_first_step(
    fresh: Workspace, script: SmallRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "script"
    shutil.copytree(script.run_dir, copy)
    ready = copy / "events/ready"
    ready.write_bytes(ready.read_bytes().replace(b'"threads":1,', b'"threads":2,'))
    monkeypatch.setenv("STAND_IN_SCRIPT", str(copy))
    with pytest.raises(PlanError, match="computes with 2 threads, the plan froze 1"):
        drive()
    types = [entry.type for entry in fresh.view().entries]
    assert types == ["genesis", "inputs.verified", "abort"]
