"""Every operation of a run's storage fails once: killed, cut short, full, broken; again while recovering."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from experiment.errors import StorageError
from experiment.journal.chain import Entry
from experiment.journal.reader import read_journal
from experiment.records.entry import CheckpointSealed
from experiment.sealing.trees import verify_tree
from tests.doubles import second_verifier
from tests.doubles.crashing_files import Crash, CrashingFiles
from tests.doubles.small_journal import CLOSED, note, resume, seal_checkpoint, start

if TYPE_CHECKING:
    from experiment.journal.writer import JournalWriter

Session = Callable[[Path, CrashingFiles, list[Entry]], None]


def _live(writer: JournalWriter, run_dir: Path, files: CrashingFiles, acknowledged: list[Entry]) -> None:
    """Append, seal, mark; whatever happens, the process then ends without tidying up."""
    try:
        acknowledged[:] = writer.entries
        acknowledged.append(writer.append("warn", note(f"in segment {len(list(run_dir.glob('journal/*')))}")))
        step = len(list(run_dir.glob("checkpoints/grpo/step-*"))) + 1
        acknowledged.append(writer.append("ckpt.sealed", seal_checkpoint(run_dir, step, files)))
        writer.mark()
        acknowledged.append(writer.append("warn", note("beyond the watermark")))
    finally:
        writer._session.lock.forget()


def _begin(run_dir: Path, files: CrashingFiles, acknowledged: list[Entry]) -> None:
    _live(start(run_dir, files), run_dir, files, acknowledged)


def _continue(run_dir: Path, files: CrashingFiles, acknowledged: list[Entry]) -> None:
    if (run_dir / "journal").exists():
        _live(resume(run_dir, files), run_dir, files, acknowledged)
    else:
        _begin(run_dir, files, acknowledged)


def _count(session: Session, run_dir: Path) -> int:
    files = CrashingFiles()
    session(run_dir, files, [])
    return files.count


def _fail(session: Session, run_dir: Path, files: CrashingFiles, acknowledged: list[Entry]) -> None:
    with pytest.raises((Crash, StorageError)):
        session(run_dir, files, acknowledged)


def _check(run_dir: Path, acknowledged: list[Entry]) -> None:
    """A new process finds all that was acknowledged, goes on, and ends with a journal that verifies."""
    found: list[Entry] = []
    _continue(run_dir, CrashingFiles(), found)
    assert found[: len(acknowledged)] == acknowledged
    resume(run_dir).close(CLOSED)
    view = read_journal(run_dir)
    assert view.is_closed
    assert list(view.entries[: len(found)]) == found
    assert second_verifier.verify(run_dir) == (len(view.entries), view.head)
    sealed = [entry.body for entry in view.entries if isinstance(entry.body, CheckpointSealed)]
    assert {body.path for body in sealed} == {
        path.relative_to(run_dir).as_posix() for path in run_dir.glob("checkpoints/*/*")
    }
    for body in sealed:
        verify_tree(run_dir / body.path, body.tree)


EVERY_WAY = [
    "torn",
    "short",
    # These differ from the two above in less than those differ from each other.
    *(pytest.param(how, marks=pytest.mark.slow) for how in ("crash", "EIO", "ENOSPC")),
]


@pytest.mark.parametrize("how", EVERY_WAY)
def test_a_first_session_may_end_anywhere(tmp_path: Path, how: str) -> None:
    total = _count(_begin, tmp_path / "count")
    assert total > 30
    for at in range(total):
        acknowledged: list[Entry] = []
        _fail(_begin, tmp_path / str(at), CrashingFiles(at, how), acknowledged)
        _check(tmp_path / str(at), acknowledged)


@pytest.mark.parametrize("how", EVERY_WAY)
def test_a_recovery_may_end_anywhere_in_turn(tmp_path: Path, how: str) -> None:
    # Killed in the middle of its last append, after a seal that no record names.
    left = tmp_path / "left"
    acknowledged: list[Entry] = []
    _fail(_begin, left, CrashingFiles(_count(_begin, tmp_path / "first") - 2, "torn"), acknowledged)
    seal_checkpoint(left, 7)
    (left / ".head.json.00.tmp").write_bytes(b"half")

    shutil.copytree(left, tmp_path / "count")
    total = _count(_continue, tmp_path / "count")
    assert total > 25
    for at in range(total):
        run_dir = tmp_path / str(at)
        shutil.copytree(left, run_dir)
        found = list(acknowledged)
        _fail(_continue, run_dir, CrashingFiles(at, how), found)
        assert found[: len(acknowledged)] == acknowledged
        _check(run_dir, found)
        moved = [path for entry in read_journal(run_dir).entries for path in getattr(entry.body, "moved", ())]
        assert any(path.startswith("recovery/000001-checkpoints+grpo+step-000007") for path in moved)
        assert len(moved) == len(set(moved))
        assert {f"recovery/{path.name}" for path in (run_dir / "recovery").iterdir()} == set(moved)


def test_a_full_disk_stays_an_error_until_there_is_room(tmp_path: Path) -> None:
    acknowledged: list[Entry] = []
    _fail(_begin, tmp_path, CrashingFiles(_count(_begin, tmp_path / "count") - 2, "ENOSPC"), acknowledged)

    class Full(CrashingFiles):
        def write(self, fd: int, data: bytes) -> None:
            raise OSError(28, "No space left on device")

    for _ in range(3):
        with pytest.raises(StorageError, match="No space left") as caught:
            resume(tmp_path, Full())
        assert caught.value.exit_code == 74
    _check(tmp_path, acknowledged)


FORKS = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


@FORKS
def test_a_killed_process_loses_nothing_that_it_acknowledged(tmp_path: Path) -> None:
    for wanted in range(1, 8):
        run_dir = tmp_path / str(wanted)
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            writer = start(run_dir)
            while True:
                os.write(writing, writer.append("warn", note("x" * 100 * wanted)).hash.encode())
        os.close(writing)
        acknowledged = b""
        while len(acknowledged) < 64 * wanted:
            acknowledged += os.read(reading, 64)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        while more := os.read(reading, 4096):
            acknowledged += more
        os.close(reading)
        resume(run_dir).release()
        hashes = "".join(entry.hash for entry in read_journal(run_dir).entries[1:])
        assert hashes.startswith(acknowledged.decode())
