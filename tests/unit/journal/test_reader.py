"""Reading a journal as a whole: files, segments, the watermark, the close record."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from experiment.errors import JournalError
from experiment.journal.reader import read_journal
from experiment.records.entry import Genesis, Resume
from experiment.sealing.digests import digest_bytes
from tests.doubles import second_verifier
from tests.doubles.small_journal import CLOSED, PLAN, RUN, note, resume, start, write_two_segments

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def _segment(run_dir: Path, number: int) -> Path:
    return run_dir / "journal" / f"{number:06d}.jsonl"


def test_a_whole_journal_is_shown_in_order(tmp_path: Path) -> None:
    write_two_segments(tmp_path)
    view = read_journal(tmp_path)
    assert (view.run, view.plan, view.is_closed, view.torn_bytes) == (RUN, PLAN, False, 0)
    assert [(entry.seq, entry.segment, entry.type) for entry in view.entries] == [
        (0, 0, "genesis"),
        (1, 0, "warn"),
        (2, 0, "warn"),
        (3, 1, "resume"),
        (4, 1, "warn"),
        (5, 1, "warn"),
    ]
    assert isinstance(view.entries[0].body, Genesis)
    assert view.entries[2].body == note("second, with ü and \x1b")
    assert view.head == view.entries[-1].hash
    assert [end.good for end in view.segments] == [_segment(tmp_path, n).stat().st_size for n in (0, 1)]
    assert view.watermark is not None
    assert view.watermark.size == 6


def test_an_independent_verifier_agrees(tmp_path: Path) -> None:
    for name, close in (("open", False), ("closed", True)):
        write_two_segments(tmp_path / name, close=close)
        view = read_journal(tmp_path / name)
        assert second_verifier.verify(tmp_path / name) == (len(view.entries), view.head)


def test_an_independent_verifier_agrees_about_torn_segments(tmp_path: Path) -> None:
    write_two_segments(tmp_path)
    with _segment(tmp_path, 1).open("ab") as stream:
        stream.write(b'{"h":"00')
    assert read_journal(tmp_path).torn_bytes == 8
    writer = resume(tmp_path)
    writer.close(CLOSED)
    view = read_journal(tmp_path)
    assert second_verifier.verify(tmp_path) == (len(view.entries), view.head)


def test_reading_changes_nothing_and_takes_no_lock(tmp_path: Path) -> None:
    writer = start(tmp_path)
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in tmp_path.rglob("*") if path.is_file()}
    read_journal(tmp_path)
    after = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in tmp_path.rglob("*") if path.is_file()}
    assert after == before
    writer.append("warn", note("still the writer"))
    writer.release()


def test_a_journal_is_readable_while_it_is_written(tmp_path: Path) -> None:
    writer = start(tmp_path)
    for number in range(3):
        writer.append("warn", note(str(number)))
        assert len(read_journal(tmp_path).entries) == number + 2
    writer.release()


@pytest.mark.parametrize(
    "spoil",
    [
        lambda journal: (journal / "000000.jsonl").unlink(),
        lambda journal: (journal / "000001.jsonl").rename(journal / "000002.jsonl"),
        lambda journal: (journal / "notes.txt").write_bytes(b""),
        lambda journal: (journal / "000002.jsonl~").write_bytes(b""),
        lambda journal: (journal / "000002.jsonl").mkdir(),
        lambda journal: os.mkfifo(journal / "000002.jsonl"),
        lambda journal: (journal / "000002.jsonl").symlink_to("000000.jsonl"),
        lambda journal: journal.rename(journal.parent / "moved"),
        lambda journal: journal.rename(journal.parent / "moved") and journal.symlink_to("moved"),
        lambda journal: journal.rename(journal.parent / "moved") and journal.mkdir(),
        lambda journal: journal.rename(journal.parent / "moved") and journal.write_bytes(b""),
    ],
)
def test_a_journal_is_its_segments_and_nothing_else(tmp_path: Path, spoil: Callable[[Path], object]) -> None:
    write_two_segments(tmp_path)
    spoil(tmp_path / "journal")
    with pytest.raises(JournalError, match=r"^J-LAYOUT: "):
        read_journal(tmp_path)


def test_cutting_whole_records_off_is_noticed(tmp_path: Path) -> None:
    write_two_segments(tmp_path)
    data = _segment(tmp_path, 1).read_bytes()
    _segment(tmp_path, 1).write_bytes(b"".join(data.splitlines(keepends=True)[:-1]))
    with pytest.raises(JournalError, match=r"^J-WATERMARK: head.json: the journal has 5 records, but had 6"):
        read_journal(tmp_path)


def test_cutting_a_whole_segment_off_is_noticed(tmp_path: Path) -> None:
    write_two_segments(tmp_path)
    _segment(tmp_path, 1).unlink()
    with pytest.raises(JournalError, match="J-WATERMARK"):
        read_journal(tmp_path)


def test_half_a_record_inside_the_watermark_is_not_called_torn(tmp_path: Path) -> None:
    write_two_segments(tmp_path)
    _segment(tmp_path, 1).write_bytes(_segment(tmp_path, 1).read_bytes()[:-1])
    with pytest.raises(JournalError, match="J-WATERMARK"):
        read_journal(tmp_path)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.unlink(),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(path.read_bytes()[:-1]),
        lambda path: path.write_bytes(path.read_bytes().replace(b'"size":6', b'"size":5')),
        lambda path: path.rename(path.with_name("h")) and path.symlink_to("h"),
        lambda path: path.unlink() or os.mkfifo(path),
        lambda path: path.unlink() or path.mkdir(),
    ],
)
def test_a_missing_or_damaged_head_is_refused(tmp_path: Path, spoil: Callable[[Path], object]) -> None:
    write_two_segments(tmp_path)
    spoil(tmp_path / "head.json")
    with pytest.raises(JournalError, match=r"^J-WATERMARK: head.json"):
        read_journal(tmp_path)


def test_a_head_may_be_missing_beside_the_genesis_record_only(tmp_path: Path) -> None:
    start(tmp_path).release()
    (tmp_path / "head.json").unlink()
    view = read_journal(tmp_path)
    assert (len(view.entries), view.watermark) == (1, None)
    _segment(tmp_path, 1).write_bytes(b"")
    with pytest.raises(JournalError, match="J-WATERMARK"):
        read_journal(tmp_path)


def test_the_head_of_a_sister_run_is_refused(tmp_path: Path) -> None:
    write_two_segments(tmp_path / "one")
    writer = start(tmp_path / "two")
    writer.append("warn", note("another story"))
    writer.mark()
    writer.release()
    (tmp_path / "two" / "head.json").replace(tmp_path / "one" / "head.json")
    with pytest.raises(JournalError, match=r"J-WATERMARK: head.json: record 1 is not the one that was marked"):
        read_journal(tmp_path / "one")


@pytest.mark.parametrize("more", [b"x", b"\0" * 600, b'{"h":"00', b"\n"])
def test_not_one_byte_follows_a_close_record(tmp_path: Path, more: bytes) -> None:
    write_two_segments(tmp_path, close=True)
    with _segment(tmp_path, 1).open("ab") as stream:
        stream.write(more)
    with pytest.raises(JournalError, match="J-CLOSED|J-FRAME"):
        read_journal(tmp_path)


def test_no_segment_follows_a_close_record(tmp_path: Path) -> None:
    write_two_segments(tmp_path, close=True)
    _segment(tmp_path, 2).write_bytes(b"")
    with pytest.raises(JournalError, match="J-CLOSED"):
        read_journal(tmp_path)


def test_torn_bytes_that_a_resume_named_may_not_change_later(tmp_path: Path) -> None:
    write_two_segments(tmp_path)
    with _segment(tmp_path, 1).open("ab") as stream:
        stream.write(b"torn")
    writer = resume(tmp_path)
    body = writer.entries[-1].body
    writer.release()
    assert isinstance(body, Resume)
    assert [(end.seg, end.torn, end.b3) for end in body.closes] == [(1, 4, digest_bytes(b"torn"))]
    assert read_journal(tmp_path).torn_bytes == 0
    _segment(tmp_path, 1).write_bytes(_segment(tmp_path, 1).read_bytes()[:-4] + b"TORN")
    with pytest.raises(JournalError, match="J-SEGMENT.*do not end as this resume record found them"):
        read_journal(tmp_path)


def test_an_empty_or_torn_segment_before_a_resume_is_named(tmp_path: Path) -> None:
    write_two_segments(tmp_path)
    _segment(tmp_path, 2).write_bytes(b"")
    _segment(tmp_path, 3).write_bytes(b"half")
    writer = resume(tmp_path)
    writer.release()
    body = read_journal(tmp_path).entries[-1].body
    assert isinstance(body, Resume)
    assert [(end.seg, end.torn) for end in body.closes] == [(1, 0), (2, 0), (3, 4)]


def test_a_line_without_end_is_refused_without_reading_all_of_it(tmp_path: Path) -> None:
    write_two_segments(tmp_path)
    with _segment(tmp_path, 1).open("ab") as stream:
        stream.truncate(1 << 33)
    with pytest.raises(JournalError, match="J-FRAME"):
        read_journal(tmp_path)
