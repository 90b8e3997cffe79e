"""One run of a plan: qualify, train, select, assess.

Read this first. Each stage looks in the journal for what is done and does the rest; a stage whose gate fails ends
the run. Everything that decides is recomputed by the audit from the journal alone.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from experiment.environments.catalogue import running_services
from experiment.errors import BudgetExhaustedError, ExperimentError, PlanError, QualificationError, UsageError
from experiment.journal.lock import LOCK_NAME
from experiment.journal.progress import active_seconds, fold_progress
from experiment.journal.reader import JOURNAL_NAME, read_journal
from experiment.journal.writer import JournalWriter
from experiment.pipeline.context import RunContext, Watcher
from experiment.pipeline.inputs import verify_inputs, verify_world
from experiment.pipeline.prepare import CLAIM_FILE, PLAN_FILE, list_folder, load_plan
from experiment.pipeline.stage1_qualify import qualify
from experiment.pipeline.stage2_train import train
from experiment.pipeline.stage3_select import select
from experiment.pipeline.stage4_assess import assess
from experiment.pipeline.workers import WorkerPool
from experiment.records.entry import Aborted, Closed, Genesis, InputsVerified
from experiment.records.plan import Plan
from experiment.records.verdict import Comparison
from experiment.sealing.canonical import encode_record
from experiment.sealing.digests import CONTEXT_PLAN, derive
from experiment.sealing.files import FILES, write_atomic
from experiment.sealing.sources import scan_sources


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """How a session ended."""

    run_dir: Path
    head: str
    comparisons: tuple[Comparison, ...]
    """Empty after `--qualification-only`."""


def run(  # noqa: PLR0913 - each is a choice of whoever starts it
    plan_path: Path,
    run_dir: Path,
    watcher: Watcher,
    *,
    qualification_only: bool = False,
    resume: bool = False,
    gym_python: Path | None = None,
    make_pool: Callable[..., WorkerPool] = WorkerPool,
) -> RunOutcome:
    """Bring a run as far as it goes.

    Args:
        plan_path: The plan, as `prepare` wrote it.
        run_dir: The run's folder.
        watcher: Is told how far the work is.
        qualification_only: Stop after stage 1.
        resume: Go on with the run that is there, instead of beginning one.
        gym_python: Interpreter of NeMo Gym's environment; None takes the one that `make gym-env` makes.
        make_pool: Makes the workers' pool from what they may use, the folder of their logs, and the world's services.

    Raises:
        UsageError: There is something to resume and `resume` was not given, or the reverse.
        PlanError: An input is not what the plan froze, or the plan belongs to another run.
        QualificationError: An equality did not hold.
        BudgetExhaustedError: The plan's wall budget is spent.
        StoppedError: A stop was requested; the run is resumable.
        ExperimentError: A fault; the run is resumable.
    """
    plan, digest = load_plan(plan_path)
    if not resume:
        verify_world(plan, gym_python)  # before anything is written
    journal = _open_journal(plan, digest, plan_path, run_dir, resume=resume)
    logs = run_dir / "logs"
    try:
        with running_services(plan.recipe.world, logs / "services", gym_python) as services:
            pool = make_pool(plan.recipe.compute, logs, services=services)
            context = RunContext(plan, plan_path, run_dir, journal, pool, watcher)
            with _stop_signals(pool), _aborts_recorded(journal):
                if resume:
                    verify_inputs(plan)  # a fresh start has done so before it wrote anything
                    verify_world(plan, gym_python)
                size = sum(frozen.size_bytes for frozen in plan.inputs)
                context.append("inputs.verified", InputsVerified(inputs=len(plan.inputs), size_bytes=size))
                return _stages(context, qualification_only=qualification_only)
    finally:
        journal.release()


def unfinished_plan(*, resume: bool) -> Path:
    """The one plan under `plans/` that has not been run to its end.

    Args:
        resume: Look for a plan whose run was begun; else for one that has no run.

    Raises:
        UsageError: There is none, or more than one; the message lists them.
        JournalError: A run's journal is damaged.
    """
    found = []
    for path in sorted(Path("plans").glob(f"*/{PLAN_FILE}")):
        run_dir = run_dir_of(path)
        has_begun = (run_dir / JOURNAL_NAME).is_dir()
        if has_begun == resume and not (has_begun and read_journal(run_dir).is_closed):
            found.append(path)
    if len(found) == 1:
        return found[0]
    kind = "interrupted" if resume else "new"
    listed = ", ".join(map(str, found)) or "none"
    message = f"plans/: {len(found)} {kind} plans ({listed})"
    raise UsageError(message, remedy="Name one with --plan, or make one with `python -m experiment prepare`.")


def run_dir_of(plan_path: Path) -> Path:
    """The folder of the run that claimed a plan; where none did, the default one, named like the plan's folder."""
    claim = plan_path.parent / CLAIM_FILE
    if not claim.is_file():
        return Path("runs") / plan_path.resolve().parent.name
    _, _, place = claim.read_text(encoding="utf-8").rstrip("\n").partition(" ")
    return Path(os.path.relpath(plan_path.resolve().parent / place))


