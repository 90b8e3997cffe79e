"""Two processes want the same run at the same moment."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from experiment.errors import LockedError, UsageError
from experiment.journal.reader import read_journal
from tests.doubles.small_journal import CLOSED, note, resume, start, write_two_segments

if TYPE_CHECKING:
    from pathlib import Path

WON, LOCKED, EXISTS = 0, 75, 2


def _contend(run_dir: Path, *, begins: bool) -> int:
    """Fork a contender: it waits for the shot, tries, and holds on to what it got until the other has tried."""
    child = os.fork()
    if child:
        return child
    code = 99
    try:
        while not (run_dir.parent / "shot").exists():
            pass
        writer = (start if begins else resume)(run_dir)
        (run_dir.parent / f"tried-{os.getpid()}").touch()
        while len(list(run_dir.parent.glob("tried-*"))) < 2:
            pass
        writer.append("warn", note(f"from {os.getpid()}"))
        writer.release()
        code = WON
    except LockedError as error:
        code = LOCKED if "in use by" in str(error) else 98
    except UsageError:
        code = EXISTS
    finally:
        (run_dir.parent / f"tried-{os.getpid()}").touch()
        os._exit(code)


def _race(run_dir: Path, *, begins: bool) -> list[int]:
    children = [_contend(run_dir, begins=begins) for _ in range(2)]
    (run_dir.parent / "shot").touch()
    return sorted(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_exactly_one_of_two_resumes_proceeds(tmp_path: Path) -> None:
    for number in range(20):
        run_dir = tmp_path / str(number) / "run"
        write_two_segments(run_dir)
        assert _race(run_dir, begins=False) == [WON, LOCKED]
        assert [entry.type for entry in read_journal(run_dir).entries[6:]] == ["resume", "warn"]


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_exactly_one_of_two_first_starts_proceeds(tmp_path: Path) -> None:
    for number in range(10):
        run_dir = tmp_path / str(number) / "run"
        run_dir.parent.mkdir()
        assert _race(run_dir, begins=True) == [WON, LOCKED]
        assert [entry.type for entry in read_journal(run_dir).entries] == ["genesis", "warn"]
        resume(run_dir).close(CLOSED)
