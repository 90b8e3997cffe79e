"""Where a run is: read from its journal at any time, without waiting for a lock and without writing."""

from __future__ import annotations

import fcntl
import os
import statistics
import unicodedata
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import ValidationError
from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from experiment.errors import UsageError
from experiment.journal.lock import LOCK_NAME, Holder
from experiment.journal.progress import Progress, active_seconds, fold_progress
from experiment.journal.reader import JournalView, read_journal
from experiment.records.entry import Aborted, Closed, Warned
from experiment.records.plan import Plan
from experiment.report.facts import load_plan

Stage = Literal["qualify", "train", "select", "assess", "finished", "qualification failed"]
_RECENT = 8
"""Steps that the estimate of the remaining time rests on."""
_SHOWN_WARNINGS = 5
_MINUTE = 60
_MONITORS = ("strict", "reward", "kl", "entropy", "observation_ce", "gap_max_nats")


@dataclass(frozen=True, slots=True)
class ArmStatus:
    """How far one arm is."""

    name: str
    steps: int
    seconds_per_step: float | None
    """Median of the latest steps; None before the first."""
    monitors: tuple[tuple[str, float], ...]
    """Those of the last step."""


@dataclass(frozen=True, slots=True)
class Status:
    """A run at one moment."""

    run: str
    stage: Stage
    detail: str
    """How much of the stage is done."""
    total_steps: int
    arms: tuple[ArmStatus, ...]
    remaining_seconds: float | None
    """Estimate for the rest of the training stage, from recent steps; None where there is nothing to go by."""
    active_seconds: float
    budget_seconds: float
    holder: str | None
    """Who works on the run at this moment; None where nobody does."""
    stopped: str | None
    """Why the last session ended early, where it did and nothing followed."""
    warnings: tuple[str, ...]
    head: str

    @property
    def is_live(self) -> bool:
        """Whether a process works on the run at this moment."""
        return self.holder is not None


def read_status(run_dir: Path) -> Status:
    """Return where a run is; safe at any time, also while another process writes to it.

    Raises:
        UsageError: There is no run in the directory.
        JournalError: The journal is damaged.
        PlanError: The run's plan is not the one its journal names.
    """
    if not (run_dir / "journal").is_dir():
        message = f"{run_dir}: there is no run"
        raise UsageError(message, remedy="Name the run's own directory, the one that holds `journal/`.")
    view = read_journal(run_dir)
    plan = load_plan(run_dir, view)
    progress = fold_progress(view.entries)
    stage, detail = _stage(plan, view, progress)
    arms = tuple(_arm(progress, arm.name) for arm in plan.recipe.arms)
    return Status(
        run=view.run,
        stage=stage,
        detail=detail,
        total_steps=len(plan.schedule),
        arms=arms,
        remaining_seconds=_remaining(plan, arms) if stage == "train" else None,
        active_seconds=active_seconds(view.entries),
        budget_seconds=plan.recipe.budget_hours * 3600,
        holder=lock_holder(run_dir),
        stopped=_stopped(view),
        warnings=tuple(f"{each.kind}: {each.message}" for each in _warnings(view)),
        head=f"{view.run} {len(view.entries)} b3:{view.head}",
    )


