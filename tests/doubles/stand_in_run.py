"""Whole runs by the real driver with workers that play back a script: a workspace, and ways to drive it.

The script is a drafted run (`small_run.py`): its evidence, its checkpoints, and the events that tell of them.
"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from experiment.decisions.merging import reference_part
from experiment.errors import ExperimentError
from experiment.journal.reader import JournalView, read_journal
from experiment.journal.writer import JournalWriter
from experiment.pipeline.inputs import freeze_environment
from experiment.pipeline.prepare import SEAL_FILE
from experiment.pipeline.run import RunOutcome, run
from experiment.pipeline.workers import WorkerPool
from experiment.records.base import Record
from experiment.records.entry import EvaluationFinished, TrainStep
from experiment.records.job import (
    CheckpointDone,
    EvaluationDone,
    MergeDone,
    StepDone,
    TrainingDone,
    WorkerReady,
)
from experiment.records.plan import FrozenInput, Plan
from experiment.records.recipe import Arm, Compute, Recipe
from experiment.sealing.canonical import encode, encode_record
from experiment.sealing.digests import CONTEXT_PLAN, derive, digest_bytes
from experiment.sealing.trees import seal_tree, verify_tree
from tests.doubles.small_assessment import REFERENCE, merge_facts
from tests.doubles.small_plan import small_recipe
from tests.doubles.small_run import SmallRun, draft_run, worker_environment

MODULE = "tests.doubles.stand_in_worker"
ROOT = Path(__file__).resolve().parents[2]
PLAN = Path("plans/small/plan.json")
RUN_DIR = Path("runs/small")

make_pool = partial(WorkerPool, module=MODULE)


class Silent:
    """A watcher that looks away."""

    def stage(self, name: str, detail: str) -> None:
        """Ignore it."""

    def progress(self, key: str, label: str, done: int, total: int) -> None:
        """Ignore it."""

    def note(self, text: str) -> None:
        """Ignore it."""


@dataclass(frozen=True)
class Workspace:
    """A folder with a plan, and the script that its workers play."""

    folder: Path
    script: Path
    plan: Plan

    @property
    def run_dir(self) -> Path:
        """The run's folder."""
        return self.folder / RUN_DIR

    def copy_to(self, folder: Path) -> Workspace:
        """The same workspace in another folder, where its run may go on or be damaged."""
        shutil.copytree(self.folder, folder, dirs_exist_ok=True)
        return Workspace(folder, self.script, self.plan)

    def view(self) -> JournalView:
        """The journal."""
        return read_journal(self.run_dir)

    def environment(self, *, pace_s: float = 0.0, fault: str = "") -> dict[str, str]:
        """What the workers have to find in their environment."""
        return {
            "PYTHONPATH": str(ROOT),
            "STAND_IN_SCRIPT": str(self.script),
            "STAND_IN_PACE": str(pace_s),
            "STAND_IN_FAULT": fault,
        }

    def fork(self, work: Callable[[], Any], *, pace_s: float = 0.0, fault: str = "") -> int:
        """Do `work` in a child process in this folder; returns its pid. Its exit code is that of the error tree."""
        pid = os.fork()
        if pid:
            return pid
        code = 1
        try:
            os.chdir(self.folder)
            os.environ.update(self.environment(pace_s=pace_s, fault=fault))
            work()
            code = 0
        except ExperimentError as error:
            code = error.exit_code
        finally:
            os._exit(code)


def draft_script(folder: Path, recipe: Recipe) -> SmallRun:
    """A script for the workers of any number of runs of a recipe."""
    drafted = draft_run(folder, recipe=recipe)
    _write_events(drafted)
    return drafted


def small_workspace(
    folder: Path, drafted: SmallRun, *, inputs: tuple[FrozenInput, ...] = (), **changes: object
) -> Workspace:
    """A workspace with a plan, sealed and unclaimed; `changes` are made to its recipe, `inputs` are frozen too."""
    recipe = drafted.plan.recipe.model_copy(update=changes)
    frozen = {"environment": freeze_environment(), "inputs": (*drafted.plan.inputs, *inputs)}
    plan = drafted.plan.model_copy(update={**frozen, "recipe": recipe})
    data = encode_record(plan)
    (folder / PLAN).parent.mkdir(parents=True)
    (folder / PLAN).write_bytes(data)
    (folder / PLAN.parent / SEAL_FILE).write_text(f"{derive(CONTEXT_PLAN, data)}\n")
    (folder / "lock.txt").write_bytes(b"lock\n")
    return Workspace(folder, drafted.run_dir, plan)


def stand_in_recipe(**changes: object) -> Recipe:
    """Two arms of four steps, two workers at a time."""
    recipe = small_recipe()
    return recipe.model_copy(update={"compute": Compute(workers=2), **changes})


