from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from experiment.errors import BudgetExhaustedError, PlanError
from experiment.journal.clock import CLOCK
from experiment.journal.writer import JournalWriter
from experiment.pipeline.context import RunContext
from experiment.pipeline.workers import Chain, WorkerPool
from experiment.records.base import Record
from experiment.records.entry import EnvironmentObserved
from experiment.records.job import Progressed, WorkerReady
from experiment.records.recipe import Compute
from tests.doubles.small_journal import SetClock, note, resume, start
from tests.doubles.small_plan import small_plan, small_recipe
from tests.doubles.small_run import worker_environment
from tests.doubles.stand_in_run import Silent

DAY_S = 86_400


def _context(run_dir: Path, journal: JournalWriter, budget_s: float) -> RunContext:
    recipe = small_recipe().model_copy(update={"budget_hours": budget_s / 3600})
    pool = WorkerPool(Compute(), run_dir / "logs")
    return RunContext(small_plan(recipe), Path("plans/small/plan.json"), run_dir, journal, pool, Silent())


def _clock(seconds_ago: float, wall: int = 0) -> SetClock:
    """A clock that read so much less than the machine's own does now; its next reading is one second later."""
    return SetClock(seconds=wall, mono_us=CLOCK.now().mono_us - int((seconds_ago + 1) * 1e6))


def test_time_since_the_last_record_is_spent_too(tmp_path: Path) -> None:
    journal = start(tmp_path, clock=_clock(100))
    _context(tmp_path, journal, budget_s=160).check_budget()
    with pytest.raises(BudgetExhaustedError, match=r"hours are spent"):
        _context(tmp_path, journal, budget_s=90).check_budget()
    journal.release()


def test_sessions_add_up_and_the_time_between_them_does_not(tmp_path: Path) -> None:
    clock = _clock(500)
    first = start(tmp_path, clock=clock)
    clock.mono_us += 98_000_000
    first.append("warn", note("99 seconds later"))
    first.release()
    second = resume(tmp_path, clock=_clock(20))
    _context(tmp_path, second, budget_s=180).check_budget()
    with pytest.raises(BudgetExhaustedError):
        _context(tmp_path, second, budget_s=115).check_budget()
    second.release()


@pytest.mark.parametrize("jump_s", [3600, -3600])
def test_a_changed_wall_clock_neither_grants_nor_costs_budget(tmp_path: Path, jump_s: int) -> None:
    clock = _clock(50, wall=DAY_S // 2)
    journal = start(tmp_path, clock=clock)
    clock.seconds += jump_s
    journal.append("warn", note("the clock was changed"))
    _context(tmp_path, journal, budget_s=110).check_budget()
    with pytest.raises(BudgetExhaustedError):
        _context(tmp_path, journal, budget_s=45).check_budget()
    journal.release()


class ToldPool(WorkerPool):
    """A pool whose workers say what they are told to say."""

    def __init__(self, *events: Record) -> None:
        self._events = events

    def run(
        self, chains: Sequence[Chain], on_event: Callable[[str, Record], None], may_go_on: Callable[[], None]
    ) -> None:
        for event in self._events:
            on_event("grpo", event)


def _work(run_dir: Path, journal: JournalWriter, *events: Record) -> list[Record]:
    seen: list[Record] = []
    context = replace(_context(run_dir, journal, 100), pool=ToldPool(*events))
    context.work([], lambda _, event: seen.append(event))
    return seen


READY = WorkerReady(environment=worker_environment("2.15.0"))


def test_the_first_worker_s_environment_is_journaled_once_and_passed_on_to_nobody(tmp_path: Path) -> None:
    journal = start(tmp_path)
    progressed = Progressed(label="", done=0, total=1)
    assert _work(tmp_path, journal, READY, progressed, READY) == [progressed]
    found = [entry.body for entry in journal.entries if isinstance(entry.body, EnvironmentObserved)]
    assert found == [EnvironmentObserved(environment=READY.environment)]
    journal.release()


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("capability", "AVX512", "capability is 'AVX512', the run began with 'AVX2'"),
        ("device", "another", "device is 'another'"),
        ("torch", "2.15.1", "torch is '2.15.1'"),
        ("interop_threads", 2, "interop_threads is 2"),
        ("deterministic", False, "deterministic is False"),
        ("threads", 2, "computes with 2 threads, the plan froze 1"),
    ],
)
def test_a_later_worker_elsewhere_is_refused_also_in_a_later_session(
    tmp_path: Path, field: str, value: object, said: str
) -> None:
    first = start(tmp_path)
    _work(tmp_path, first, READY)
    first.release()
    later = resume(tmp_path)
    other = WorkerReady(environment=READY.environment.model_copy(update={field: value}))
    with pytest.raises(PlanError, match=said):
        _work(tmp_path, later, other)
    later.release()
