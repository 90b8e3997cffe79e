"""What a killed process leaves: moved aside under a name that says where it was, and listed once."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from experiment.journal.chain import Artifact
from experiment.journal.reader import read_journal
from experiment.journal.writer import JournalWriter
from experiment.records.entry import Resume
from experiment.sealing.digests import digest_bytes
from experiment.sealing.trees import verify_tree
from tests.doubles.crashing_files import Crash, CrashingFiles
from tests.doubles.small_journal import note, resume, seal_checkpoint, start


def _moved(writer: JournalWriter) -> tuple[str, ...]:
    bodies = [entry.body for entry in writer.entries if isinstance(entry.body, Resume)]
    return bodies[-1].moved


def test_what_records_name_stays_and_the_rest_is_kept_aside(tmp_path: Path) -> None:
    writer = start(tmp_path)
    evidence = tmp_path / "evidence" / "train" / "grpo"
    evidence.mkdir(parents=True)
    for step in (1, 2):
        (evidence / f"step-{step:06d}.jsonl").write_bytes(b"{}\n")
    named = Artifact("evidence/train/grpo/step-000001.jsonl", digest_bytes(b"{}\n"), 3, "evidence")
    writer.append("warn", note("one"), [named])
    writer.append("ckpt.sealed", seal_checkpoint(tmp_path, 1))
    orphan = seal_checkpoint(tmp_path, 2)
    partial = tmp_path / "checkpoints" / "grpo" / ".partial-3"
    partial.mkdir()
    (partial / "weights.bin").write_bytes(b"half")
    (tmp_path / "checkpoints" / "grpo" / "step-000999").mkdir()
    (tmp_path / "samples").mkdir()
    (tmp_path / "samples" / "samples.md").write_bytes(b"# Samples\n")
    writer.release()

    writer = resume(tmp_path)
    assert _moved(writer) == (
        "recovery/000001-checkpoints+grpo+.partial-3",
        "recovery/000001-checkpoints+grpo+step-000002",
        "recovery/000001-checkpoints+grpo+step-000999",
        "recovery/000001-evidence+train+grpo+step-000002.jsonl",
        "recovery/000001-samples+samples.md",
    )
    assert sorted(path.name for path in (tmp_path / "checkpoints" / "grpo").iterdir()) == ["step-000001"]
    assert sorted(path.name for path in evidence.iterdir()) == ["step-000001.jsonl"]
    verify_tree(tmp_path / "recovery" / "000001-checkpoints+grpo+step-000002", orphan.tree)
    writer.release()

    writer = resume(tmp_path)
    assert _moved(writer) == ()
    writer.release()


def test_a_second_leftover_of_the_same_name_does_not_replace_the_first(tmp_path: Path) -> None:
    start(tmp_path).release()
    (tmp_path / "recovery").mkdir()
    (tmp_path / "recovery" / "000001-checkpoints+grpo+step-000001").mkdir()
    seal_checkpoint(tmp_path, 1)
    writer = resume(tmp_path)
    writer.release()
    assert _moved(writer) == (
        "recovery/000001-checkpoints+grpo+step-000001",
        "recovery/000001-checkpoints+grpo+step-000001+2",
    )


def test_evidence_that_others_put_into_recovery_is_left_alone(tmp_path: Path) -> None:
    start(tmp_path).release()
    (tmp_path / "recovery").mkdir()
    (tmp_path / "recovery" / "misaligned-step-000003.jsonl").write_bytes(b"")
    writer = resume(tmp_path)
    writer.release()
    assert _moved(writer) == ()
    assert (tmp_path / "recovery" / "misaligned-step-000003.jsonl").exists()


def test_links_among_the_evidence_are_moved_and_not_followed(tmp_path: Path) -> None:
    start(tmp_path).release()
    (tmp_path / "outside").write_bytes(b"precious")
    (tmp_path / "evidence").mkdir()
    (tmp_path / "evidence" / "folder").symlink_to("..")
    (tmp_path / "evidence" / "link").symlink_to("../outside")
    writer = resume(tmp_path)
    writer.release()
    assert _moved(writer) == ("recovery/000001-evidence+folder", "recovery/000001-evidence+link")
    assert (tmp_path / "outside").read_bytes() == b"precious"


def test_a_journal_that_never_came_to_be_is_kept_aside(tmp_path: Path) -> None:
    (tmp_path / ".partial-journal-0011").mkdir()
    start(tmp_path).release()
    writer = resume(tmp_path)
    writer.release()
    assert _moved(writer) == ("recovery/000001-.partial-journal-0011",)


def test_temporary_heads_are_removed(tmp_path: Path) -> None:
    start(tmp_path).release()
    (tmp_path / ".head.json.0011.tmp").write_bytes(b"half")
    resume(tmp_path).release()
    assert not (tmp_path / ".head.json.0011.tmp").exists()


def test_a_head_that_was_never_written_is_written_before_a_second_record(tmp_path: Path) -> None:
    start(tmp_path / "left").release()
    (tmp_path / "left" / "head.json").unlink()
    files = CrashingFiles()
    shutil.copytree(tmp_path / "left", tmp_path / "count")
    resume(tmp_path / "count", files).release()
    for at in range(files.count):
        shutil.copytree(tmp_path / "left", tmp_path / str(at))
        with pytest.raises(Crash):
            resume(tmp_path / str(at), CrashingFiles(at))
        resume(tmp_path / str(at)).release()
        assert read_journal(tmp_path / str(at)).watermark is not None


def test_records_beyond_the_watermark_are_kept_and_written_once_more(tmp_path: Path) -> None:
    writer = start(tmp_path)
    writer.append("warn", note("beyond"))
    writer.release()
    files = CrashingFiles()
    writer = resume(tmp_path, files)
    writer.mark()
    writer.release()
    assert files.names.count("rewrite") == 1
    assert read_journal(tmp_path).entries[1].body == note("beyond")
    files = CrashingFiles()
    resume(tmp_path, files).release()
    assert files.names.count("rewrite") == 0
