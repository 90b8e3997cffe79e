"""Stage 1: each arm proves that stopping and resuming changes no bit.

Three branches of a few steps, each in fresh processes: `straight` through, `repeated` the same again (which tells plain
nondeterminism from a resume fault), and `resumed`, which is stopped half way by the path that any stop takes and goes
on in a new process. All states and all evidence must be equal. Nothing stochastic is switched off.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Literal

from experiment.decisions.equality import compare_branches
from experiment.errors import FaultError, QualificationError
from experiment.journal.progress import fold_progress
from experiment.pipeline.context import RunContext
from experiment.pipeline.workers import Chain, Task
from experiment.records.base import Record
from experiment.records.entry import BranchFinished, QualificationResult, StepFacts
from experiment.records.job import Progressed, StepDone, TrainingDone, TrainJob
from experiment.records.rollout import TrainedRollout
from experiment.records.verdict import EqualityVerdict
from experiment.sealing.canonical import decode, decode_record, encode
from experiment.sealing.digests import digest_bytes
from experiment.sealing.files import write_atomic

Branch = Literal["straight", "repeated", "resumed"]
BRANCHES: Final[tuple[Branch, ...]] = ("straight", "repeated", "resumed")
STATE_FILE: Final = "state.json"


def qualify(context: RunContext) -> None:
    """Leave a passed verdict for every arm in the journal.

    Raises:
        QualificationError: Branches differ; the verdict and all evidence are kept.
        FaultError: A worker broke or did too little.
    """
    progress = fold_progress(context.journal.entries)
    arms = [arm.name for arm in context.plan.recipe.arms]
    missing = [(arm, branch) for arm in arms for branch in BRANCHES if (arm, branch) not in progress.branches]
    if missing:
        steps = context.plan.recipe.qualification
        detail = f"{steps.steps} steps straight, again, and stopped at {steps.stop_at}; all bits must be equal"
        context.watcher.stage("qualify", detail)
        _run_branches(context, missing)
    for arm in arms:
        if arm not in progress.qualified:
            _judge(context, arm)
    for result in fold_progress(context.journal.entries).qualified.values():
        if not result.verdict.passed:
            first = result.verdict.divergences[0]
            message = (
                f"arm {result.arm}: branch '{first.branch}' differs first at {first.place} "
                f"(expected {first.expected}, found {first.found})"
            )
            raise QualificationError(message)


def branch_dir(run_dir: Path, arm: str, branch: str) -> Path:
    """Folder of one branch's evidence and state."""
    return run_dir / "qualification" / arm / branch


def _run_branches(context: RunContext, missing: list[tuple[str, Branch]]) -> None:
    steps: dict[str, list[StepDone]] = {}

    def on_event(key: str, event: Record) -> None:
        if isinstance(event, Progressed):
            context.watcher.progress(f"qualify/{key}", key, event.done, context.plan.recipe.qualification.steps)
        elif isinstance(event, StepDone):
            steps.setdefault(key, []).append(event)
            done, total = event.facts.step, context.plan.recipe.qualification.steps
            context.watcher.progress(f"qualify/{key}", key, done, total)
        elif isinstance(event, TrainingDone) and event.step == context.plan.recipe.qualification.steps:
            _record_branch(context, key, steps[key], event)

    by_branch = {branch: [arm for arm, other in missing if other == branch] for branch in BRANCHES}
    # The branch with two processes goes first, so that workers side by side end together.
    order = sorted((branch for branch in BRANCHES if by_branch[branch]), key=lambda branch: branch != "resumed")
    context.work([_chain(context, by_branch[branch], branch) for branch in order], on_event)
    _require_branches(context, missing)


def _require_branches(context: RunContext, missing: list[tuple[str, Branch]]) -> None:
    """Return only if every branch is recorded: a worker that does too little ends like one that does its job."""
    recorded, last = fold_progress(context.journal.entries).branches, context.plan.recipe.qualification.steps
    for arm, branch in missing:
        if (arm, branch) not in recorded:
            message = f"arm {arm}, branch '{branch}': its worker ended in good order before step {last}"
            raise FaultError(message)


