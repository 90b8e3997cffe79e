"""Power is lost after each operation, and what was not yet durable is lost, kept or half kept.

The model allows what file systems allow: contents and names become durable by an fsync of the file and of the
directory, in any order before that. Leaving any kind of fsync out must be noticed, or the model proves nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from experiment.errors import ExperimentError
from experiment.records.entry import CheckpointSealed, Resume
from experiment.sealing.trees import seal_tree
from tests.doubles.crashing_files import RecordingFiles, disk_after, pending
from tests.doubles.small_journal import note, resume, start

if TYPE_CHECKING:
    from collections.abc import Iterator

    from experiment.journal.writer import JournalWriter
    from tests.doubles.crashing_files import Disk, Effect, Operation


class LostError(Exception):
    """A state of the disk in which something that was promised is gone."""


def _append(writer: JournalWriter, files: RecordingFiles, type_: str, body: CheckpointSealed | None = None) -> None:
    entry = writer.append(type_, body or note(f"record {len(writer.entries)}"))
    files.note("ack", "", data=entry.hash.encode())


def _seal(run_dir: Path, files: RecordingFiles) -> CheckpointSealed:
    partial = run_dir / "checkpoints" / "grpo" / ".partial-1"
    (partial / "inner").mkdir(parents=True)
    (partial / "inner" / "weights.bin").write_bytes(b"weights")
    for path in (partial.parent.parent, partial.parent, partial, partial / "inner", partial / "inner" / "weights.bin"):
        files.given(path)
    final = partial.parent / "step-000001"
    tree = seal_tree(partial, final, files=files).tree
    return CheckpointSealed(
        arm="grpo", step=1, path="checkpoints/grpo/step-000001", tree=tree, state=(), is_candidate=True
    )


def _record(root: Path, forgets: str | None) -> list[Operation]:
    files = RecordingFiles(root, lambda name: forgets is not None and Path(name).match(forgets))
    run_dir = root / "run"
    run_dir.mkdir(parents=True)
    files.given(run_dir)
    writer = start(run_dir, files)
    files.note("ack", "", data=writer.entries[0].hash.encode())
    _append(writer, files, "warn")
    _append(writer, files, "ckpt.sealed", _seal(run_dir, files))
    writer.mark()
    writer.release()
    (run_dir / "evidence").mkdir()
    (run_dir / "evidence" / "orphan").write_bytes(b"orphan")
    for path in (run_dir / "evidence", run_dir / "evidence" / "orphan"):
        files.given(path)
        files.fsync_path(path)
    files.fsync_path(run_dir / "evidence")
    files.fsync_path(run_dir)
    writer = resume(run_dir, files)
    files.note("ack", "", data=writer.entries[-1].hash.encode())
    _append(writer, files, "warn")
    writer.release()
    return files.log


def _disks(log: list[Operation]) -> Iterator[tuple[int, Disk]]:
    seen: set[object] = set()
    for length in range(len(log), 0, -1):
        waiting = pending(log[:length])
        choices: list[dict[int, Effect]] = [{}, dict.fromkeys(waiting, "drop")]
        for each in waiting:
            choices += [{each: "drop"}, {other: "drop" for other in waiting if other != each}]
            if log[each].kind == "write":
                choices += [{each: "half"}, {each: "zero"}]
        for effects in choices:
            disk = disk_after(log[:length], effects)
            acks = sum(operation.kind == "ack" for operation in log[:length])
            state = (acks, *sorted((name, bytes(disk.data[i] or b"")) for name, i in disk.names.items()))
            if state not in seen:
                seen.add(state)
                yield length, disk


def _check(run_dir: Path, acknowledged: list[str]) -> None:
    if (run_dir / "journal").exists():
        writer = resume(run_dir)
    elif acknowledged:
        msg = "the journal is gone"
        raise LostError(msg)
    else:
        writer = start(run_dir)
    writer.append("warn", note("after the power came back"))
    writer.release()
    if [entry.hash for entry in writer.entries][: len(acknowledged)] != acknowledged:
        msg = "an acknowledged record is gone"
        raise LostError(msg)
    for entry in writer.entries:
        if isinstance(entry.body, Resume) and not all((run_dir / path).exists() for path in entry.body.moved):
            msg = "something that a record says was moved to recovery is not there"
            raise LostError(msg)


def _try_all(tmp_path: Path, log: list[Operation]) -> int:
    count = 0
    for length, disk in _disks(log):
        root = tmp_path / f"disk-{count}"
        root.mkdir()
        disk.materialise(root)
        acknowledged = [operation.data.decode() for operation in log[:length] if operation.kind == "ack"]
        _check(root / "run", acknowledged)
        count += 1
    return count


def test_nothing_acknowledged_is_ever_lost(tmp_path: Path) -> None:
    assert _try_all(tmp_path, _record(tmp_path / "real", None)) > 50


@pytest.mark.parametrize(
    "forgets",
    [
        "run/journal/*.jsonl",
        "run/.partial-journal-*/*.jsonl",
        "run/.partial-journal-*",
        "run/journal",
        "run/.head.json.*.tmp",
        "run",
        "inner/weights.bin",
        "*/seal.json",
        "*/.partial-1",
        "*/.partial-1/inner",
        "run/checkpoints/grpo",
        "run/checkpoints",
        "run/recovery",
    ],
)
def test_every_fsync_is_needed(tmp_path: Path, forgets: str) -> None:
    log = _record(tmp_path / "real", forgets)
    with pytest.raises((LostError, ExperimentError)):
        _try_all(tmp_path, log)


def test_a_record_that_was_found_but_never_synced_is_made_durable_by_a_resume(tmp_path: Path) -> None:
    root = tmp_path / "real"
    run_dir = root / "run"
    run_dir.mkdir(parents=True)
    files = RecordingFiles(root)
    files.given(run_dir)
    writer = start(run_dir, files)
    files.forgets = lambda name: name.endswith(".jsonl")
    writer.append("warn", note("the process dies before its fsync"))
    writer.release()
    files.forgets = lambda name: False
    writer = resume(run_dir, files)
    assert len(writer.entries) == 3
    for entry in writer.entries:
        files.note("ack", "", data=entry.hash.encode())
    writer.release()
    assert _try_all(tmp_path, files.log) > 10
