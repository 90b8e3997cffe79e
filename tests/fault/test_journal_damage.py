"""Every byte of a small journal is damaged in every simple way; a reader refuses all of it but a torn end."""

from __future__ import annotations

import functools
import io
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from experiment.errors import JournalError
from experiment.journal import chain
from experiment.journal.head import Head, read_head
from experiment.journal.reader import read_journal, read_segments
from experiment.records.entry import Resume
from experiment.sealing.digests import digest_bytes
from tests.doubles.small_journal import CLOSED, note, resume, start, write_two_segments

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from experiment.journal.reader import JournalView


@dataclass(frozen=True)
class Sample:
    """A journal's bytes, by segment, and its head."""

    segments: tuple[bytes, ...]
    head: Head | None


@pytest.fixture(autouse=True)
def _parse_equal_bytes_once(monkeypatch: pytest.MonkeyPatch) -> None:
    # Nearly all lines of nearly all mutants are the original ones; parsing is a pure function of bytes.
    monkeypatch.setattr(chain, "_parse", functools.lru_cache(maxsize=64)(chain._parse))


def _sample(run_dir: Path) -> Sample:
    return Sample(tuple(path.read_bytes() for path in sorted((run_dir / "journal").iterdir())), read_head(run_dir))


@pytest.fixture
def sample(tmp_path: Path) -> Sample:
    write_two_segments(tmp_path / "run")
    return _sample(tmp_path / "run")


def _view(segments: tuple[bytes, ...], head: Head | None) -> JournalView | None:
    try:
        return read_segments([io.BytesIO(segment) for segment in segments], head)
    except JournalError:
        return None


def _mutants(sample: Sample, how: str) -> Iterator[tuple[bytes, ...]]:
    for number, data in enumerate(sample.segments):
        for mutant in _changed(data, how):
            assert mutant != data
            yield (*sample.segments[:number], mutant, *sample.segments[number + 1 :])


def _changed(data: bytes, how: str) -> Iterator[bytes]:
    for at, byte in enumerate(data):
        if how == "bits":
            yield from (data[:at] + bytes([byte ^ (1 << bit)]) + data[at + 1 :] for bit in range(8))
        elif how == "one bit":
            yield data[:at] + bytes([byte ^ (1 << at % 8)]) + data[at + 1 :]
        elif how == "zeros":
            yield data[:at] + b"\0" + data[at + 1 :]
        elif how == "cuts":
            yield data[:at]
        elif how == "deletions":
            yield data[:at] + data[at + 1 :]
        elif how == "insertions":
            yield from (data[:at] + more + data[at:] for more in (b"\n", b" ", b"\0", b"0"))


@pytest.mark.parametrize(
    "how", ["one bit", "zeros", "cuts", "deletions", "insertions", pytest.param("bits", marks=pytest.mark.slow)]
)
def test_no_damaged_byte_inside_the_watermark_is_overlooked(sample: Sample, how: str) -> None:
    assert _view(sample.segments, sample.head) is not None
    survivors = [mutant for mutant in _mutants(sample, how) if _view(mutant, sample.head) is not None]
    assert survivors == []


def test_what_is_added_at_the_very_end_is_torn_or_refused(sample: Sample, tmp_path: Path) -> None:
    write_two_segments(tmp_path / "closed", close=True)
    closed = _sample(tmp_path / "closed")
    for more, is_torn in ((b"x", True), (b"\0", True), (b"\0" * 513, True), (b"\n", False), (b"x\n", False)):
        view = _view((sample.segments[0], sample.segments[1] + more), sample.head)
        assert (view.torn_bytes if view else 0) == len(more) * is_torn
        assert _view((sample.segments[0] + more, sample.segments[1]), sample.head) is None
        assert _view((closed.segments[0], closed.segments[1] + more), closed.head) is None


