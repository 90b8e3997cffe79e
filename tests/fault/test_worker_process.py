"""The worker process around its job: it dies with its driver, stops when asked, and keeps its channel clean."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from experiment.errors import StoppedError
from experiment.records.job import Job, StarterJob
from experiment.sealing.canonical import decode, encode_record
from tests.doubles.small_plan import small_recipe

DRIVER = """
import os, subprocess, sys
worker = subprocess.Popen(
    [sys.executable, "-m", "tests.doubles.sleeping_worker", sys.argv[1], str(os.getpid())],
    stdout=subprocess.PIPE,
    start_new_session=True,
)
worker.stdout.readline()
print(worker.pid, flush=True)
worker.wait()
"""


@pytest.fixture
def job(tmp_path: Path) -> Path:
    path = tmp_path / "job.json"
    path.write_bytes(encode_record(Job(tasks=(StarterJob(recipe=small_recipe(), output_dir=str(tmp_path / "out")),))))
    return path


def _is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_a_worker_dies_with_its_driver_however_that_dies(job: Path, repository: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(job)], cwd=repository, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as driver:
        assert driver.stdout is not None
        worker = int(driver.stdout.readline())
        assert _is_alive(worker)
        driver.kill()
        driver.wait()
    deadline = time.monotonic() + 10
    while _is_alive(worker) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not _is_alive(worker)


def test_a_worker_whose_driver_died_before_it_could_ask_the_kernel_does_nothing(job: Path, repository: Path) -> None:
    somebody_else = os.getppid()
    orphan = subprocess.run(
        [sys.executable, "-m", "tests.doubles.sleeping_worker", str(job), str(somebody_else)],
        cwd=repository,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (orphan.returncode, orphan.stdout) == (1, "")
    assert orphan.stderr == f"the driver, process {somebody_else}, is gone\n"


@pytest.mark.parametrize("asked_by", [signal.SIGTERM, signal.SIGINT])
def test_a_worker_that_is_asked_to_stop_reports_it_and_says_nothing_else(
    job: Path, repository: Path, asked_by: signal.Signals
) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "tests.doubles.sleeping_worker", str(job)],
        cwd=repository,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as worker:
        assert worker.stdout is not None
        lines = [worker.stdout.readline(), worker.stdout.readline()]
        os.kill(worker.pid, asked_by)
        out, err = worker.communicate(timeout=60)
    events = [decode(line.rstrip(b"\n")) for line in [*lines, *out.splitlines(keepends=True)]]
    assert events == [
        {"event": "TaskStarted", "body": {"number": 0}},
        {"event": "Progressed", "body": {"label": "asleep", "done": 0, "total": 1}},
        {"event": "Failed", "body": {"error": "StoppedError", "message": "woken"}},
    ]
    assert b"a library prints something" in err
    assert worker.returncode == StoppedError.exit_code
