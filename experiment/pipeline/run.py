"""One run of a plan: qualify, train, select, assess.

Read this first. Each stage looks in the journal for what is done and does the rest; a stage whose gate fails ends
the run. Everything that decides is recomputed by the audit from the journal alone.
"""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from experiment.errors import BudgetExhaustedError, ExperimentError, PlanError, QualificationError, UsageError
from experiment.journal.progress import active_seconds
from experiment.journal.reader import read_journal
from experiment.journal.writer import JournalWriter
from experiment.pipeline.context import RunContext, Watcher
from experiment.pipeline.inputs import verify_inputs
from experiment.pipeline.prepare import PLAN_FILE, load_plan
from experiment.pipeline.stage1_qualify import qualify
from experiment.pipeline.stage2_train import train
from experiment.pipeline.stage3_select import select
from experiment.pipeline.stage4_assess import assess
from experiment.pipeline.workers import WorkerPool
from experiment.records.entry import Aborted, Closed, Genesis, InputsVerified
from experiment.records.plan import Plan
from experiment.records.verdict import Comparison
from experiment.sealing.canonical import encode_record
from experiment.sealing.files import write_atomic
from experiment.sealing.sources import scan_sources

CLAIM_FILE: Final = "claim"


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """How a session ended."""

    run_dir: Path
    head: str
    comparisons: tuple[Comparison, ...]
    """Empty after `--qualification-only`."""


def run(
    plan_path: Path,
    run_dir: Path,
    watcher: Watcher,
    *,
    qualification_only: bool = False,
    resume: bool = False,
) -> RunOutcome:
    """Bring a run as far as it goes.

    Raises:
        UsageError: There is something to resume and `resume` was not given, or the reverse.
        PlanError: An input is not what the plan froze, or the plan belongs to another run.
        QualificationError: An equality did not hold.
        BudgetExhaustedError: The plan's wall budget is spent.
        StoppedError: A stop was requested; the run is resumable.
        ExperimentError: A fault; the run is resumable.
    """
    plan, digest = load_plan(plan_path)
    journal = _open_journal(plan, digest, plan_path, run_dir, resume=resume)
    pool = WorkerPool(plan.recipe.compute, run_dir / "logs")
    context = RunContext(plan, plan_path, run_dir, journal, pool, watcher)
    try:
        with _stop_signals(pool), _aborts_recorded(journal):
            size = verify_inputs(plan)
            context.append("inputs.verified", InputsVerified(inputs=len(plan.inputs), size_bytes=size))
            return _stages(context, qualification_only=qualification_only)
    finally:
        journal.release()


def unfinished_plan(*, resume: bool) -> Path:
    """The one plan under `plans/` that has not been run to its end.

    Args:
        resume: Look for a plan whose run was begun; else for one that nobody has claimed.

    Raises:
        UsageError: There is none, or more than one; the message lists them.
    """
    found = [
        path
        for path in sorted(Path("plans").glob(f"*/{PLAN_FILE}"))
        if (path.parent / CLAIM_FILE).exists() == resume and not _is_finished(path)
    ]
    if len(found) == 1:
        return found[0]
    kind = "interrupted" if resume else "new"
    listed = ", ".join(map(str, found)) or "none"
    message = f"plans/: {len(found)} {kind} plans ({listed})"
    raise UsageError(message, remedy="Name one with --plan, or make one with `python -m experiment prepare`.")


def _is_finished(plan_path: Path) -> bool:
    claim = plan_path.parent / CLAIM_FILE
    run_dir = Path("runs") / (claim.read_text(encoding="utf-8").strip() if claim.exists() else plan_path.parent.name)
    return (run_dir / "journal").is_dir() and read_journal(run_dir).is_closed


def _stages(context: RunContext, *, qualification_only: bool) -> RunOutcome:
    """The main path."""
    _check_budget(context)
    qualify(context)
    if qualification_only:
        return RunOutcome(context.run_dir, context.journal.mark(), ())
    _check_budget(context)
    train(context)
    _check_budget(context)
    select(context)
    _check_budget(context)
    comparisons = assess(context)
    closed = Closed(records=0, outcome="assessed", active_seconds=active_seconds(context.journal.entries))
    return RunOutcome(context.run_dir, context.journal.close(closed), comparisons)


def _open_journal(plan: Plan, digest: str, plan_path: Path, run_dir: Path, *, resume: bool) -> JournalWriter:
    has_journal = (run_dir / "journal").exists()
    if has_journal and not resume:
        message = f"{run_dir}: there is a run already"
        raise UsageError(message, remedy="Continue it with --resume, or prepare a fresh plan for another run.")
    if resume and not has_journal:
        message = f"{run_dir}: there is nothing to resume"
        raise UsageError(message, remedy="Start without --resume, or name the run's folder with --run-dir.")
    if resume:
        return JournalWriter.resume(run_dir, plan=digest, reason="continued by the operator")
    return _start(plan, digest, plan_path, run_dir)


def _start(plan: Plan, digest: str, plan_path: Path, run_dir: Path) -> JournalWriter:
    """Claim the plan, so that it has one run and no other, and begin the journal."""
    if run_dir.exists() and any(run_dir.iterdir()):
        message = f"{run_dir}: not empty"
        raise UsageError(message, remedy="Name a fresh folder with --run-dir.")
    verify_inputs(plan)  # before anything is written
    claim = plan_path.parent / CLAIM_FILE
    try:
        with claim.open("x", encoding="utf-8") as file:
            file.write(f"{run_dir.name}\n")
    except FileExistsError:
        owner = claim.read_text(encoding="utf-8").strip()
        if owner != run_dir.name:
            message = f"{plan_path}: the plan's one run is '{owner}'"
            raise PlanError(message, remedy="Prepare a fresh plan; name this one in `supersedes`.") from None
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


def _check_budget(context: RunContext) -> None:
    spent, hours = active_seconds(context.journal.entries), context.plan.recipe.budget_hours
    if spent >= hours * 3600:
        message = f"{context.run_dir}: {spent / 3600:.2f} of {hours:.2f} hours are spent"
        raise BudgetExhaustedError(message)


@contextmanager
def _aborts_recorded(journal: JournalWriter) -> Iterator[None]:
    """Record why a session ended early, where the journal can still be written."""
    try:
        yield
    except ExperimentError as error:
        resumable = not isinstance(error, QualificationError | PlanError)
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
