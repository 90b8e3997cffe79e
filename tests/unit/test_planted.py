"""The list of planted faults: what is reported stands in it, and what nobody reported fails."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TESTS = """
import pytest

@pytest.mark.planted("a fault that is caught")
def test_caught(planted):
    planted(ValueError("row 3 is odd"), place="row 3", without="it passes")

@pytest.mark.planted("a fault that nobody caught")
def test_silent():
    pass

@pytest.mark.planted("a fault whose place is not named")
def test_vague(planted):
    planted(ValueError("something is odd"), place="row 3", without="it passes")

def test_other():
    pass
"""


def run(folder: Path, repository: Path, *arguments: str) -> tuple[int, list[str]]:
    (folder / "pytest.ini").write_text(
        f"[pytest]\npythonpath = {repository}\nmarkers = planted(fault): breaks something\n"
    )
    (folder / "test_some.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-p", "tests.planted", "-q", *arguments, "test_some.py"]
    done = subprocess.run(command, cwd=folder, capture_output=True, check=False, timeout=120)
    return done.returncode, done.stdout.decode().splitlines()


def test_list_says_what_caught_each_fault_and_which_was_not_caught(tmp_path: Path, repository: Path) -> None:
    code, lines = run(tmp_path, repository, "-m", "planted")
    assert code == 1
    assert lines.index("a fault that is caught | ValueError names row 3 | without the check: it passes") > 0
    assert lines.index("a fault that nobody caught | NOT CAUGHT") > 0
    assert lines.index("a fault whose place is not named | NOT CAUGHT") > 0
    assert any("2 failed, 1 passed, 1 deselected" in line for line in lines)


def test_other_runs_count_the_faults(tmp_path: Path, repository: Path) -> None:
    code, lines = run(tmp_path, repository)
    assert code == 1
    assert "3 planted faults; `pytest -m planted` lists what caught each" in lines
    assert not any("a fault that is caught" in line for line in lines)