def _stages(context: RunContext, *, qualification_only: bool) -> RunOutcome:
    """The main path."""
    context.check_budget()
    _qualify_or_close(context)
    if qualification_only:
        return RunOutcome(context.run_dir, context.journal.mark(), ())
    train(context)
    select(context)
    comparisons = assess(context)
    closed = Closed(records=0, outcome="assessed", active_seconds=active_seconds(context.journal.entries))
    return RunOutcome(context.run_dir, context.journal.close(closed), comparisons)


def _qualify_or_close(context: RunContext) -> None:
    """Qualify; a failed proof is an honest end of the run, which nothing may follow."""
    try:
        qualify(context)
    except QualificationError:
        entries = context.journal.entries
        # A worker may also report that a restored state is not the sealed one; then there is no verdict yet.
        if any(not each.verdict.passed for each in fold_progress(entries).qualified.values()):
            closed = Closed(records=0, outcome="qualification_failed", active_seconds=active_seconds(entries))
            context.journal.close(closed)
        raise


def _open_journal(plan: Plan, digest: str, plan_path: Path, run_dir: Path, *, resume: bool) -> JournalWriter:
    has_journal = (run_dir / JOURNAL_NAME).exists()
    if has_journal and not resume:
        message = f"{run_dir}: there is a run already"
        raise UsageError(message, remedy="Continue it with --resume, or prepare a fresh plan for another run.")
    if resume and not has_journal:
        message = f"{run_dir}: there is nothing to resume"
        raise UsageError(message, remedy="Start without --resume, or name the run's folder with --run-dir.")
    if not resume:
        return _start(plan, digest, plan_path, run_dir)
    journal = JournalWriter.resume(run_dir, plan=digest, reason="continued by the operator")
    copy = run_dir / PLAN_FILE
    if not copy.is_file() or derive(CONTEXT_PLAN, copy.read_bytes()) != digest:
        journal.release()
        message = f"{copy}: is not the plan of this run"
        raise PlanError(message, remedy=f"Copy {plan_path} there and run the same command again.")
    return journal


def _start(plan: Plan, digest: str, plan_path: Path, run_dir: Path) -> JournalWriter:
    """Claim the plan, so that it has one run and no other, and begin the journal."""
    _check_fresh(run_dir, is_ours=(plan_path.parent / CLAIM_FILE).is_file())
    verify_inputs(plan)  # before anything is written
    claim = _claim(plan_path, run_dir)
    run_dir.mkdir(parents=True, exist_ok=True)
    write_atomic(run_dir / PLAN_FILE, encode_record(plan))
    sources = scan_sources()
    genesis = Genesis(
        plan=digest,
        plan_schema=plan.schema_id,
        sources=sources.digest,
        claim=str(claim),
        journal_code=sources.digest,
        host=socket.gethostname(),
    )
    return JournalWriter.create(run_dir, run=run_dir.name, genesis=genesis)


def _check_fresh(run_dir: Path, *, is_ours: bool) -> None:
    """Refuse a folder that holds anything but, where the plan is claimed, what a start leaves when it is killed."""
    names = set(list_folder(run_dir))
    if is_ours:
        names = {name for name in names - {PLAN_FILE, LOCK_NAME} if not name.startswith(".")}
    if names:
        message = f"{run_dir}: not empty, it holds {min(names)}"
        raise UsageError(message, remedy="Name a fresh folder with --run-dir.")


def _claim(plan_path: Path, run_dir: Path) -> Path:
    """Make a folder the plan's one run, or find that it is; the claim names it as seen from the plan's folder."""
    claim = plan_path.parent / CLAIM_FILE
    place = os.path.relpath(run_dir.resolve(), claim.resolve().parent)
    draft = plan_path.parent / f".{CLAIM_FILE}.{os.getpid()}"
    write_atomic(draft, f"{run_dir.name} {place}\n".encode())
    try:
        FILES.rename(draft, claim)
    except FileExistsError:
        draft.unlink()
        owner = run_dir_of(plan_path)
        if owner.resolve() != run_dir.resolve():
            message = f"{plan_path}: the plan's one run is {owner}"
            raise PlanError(message, remedy="Prepare a fresh plan; name this one in `supersedes`.") from None
    FILES.fsync_path(claim.parent)
    return claim


@contextmanager
def _aborts_recorded(journal: JournalWriter) -> Iterator[None]:
    """Record why a session ended early, where the journal can still be written."""
    try:
        yield
    except ExperimentError as error:
        resumable = not isinstance(error, QualificationError | BudgetExhaustedError)
        body = Aborted(
            kind=type(error).__name__, message=str(error)[:4000], exit_code=error.exit_code, resumable=resumable
        )
        try:
            journal.append("abort", body)
            journal.mark()
        except ExperimentError:
            pass  # the first error says more than the journal's refusal to record it
        raise


@contextmanager
def _stop_signals(pool: WorkerPool) -> Iterator[None]:
    """Let Ctrl-C and SIGTERM ask for an orderly stop; a second one ends the workers at once."""

    def ask(_signum: int, _frame: object) -> None:
        pool.request_stop()

    handlers: dict[int, Callable[..., object] | int | None] = {
        number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