def test_lines_cannot_be_dropped_doubled_swapped_or_respelled(sample: Sample) -> None:
    count = 0
    for number, data in enumerate(sample.segments):
        lines = data.splitlines(keepends=True)
        changed = [[*lines[:at], *lines[at + 1 :]] for at in range(len(lines))]
        changed += [[*lines[:at], lines[at], *lines[at:]] for at in range(len(lines))]
        for first in range(len(lines)):
            for second in range(first):
                swapped = list(lines)
                swapped[first], swapped[second] = lines[second], lines[first]
                changed.append(swapped)
        changed.append([line.replace(b"\n", b"\r\n") for line in lines])
        changed.append([b"\xef\xbb\xbf", *lines])
        changed.append([line.replace(b":", b": ") for line in lines])
        for mutant in changed:
            segments = (*sample.segments[:number], b"".join(mutant), *sample.segments[number + 1 :])
            assert _view(segments, sample.head) is None
            count += 1
    assert count == 2 * (3 + 3 + 3 + 3)


def test_a_tail_of_a_sister_run_cannot_be_spliced_in(sample: Sample, tmp_path: Path) -> None:
    for name in ("one", "two"):
        writer = start(tmp_path / name)
        writer.append("warn", note("first"))
        writer.append("warn", note("another second"))
        writer.release()
        writer = resume(tmp_path / name)
        for text in ("third", "fourth"):
            writer.append("warn", note(text))
        writer.mark()
        writer.release()
    sister = _sample(tmp_path / "one")
    assert sister == _sample(tmp_path / "two")
    for number in range(2):
        mixed = (*sample.segments[:number], *sister.segments[number:])
        assert (_view(mixed, sister.head) is not None) == (number == 0)
        assert _view(mixed, sample.head) is None
    assert _view((sister.segments[0], sample.segments[1]), sample.head) is None


@pytest.mark.parametrize("how", ["one bit", "cuts"])
def test_without_a_watermark_only_the_end_can_be_cut(sample: Sample, how: str) -> None:
    """What the head file is for: without it the chain proves order, but not length."""
    genesis = sample.segments[0].splitlines(keepends=True)[0]
    first = Head(v=1, run="small-journal", size=1, h=genesis[6:70].decode(), seg=0, bytes=len(genesis))
    for mutant in _mutants(sample, how):
        view = _view(mutant, first)
        if view is None:
            continue
        assert mutant[0] == sample.segments[0]
        kept = b"".join(mutant)[: sum(end.good for end in view.segments)]
        assert b"".join(sample.segments).startswith(kept)


def test_every_cut_through_the_last_record_is_repaired_by_a_resume(tmp_path: Path) -> None:
    writer = start(tmp_path / "run")
    writer.append("warn", note("kept"))
    entry = writer.append("warn", note("cut"))
    writer.release()
    data = (tmp_path / "run" / "journal" / "000000.jsonl").read_bytes()
    good = data.rindex(b"\n", 0, -1) + 1
    for cut in range(good, len(data)):
        run_dir = tmp_path / f"cut-{cut}"
        shutil.copytree(tmp_path / "run", run_dir)
        torn = data[good:cut]
        (run_dir / "journal" / "000000.jsonl").write_bytes(data[:cut])
        assert read_journal(run_dir).torn_bytes == len(torn)
        writer = resume(run_dir)
        writer.close(CLOSED)
        view = read_journal(run_dir)
        assert (run_dir / "journal" / "000000.jsonl").read_bytes() == data[:cut]
        assert [each.type for each in view.entries] == ["genesis", "warn", "resume", "close"]
        assert entry not in view.entries
        repair = view.entries[2].body
        assert isinstance(repair, Resume)
        assert [(end.good, end.torn, end.b3) for end in repair.closes] == [(good, len(torn), digest_bytes(torn))]
        shutil.rmtree(run_dir)


def test_a_bad_ending_cannot_be_dropped_and_played_again(tmp_path: Path) -> None:
    write_two_segments(tmp_path)
    path = tmp_path / "journal" / "000001.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    for kept in range(3):
        path.write_bytes(b"".join(lines[:kept]))
        for attempt in (read_journal, resume):
            with pytest.raises(JournalError, match="J-WATERMARK"):
                attempt(tmp_path)
    (tmp_path / "head.json").unlink()
    with pytest.raises(JournalError, match="J-WATERMARK"):
        resume(tmp_path)
    assert path.read_bytes() == b"".join(lines[:2])
