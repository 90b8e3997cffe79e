from __future__ import annotations

from pathlib import Path

import pytest

from experiment.errors import BudgetExhaustedError
from experiment.journal.clock import CLOCK
from experiment.journal.writer import JournalWriter
from experiment.pipeline.context import RunContext
from experiment.pipeline.workers import WorkerPool
from experiment.records.recipe import Compute
from tests.doubles.small_journal import SetClock, note, resume, start
from tests.doubles.small_plan import small_plan, small_recipe
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
