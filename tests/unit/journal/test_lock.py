"""One process per run, however processes start and end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from experiment.errors import LockedError
from experiment.journal.lock import Holder, RunLock
from experiment.journal.reader import read_journal
from experiment.sealing.canonical import encode_record
from tests.doubles.small_journal import note, resume, start, write_two_segments

HOLD = """
import os, pathlib, sys
from experiment.journal.lock import RunLock
lock = RunLock.acquire(pathlib.Path(sys.argv[1]), "small")
is_parent = "fork" in sys.argv and os.fork()
if not is_parent:
    print("held", flush=True)
sys.stdin.buffer.raw.read()
"""


@contextmanager
def _holder(run_dir: Path, repository: Path, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """Another process that holds the lock; it, or the child that it forked, has said that it runs."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(run_dir), *options],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(repository)},
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"held\n"
            yield process
        finally:
            process.kill()


def test_a_second_process_is_told_who_works_on_the_run(tmp_path: Path, repository: Path) -> None:
    with _holder(tmp_path, repository) as process:
        holder = Holder.model_validate_json((tmp_path / "lock").read_bytes())
        # Number and start together tell a process from a later one with the same number.
        assert holder.start == Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[19]
        with pytest.raises(LockedError, match=rf"in use by pid {process.pid} on .+, started 20\d\d-\d\d-\d\dT"):
            RunLock.acquire(tmp_path, "small")
        process.send_signal(signal.SIGSTOP)
        with pytest.raises(LockedError, match=f"pid {process.pid}"):
            RunLock.acquire(tmp_path, "small")
    RunLock.acquire(tmp_path, "small").release()


def test_a_forked_child_does_not_keep_the_lock_of_a_killed_parent(tmp_path: Path, repository: Path) -> None:
    with _holder(tmp_path, repository, "fork") as process:
        with pytest.raises(LockedError):
            RunLock.acquire(tmp_path, "small")
        process.kill()
        process.wait()
        # The child still lives: it waits for the pipe that this process holds open.
        RunLock.acquire(tmp_path, "small").release()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_neither_writes_nor_frees_the_lock(tmp_path: Path) -> None:
    writer = start(tmp_path)
    child = os.fork()
    if child == 0:
        try:
            writer.append("warn", note("from a child"))
        except LockedError:
            writer.release()
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    writer.append("warn", note("from the parent"))
    with pytest.raises(LockedError):
        resume(tmp_path)
    writer.release()
    assert len(read_journal(tmp_path).entries) == 2


def test_a_second_writer_in_the_same_process_is_refused(tmp_path: Path) -> None:
    write_two_segments(tmp_path)
    writer = resume(tmp_path)
    with pytest.raises(LockedError, match=f"pid {os.getpid()}"):
        resume(tmp_path)
    writer.append("warn", note("unharmed"))
    writer.release()


def test_released_twice_is_released_once(tmp_path: Path) -> None:
    lock = RunLock.acquire(tmp_path, "small")
    lock.release()
    other = RunLock.acquire(tmp_path, "small")
    lock.release()
    assert other.is_held
    with pytest.raises(LockedError):
        RunLock.acquire(tmp_path, "small")
    other.release()


def _leave(run_dir: Path, **changes: object) -> None:
    lock = RunLock.acquire(run_dir, "small")
    holder = Holder.model_validate_json((run_dir / "lock").read_bytes())
    lock.release()
    (run_dir / "lock").write_bytes(encode_record(holder.model_copy(update=changes)))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"pid": 1, "start": "1"},
        {"boot": "before-a-reboot"},
        {"host": "renamed"},
    ],
)
def test_what_a_dead_process_left_in_the_file_does_not_block(tmp_path: Path, changes: dict[str, object]) -> None:
    _leave(tmp_path, **changes)
    RunLock.acquire(tmp_path, "small").release()


@pytest.mark.parametrize("content", [b"", b"\xff", b"{}", b'{"pid":1}', b"x" * 100_000])
def test_unreadable_content_does_not_block(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "lock").write_bytes(content)
    RunLock.acquire(tmp_path, "small").release()


def test_a_process_on_another_machine_may_still_work(tmp_path: Path) -> None:
    _leave(tmp_path, host="other", boot="theirs", pid=77)
    before = (tmp_path / "lock").read_bytes()
    with pytest.raises(LockedError, match="pid 77 on other, another machine") as caught:
        RunLock.acquire(tmp_path, "small")
    assert "delete its `lock` file" in caught.value.remedy
    assert (tmp_path / "lock").read_bytes() == before
    (tmp_path / "lock").unlink()
    RunLock.acquire(tmp_path, "small").release()
