from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from experiment.errors import UsageError
from experiment.journal.lock import RunLock
from experiment.records.entry import Aborted, Warned
from experiment.report.status import Status, duration, read_status, render_status
from tests.doubles.small_run import SmallRun


def shown(status: Status) -> str:
    buffer = io.StringIO()
    Console(file=buffer, width=100, force_terminal=True, color_system=None).print(render_status(status))
    return buffer.getvalue()


def shortened(drafted: SmallRun, tmp_path: Path, length: int) -> SmallRun:
    run = drafted.copy()
    run.run_dir = tmp_path / "runs" / "small-run"
    run.run_dir.mkdir(parents=True)
    (run.run_dir / "plan.json").write_bytes((drafted.run_dir / "plan.json").read_bytes())
    run.records = run.records[:length]
    return run


@pytest.mark.parametrize(
    ("until", "number", "stage", "detail"),
    [
        ("qual.branch", 1, "qualify", "1 of 6 branches"),
        ("train.step", 1, "train", "1 of 4 steps"),
        ("dev.result", 3, "select", "3 of 10 DEV evaluations"),
        ("final.result", 0, "assess", "0 of 12 final evaluations"),
    ],
)
def test_the_stage_is_the_one_that_the_journal_has_reached(
    drafted: SmallRun, tmp_path: Path, until: str, number: int, stage: str, detail: str
) -> None:
    run = shortened(drafted, tmp_path, drafted.position(until, number))
    run.write(close=False)

    status = read_status(run.run_dir)

    assert (status.stage, status.detail) == (stage, detail)


def test_a_closed_run_is_finished(drafted: SmallRun) -> None:
    status = read_status(drafted.run_dir)

    assert (status.stage, status.detail, status.is_live) == ("finished", "assessed", False)
    assert [arm.steps for arm in status.arms] == [2, 2]
    assert status.remaining_seconds is None


def test_a_failed_qualification_shows(failed: Path) -> None:
    assert read_status(failed).stage == "qualification failed"
    assert "qualification failed" in shown(read_status(failed))


def test_the_remaining_time_comes_from_the_steps_that_were_made(drafted: SmallRun, tmp_path: Path) -> None:
    run = shortened(drafted, tmp_path, drafted.position("train.step", 0) + 1)
    run.write(close=False)

    status = read_status(run.run_dir)
    per_step = status.arms[0].seconds_per_step

    assert per_step is not None
    assert status.remaining_seconds == pytest.approx(3 * per_step)


def test_a_run_is_live_as_long_as_its_lock_is_held(drafted: SmallRun, tmp_path: Path) -> None:
    run = shortened(drafted, tmp_path, 3)
    run.write(close=False)
    lock = RunLock.acquire(run.run_dir, "small-run")

    assert "pid" in (read_status(run.run_dir).holder or "")
    assert read_status(run.run_dir).is_live

    lock.release()
    assert not read_status(run.run_dir).is_live


def test_looking_does_not_take_the_lock(drafted: SmallRun, tmp_path: Path) -> None:
    run = shortened(drafted, tmp_path, 3)
    run.write(close=False)

    read_status(run.run_dir)

    RunLock.acquire(run.run_dir, "small-run").release()


def test_why_a_session_ended_is_shown_until_it_goes_on(drafted: SmallRun, tmp_path: Path) -> None:
    run = shortened(drafted, tmp_path, 3)
    run.add("abort", Aborted(kind="FaultError", message="worker died", exit_code=70, resumable=True))
    run.write(close=False)

    assert read_status(run.run_dir).stopped == "FaultError: worker died"
    assert "worker died" in shown(read_status(run.run_dir))


def test_text_of_the_run_cannot_steer_the_terminal(drafted: SmallRun, tmp_path: Path) -> None:
    run = shortened(drafted, tmp_path, 3)
    run.add("warn", Warned(kind="[bold red]x[/]", message="\x1b[2J\x1b]0;title\x07\u202e"))
    run.write(close=False)

    text = shown(read_status(run.run_dir))

    assert "\x1b[2J" not in text
    assert "\u202e" not in text
    assert "[bold red]x[/]" in text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (59.4, "59 s"), (60, "1 min"), (3599, "60 min"), (3900, "1 h 05 min")]
)
def test_durations_read_as_people_say_them(seconds: float, text: str) -> None:
    assert duration(seconds).replace("1 h 00 min", "60 min") == text


def test_a_folder_that_is_no_run_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no run"):
        read_status(tmp_path)