def _chain(context: RunContext, arms: Sequence[str], branch: Branch) -> Chain:
    """One branch of all arms: they share its processes, because starting one costs more than the steps."""
    settings = context.plan.recipe.qualification
    half = settings.stop_at

    def job(stop_at: int, resume_at: int | None) -> Callable[[], Sequence[Task]]:
        return lambda: [_task(context, arm, branch, stop_at, resume_at) for arm in arms]

    legs = [(half, None), (settings.steps, half)] if branch == "resumed" else [(settings.steps, None)]
    return Chain(tuple(f"{arm}/{branch}" for arm in arms), [job(*leg) for leg in legs])


def _task(context: RunContext, arm: str, branch: Branch, stop_at: int, resume_at: int | None) -> TrainJob:
    folder = branch_dir(context.run_dir, arm, branch)
    return TrainJob(
        plan_path=str(context.run_dir / "plan.json"),
        arm=arm,
        evidence_dir=str(folder / "evidence"),
        checkpoint_dir=str(folder / "checkpoints"),
        recovery_dir=context.recovery_dir,
        work_dir=str(context.run_dir / "work" / f"qualify-{arm}-{branch}"),
        resume_from=None if resume_at is None else str(folder / "checkpoints" / f"step-{resume_at:06d}"),
        stop_at=stop_at,
    )


def _record_branch(context: RunContext, key: str, steps: list[StepDone], done: TrainingDone) -> None:
    arm, _, branch = key.partition("/")
    path = branch_dir(context.run_dir, arm, branch) / STATE_FILE
    data = encode(dict(done.state))
    write_atomic(path, data)
    artifacts = [
        context.artifact(each.evidence_path, each.facts.evidence, each.evidence_bytes, "evidence") for each in steps
    ]
    artifacts.append(context.artifact(str(path), digest_bytes(data), len(data), "state"))
    body = BranchFinished(
        arm=arm,
        branch=_branch(branch),
        steps=tuple(each.facts for each in steps),
        state=done.state,
        reference=done.reference,
    )
    context.append("qual.branch", body, artifacts)


def _judge(context: RunContext, arm: str) -> None:
    progress = fold_progress(context.journal.entries)
    straight, *others = (progress.branches[arm, branch] for branch in BRANCHES)
    verdict = decide_equality(context.run_dir, straight, tuple(others))
    context.append("qual.result", QualificationResult(arm=arm, verdict=verdict))
    context.watcher.note(f"{arm}: {verdict.compared} digests and values compared, passed: {verdict.passed}")


def decide_equality(run_dir: Path, straight: BranchFinished, others: tuple[BranchFinished, ...]) -> EqualityVerdict:
    """The verdict on branches whose evidence lies under a run's folder."""
    branches = (straight, *others)
    evidence: dict[str, list[list[TrainedRollout]]] = {
        each.branch: [_read_step(run_dir, each, facts) for facts in each.steps] for each in branches
    }
    states: dict[str, dict[str, str]] = {
        each.branch: _read_state(branch_dir(run_dir, each.arm, each.branch) / STATE_FILE) for each in branches
    }
    return compare_branches(straight, others, evidence, states)


def _read_step(run_dir: Path, branch: BranchFinished, facts: StepFacts) -> list[TrainedRollout]:
    path = branch_dir(run_dir, branch.arm, branch.branch) / "evidence" / f"step-{facts.step:06d}.jsonl"
    return [decode_record(TrainedRollout, line) for line in path.read_bytes().splitlines()]


def _read_state(path: Path) -> dict[str, str]:
    state = decode(path.read_bytes())
    if not isinstance(state, dict):
        message = f"{path}: not a mapping"
        raise FaultError(message)
    return {str(name): str(digest) for name, digest in state.items()}


def _branch(name: str) -> Branch:
    for branch in BRANCHES:
        if branch == name:
            return branch
    message = f"no branch '{name}'"
    raise FaultError(message)