def one_arm_recipe() -> Recipe:
    """One ECHO arm of four steps, one final seed of each suite: the smallest run that goes through every stage."""
    assessment = small_recipe().assessment.model_copy(update={"seeds": (11,), "retention_seeds": (21,)})
    arms = (Arm(name="echo", algorithm="echo", observation_weight=0.05),)
    return stand_in_recipe(arms=arms, assessment=assessment)


def drive(*, resume: bool = False, qualification_only: bool = False, run_dir: Path = RUN_DIR) -> RunOutcome:
    """Run the plan of the current folder."""
    return run(
        PLAN,
        run_dir,
        Silent(),
        resume=resume,
        qualification_only=qualification_only,
        make_pool=make_pool,
    )


def drive_until(type_: str, number: int, *, before: bool) -> None:
    """Drive the current folder's run, from wherever it is, and die by SIGKILL at a record of this session.

    Args:
        type_: Type of the record.
        number: Which one of this type in this session, from 1.
        before: Die before it is written instead of when it is durable.
    """
    write, left = JournalWriter._record, number

    def fatal(self: JournalWriter, type_now: str, body: Record, *rest: Any) -> Any:
        nonlocal left
        left -= type_now == type_
        if left == 0 and before:
            os.kill(os.getpid(), signal.SIGKILL)
        entry = write(self, type_now, body, *rest)
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return entry

    JournalWriter._record = fatal  # type: ignore[method-assign]
    drive(resume=(RUN_DIR / "journal").is_dir())


def interrupt(workspace: Workspace) -> None:
    """Drive a workspace's run into training and kill it there, with half a record at the journal's end."""
    dead = exit_code(workspace.fork(partial(drive_until, "train.step", 3, before=False)))
    assert dead == -signal.SIGKILL
    with (workspace.run_dir / "journal/000000.jsonl").open("ab") as stream:
        stream.write(b'{"h":"0123')


def finish(workspace: Workspace) -> None:
    """Resume a workspace's run and bring it to its end."""
    assert exit_code(workspace.fork(partial(drive, resume=True))) == 0


def exit_code(pid: int) -> int:
    """Wait for a child; returns its exit code, or minus the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def end(pid: int) -> None:
    """End a child of this process, if it is still there."""
    with suppress(ProcessLookupError, ChildProcessError):
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _write_events(drafted: SmallRun) -> None:
    script, marks = drafted.run_dir, drafted.plan.recipe.checkpoints
    # A workspace's plan freezes this environment, and its workers say that they run in it.
    ready = WorkerReady(environment=worker_environment(importlib.metadata.version("torch")))
    _write_event(script / "events" / "ready", ready)
    total = drafted.plan.recipe.training.steps
    planned = {step for step in range(1, total + 1) if step % marks.recovery_every == 0}
    (script / "marks.json").write_bytes(encode(sorted(planned | {*marks.candidates, marks.diagnostic})))
    for _, body, artifacts in drafted.records:
        if isinstance(body, TrainStep):
            _write_step(script, body, artifacts[0].size)
        elif isinstance(body, EvaluationFinished):
            place = f"{body.key.stage}/{body.key.arm}@{body.key.step}/{body.key.suite}-{body.key.seed}"
            done = EvaluationDone(
                key=body.key,
                evidence=body.evidence,
                evidence_path="@EVIDENCE@",
                evidence_bytes=artifacts[0].size,
                outcomes=body.outcomes,
                seconds=body.seconds,
            )
            _write_event(script / "events" / place, done)


def _write_step(script: Path, body: TrainStep, size: int) -> None:
    arm, step = body.arm, body.facts.step
    events, checkpoint = script / "events" / arm, script / "checkpoints" / arm / f"step-{step:06d}"
    if not checkpoint.exists():
        draft = script / f"draft-{arm}-{step}"
        draft.mkdir()
        (draft / "adapter.bin").write_bytes(f"{arm} {step}".encode())
        checkpoint.parent.mkdir(parents=True, exist_ok=True)
        seal_tree(draft, checkpoint)
    done = StepDone(
        facts=body.facts,
        families=body.families,
        ends=body.ends,
        divergences=body.divergences,
        seconds=body.seconds,
        rollout_seconds=body.rollout_seconds,
        evidence_path="@EVIDENCE@",
        evidence_bytes=size,
    )
    _write_event(events / f"step-{step:06d}", done)
    state = tuple((part, digest_bytes(f"{arm} {step} {part}".encode())) for part in ("adapter", "optimizer"))
    sealed = (*state, reference_part(REFERENCE))
    tree = verify_tree(checkpoint).tree
    facts = merge_facts(dict(state)["adapter"])
    _write_event(events / f"merge-{step:06d}", MergeDone(arm=arm, step=step, facts=facts))
    _write_event(
        events / f"checkpoint-{step:06d}", CheckpointDone(step=step, path="@CHECKPOINT@", tree=tree, state=sealed)
    )
    _write_event(events / f"done-{step:06d}", TrainingDone(step=step, state=state, reference=REFERENCE))


def _write_event(path: Path, event: Record) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encode({"event": type(event).__name__, "body": event.model_dump(mode="json")}))
