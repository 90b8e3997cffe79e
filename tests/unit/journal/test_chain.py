"""Framing, hashes and links: what one line of a journal must be."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import rfc8785
from blake3 import blake3

from experiment.errors import JournalError
from experiment.journal import chain
from experiment.journal.chain import MAX_LINE, frame, genesis_prev, is_torn, unframe
from experiment.journal.reader import read_journal
from tests.doubles.small_journal import PLAN, RUN, forge, write_two_segments

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

Segments = list[list[dict[str, Any]]]


def test_a_line_can_be_made_by_hand() -> None:
    digest = blake3(b"{}", derive_key_context="experiment 2026-11-29 journal record v1").hexdigest()
    assert frame(b"{}") == b'{"h":"' + digest.encode() + b'","r":{}}\n'
    assert unframe(frame(b"{}"), "here") == (digest, b"{}")


def test_the_first_link_can_be_made_by_hand() -> None:
    expected = blake3((PLAN + RUN).encode(), derive_key_context="experiment 2026-11-29 journal genesis v1").hexdigest()
    assert genesis_prev(PLAN, RUN) == expected


def test_a_line_is_itself_json() -> None:
    assert json.loads(frame(b'{"a":[1]}'))["r"] == {"a": [1]}


def test_the_hash_is_checked_before_anything_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    def parse(*_: object) -> None:
        pytest.fail("bytes of unknown origin were parsed")

    monkeypatch.setattr(chain.canonical, "decode", parse)
    with pytest.raises(JournalError, match=r"^J-HASH: here: "):
        unframe(frame(b"{}").replace(b"{}", b"[]"), "here")


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\n",
        frame(b"{}")[:-1],
        frame(b"{}") + b"\n",
        b" " + frame(b"{}"),
        frame(b"{}").replace(b"}\n", b"}\r\n"),
        frame(b"{}").replace(b'"r"', b'"R"'),
        frame(b"{}")[:6] + frame(b"{}")[6:70].upper() + frame(b"{}")[70:],
        frame(b"1\n2"),
        frame(b"0" * MAX_LINE),
        b"\xef\xbb\xbf" + frame(b"{}"),
    ],
)
def test_other_forms_are_no_lines(line: bytes) -> None:
    with pytest.raises(JournalError, match=r"^J-FRAME: "):
        unframe(line, "here")


def test_the_longest_line_is_a_line() -> None:
    raw = b"0" * (MAX_LINE - len(frame(b"")))
    assert len(frame(raw)) == MAX_LINE
    assert unframe(frame(raw), "here")[1] == raw


@pytest.mark.parametrize(
    ("tail", "offset", "expected"),
    [
        (b'{"h', 0, True),
        (b"\0" * 4096, 17, True),
        (b"x" * 100 + b"\n", 0, False),
        (b"x" * 100 + b"\nmore", 0, False),
        (b"x\n" * 2, 0, False),
        (b"x" * 12 + b"\0" * 512 + b"x\n", 500, True),
        (b"x" * 13 + b"\0" * 512 + b"x\n", 500, False),
        (b"x" * 12 + b"\0" * 511 + b"x\n", 500, False),
        (b"x" * 12 + b"\0" * 512 + b"\nmore", 500, False),
        (b"\0" * 12 + b"x" * 600 + b"\n", 500, True),
        (b"\0" * 11 + b"x" * 600 + b"\n", 500, False),
        (b"x" * (MAX_LINE + 1), 0, False),
        (b"x" * MAX_LINE, 0, True),
    ],
)
def test_torn_is_only_what_a_cut_or_reordered_write_leaves(tail: bytes, offset: int, expected: bool) -> None:
    assert is_torn(tail, offset) is expected


def test_a_forger_who_changes_nothing_is_believed(tmp_path: Path) -> None:
    write_two_segments(tmp_path)
    before = read_journal(tmp_path)
    forge(tmp_path, lambda _: None)
    assert read_journal(tmp_path) == before


def _set(segment: int, index: int, key: str, value: object) -> Callable[[Segments], object]:
    return lambda segments: segments[segment][index].__setitem__(key, value)


@pytest.mark.parametrize(
    ("edit", "finding"),
    [
        (_set(0, 1, "v", 2), "J-RECORD"),
        (_set(0, 1, "type", "mystery"), "J-RECORD"),
        (_set(0, 1, "type", ["warn"]), "J-RECORD"),
        (_set(0, 1, "more", 1), "J-RECORD"),
        (lambda segments: segments[0][1].pop("boot"), "J-RECORD"),
        (_set(0, 1, "body", {"kind": "a"}), "J-RECORD"),
        (_set(0, 1, "body", {"kind": "a", "message": "b", "more": 1}), "J-RECORD"),
        (_set(0, 1, "body", {"kind": "a", "message": 1}), "J-RECORD"),
        (_set(0, 1, "t", "2026-11-29T00:00:00Z"), "J-RECORD"),
        (_set(0, 1, "t", "2026-13-29T00:00:00.000000Z"), "J-RECORD"),
        (_set(0, 1, "mono", "1"), "J-RECORD"),
        (_set(0, 1, "seq", 2), "J-CHAIN"),
        (_set(0, 1, "run", "another"), "J-CHAIN"),
        (_set(0, 1, "seg", 1), "J-SEGMENT"),
        (_set(1, 0, "seg", 0), "J-SEGMENT"),
        (_set(1, 2, "seg", 7), "J-SEGMENT"),
        (lambda segments: segments[1][0].update(type="warn", body=segments[1][1]["body"]), "J-SEGMENT"),
        (lambda segments: segments[0].pop(0), "J-RECORD|J-CHAIN|J-SEGMENT"),
        (lambda segments: segments[1].pop(0), "J-CHAIN"),
        (lambda segments: segments[0].reverse(), "J-RECORD|J-CHAIN|J-SEGMENT"),
        (lambda segments: segments[0][1].update(type="genesis", body=segments[0][0]["body"]), "J-SEGMENT"),
        (lambda segments: segments[1][1].update(type="resume", body=segments[1][0]["body"]), "J-SEGMENT"),
        (lambda segments: segments[1][0]["body"]["closes"].clear(), "J-SEGMENT"),
        (lambda segments: segments[1][0]["body"]["closes"][0].update(good=1), "J-SEGMENT"),
        (lambda segments: segments[1][0]["body"]["closes"][0].update(torn=1), "J-SEGMENT"),
        (lambda segments: segments[1][0]["body"]["closes"][0].update(b3="0" * 64), "J-SEGMENT"),
        (lambda segments: segments[1][0]["body"]["closes"][0].update(seg=1), "J-SEGMENT"),
        (_set(0, 1, "mono", 1), "J-CLOCK"),
        (_set(0, 1, "boot", "boot-two"), "J-CLOCK"),
        (_set(0, 1, "art", [{"b3": PLAN, "n": 1, "p": "../plan.json", "role": "x"}]), "J-ARTIFACT"),
        (_set(0, 1, "art", [{"b3": PLAN, "n": 1, "p": "/etc/passwd", "role": "x"}]), "J-ARTIFACT"),
        (_set(0, 1, "art", [{"b3": PLAN, "n": 1, "p": "a\x1b[2J", "role": "x"}]), "J-ARTIFACT"),
        (_set(0, 1, "art", [{"b3": PLAN, "n": 1, "p": p, "role": "x"} for p in "ba"]), "J-ARTIFACT"),
        (_set(0, 1, "art", [{"b3": PLAN, "n": 1, "p": p, "role": "x"} for p in "aa"]), "J-ARTIFACT"),
        (_set(0, 1, "art", [{"b3": PLAN.upper(), "n": 1, "p": "a", "role": "x"}]), "J-RECORD"),
    ],
)
def test_a_true_hash_does_not_excuse_a_broken_rule(
    tmp_path: Path, edit: Callable[[Segments], object], finding: str
) -> None:
    write_two_segments(tmp_path)
    forge(tmp_path, edit)
    with pytest.raises(JournalError, match=rf"^({finding}): journal/00000[01].jsonl at byte \d+, record \d: "):
        read_journal(tmp_path)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda raw: raw.replace(b'"v":1', b'"v":1,"v":1'),
        lambda raw: raw.replace(b'"v":1', b'"v": 1'),
        lambda raw: raw.replace(b'"v":1', b'"v":1.0'),
        lambda raw: raw.replace(b'"v":1', b'"v":NaN'),
        lambda raw: raw.replace(b'"v":1', b'"v":' + b"[" * 33 + b"]" * 33),
        lambda raw: b'{"v":1,' + raw[1:].replace(b',"v":1', b""),
        lambda raw: raw.replace("ü".encode(), b"\\u00fc"),
        lambda raw: raw.replace("ü".encode(), b"\xff"),
    ],
)
def test_a_true_hash_does_not_excuse_another_spelling(tmp_path: Path, spoil: Callable[[bytes], bytes]) -> None:
    write_two_segments(tmp_path)
    path = tmp_path / "journal" / "000000.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    raw = lines[2][76:-2]
    assert spoil(raw) != raw
    path.write_bytes(lines[0] + lines[1] + frame(spoil(raw)))
    with pytest.raises(JournalError, match=r"^J-CANON: journal/000000.jsonl at byte \d+, record 2: "):
        read_journal(tmp_path)


def test_a_record_that_is_no_object_is_refused(tmp_path: Path) -> None:
    write_two_segments(tmp_path)
    (tmp_path / "journal" / "000000.jsonl").write_bytes(frame(rfc8785.dumps(["genesis"])))
    with pytest.raises(JournalError, match="J-RECORD"):
        read_journal(tmp_path)


def test_a_journal_cannot_be_moved_to_another_plan(tmp_path: Path) -> None:
    write_two_segments(tmp_path)
    path = tmp_path / "journal" / "000000.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(frame(lines[0][76:-2].replace(PLAN.encode(), b"d4" * 32)) + b"".join(lines[1:]))
    with pytest.raises(JournalError, match="J-CHAIN.*record 0 does not continue"):
        read_journal(tmp_path)