def lock_holder(run_dir: Path) -> str | None:
    """Return who holds the run's lock, or None where it is free; a reader's lock is tried and given back at once."""
    try:
        fd = os.open(run_dir / LOCK_NAME, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        try:
            holder = Holder.model_validate_json(os.pread(fd, 4096, 0))
        except ValidationError:
            return "another process"
        return f"pid {holder.pid} on {holder.host}, since {holder.since}"
    finally:
        os.close(fd)
    return None


def _warnings(view: JournalView) -> list[Warned]:
    return [entry.body for entry in view.entries if isinstance(entry.body, Warned)]


def _stopped(view: JournalView) -> str | None:
    body = view.entries[-1].body
    if not isinstance(body, Aborted):
        return None
    return f"{body.kind}: {body.message}{'' if body.resumable else ' (cannot be resumed)'}"


def _stage(plan: Plan, view: JournalView, progress: Progress) -> tuple[Stage, str]:
    arms = [arm.name for arm in plan.recipe.arms]
    last = view.entries[-1].body
    if any(not result.verdict.passed for result in progress.qualified.values()):
        return "qualification failed", "branches that had to be equal were not"
    if isinstance(last, Closed):
        return "finished", last.outcome
    if len(progress.qualified) < len(arms):
        return "qualify", f"{len(progress.branches)} of {3 * len(arms)} branches"
    if len(progress.trained) < len(arms):
        return "train", f"{len(progress.steps)} of {len(arms) * len(plan.schedule)} steps"
    played = {stage: sum(key.stage == stage for key in progress.evaluations) for stage in ("dev", "final")}
    if len(progress.selections) < len(arms):
        total = 2 * (1 + len(arms) * len(plan.recipe.checkpoints.candidates))
        return "select", f"{played['dev']} of {total} DEV evaluations"
    assessment = plan.recipe.assessment
    total = (1 + len(arms)) * (len(assessment.seeds) + len(assessment.retention_seeds))
    return "assess", f"{played['final']} of {total} final evaluations"


def _arm(progress: Progress, name: str) -> ArmStatus:
    history = progress.history(name)
    metrics = dict(history[-1].facts.metrics) if history else {}
    return ArmStatus(
        name=name,
        steps=len(history),
        seconds_per_step=statistics.median(step.seconds for step in history[-_RECENT:]) if history else None,
        monitors=tuple((monitor, metrics[monitor]) for monitor in _MONITORS if monitor in metrics),
    )


def _remaining(plan: Plan, arms: tuple[ArmStatus, ...]) -> float | None:
    """Time for the steps still to do; arms share the workers that the plan allows."""
    known = [arm.seconds_per_step for arm in arms if arm.seconds_per_step is not None]
    if not known:
        return None
    typical = statistics.median(known)
    work = [(len(plan.schedule) - arm.steps) * (arm.seconds_per_step or typical) for arm in arms]
    workers = min(plan.recipe.compute.workers, len(arms))
    return max(*work, sum(work) / workers) if len(work) > 1 else work[0]


def render_status(status: Status) -> RenderableType:
    """Return a status as something that rich prints; text of the run cannot carry markup or control characters."""
    return Group(
        _headline(status),
        _arms(status),
        _clock(status),
        *(Text(_plain(f"! {warning}"), style="yellow") for warning in status.warnings[-_SHOWN_WARNINGS:]),
        Text(f"head {_plain(status.head)}", style="dim"),
    )


def _plain(text: str) -> str:
    return "".join(char if unicodedata.category(char)[0] not in "CZ" or char == " " else "\ufffd" for char in text)


def _headline(status: Status) -> Text:
    text = Text(_plain(status.run), style="bold")
    text.append(f"  {status.stage}", style="bold red" if status.stage == "qualification failed" else "bold cyan")
    text.append(f"  {_plain(status.detail)}\n")
    if status.holder is not None:
        text.append(f"live: {_plain(status.holder)}", style="green")
    elif status.stopped is not None:
        text.append(f"stopped by {_plain(status.stopped)}", style="red")
    else:
        text.append("nobody works on it", style="dim" if status.stage == "finished" else "yellow")
    return text


def _arms(status: Status) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in ("arm", "steps", "", "per step", "last step"):
        table.add_column(title)
    for arm in status.arms:
        monitors = "  ".join(f"{name} {value:.3g}" for name, value in arm.monitors)
        table.add_row(
            Text(_plain(arm.name)),
            f"{arm.steps}/{status.total_steps}",
            ProgressBar(total=status.total_steps, completed=arm.steps, width=24),
            "" if arm.seconds_per_step is None else f"{arm.seconds_per_step:.1f} s",
            Text(_plain(monitors)),
        )
    return table


def _clock(status: Status) -> Text:
    share = status.active_seconds / status.budget_seconds
    text = Text(f"budget {duration(status.active_seconds)} of {duration(status.budget_seconds)} ({share:.0%})")
    if status.remaining_seconds is not None:
        text.append(f", training needs about {duration(status.remaining_seconds)} more")
    return text


def duration(seconds: float) -> str:
    """Seconds as people say them, for example `1 h 05 min`."""
    if round(seconds) < _MINUTE:
        return f"{round(seconds)} s"
    hours, minutes = divmod(round(seconds / _MINUTE), _MINUTE)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min"
