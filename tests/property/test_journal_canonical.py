"""Canonical JSON and tree identities over generated values."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from experiment.sealing.canonical import decode, encode
from experiment.sealing.trees import scan_tree, seal_tree, verify_tree
from tests.doubles.small_journal import QUICK

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
SCALAR = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(1 - 2**53, 2**53 - 1),
    st.floats(allow_nan=False, allow_infinity=False).filter(
        lambda number: not number.is_integer() or not 2.0**53 <= abs(number) < 1e21
    ),
    TEXT,
)
VALUE = st.recursive(SCALAR, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4))


@given(VALUE)
def test_what_can_be_encoded_is_read_back_as_an_equal_value(value: object) -> None:
    data = encode(value)
    assert decode(data) == value
    assert encode(decode(data)) == data
    assert json.loads(data) == value


@given(st.binary(max_size=60) | VALUE.map(lambda value: json.dumps(value).encode()))  # noqa: TID251  any spelling
def test_decode_accepts_nothing_but_what_encode_writes(data: bytes) -> None:
    try:
        value = decode(data)
    except ValueError:
        return
    assert encode(value) == data


NAMES = st.dictionaries(
    st.text("abcdü-.", min_size=1, max_size=4).filter(lambda name: name not in {".", ".."}),
    st.binary(max_size=5) | st.none(),
    max_size=5,
)


def _write(root: Path, content: dict[str, bytes | None]) -> Path:
    root.mkdir()
    for name, data in content.items():
        if data is None:
            (root / name).mkdir()
        else:
            (root / name).write_bytes(data)
    return root


@settings(max_examples=50)
@given(NAMES, NAMES)
def test_two_trees_have_one_identity_exactly_where_they_hold_the_same(
    first: dict[str, bytes | None], second: dict[str, bytes | None]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        one = scan_tree(_write(Path(folder) / "one", first))
        two = scan_tree(_write(Path(folder) / "two", second))
        assert (one.tree == two.tree) == (first == second)
        assert seal_tree(Path(folder) / "one", Path(folder) / "sealed", files=QUICK) == one
        assert verify_tree(Path(folder) / "sealed", one.tree) == one
