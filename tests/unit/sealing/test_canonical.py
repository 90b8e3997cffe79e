"""Canonical JSON: the standard's own vectors, and everything that has no canonical form."""

from __future__ import annotations

import struct

import pytest

from experiment.records.entry import StepFacts, Warned
from experiment.sealing.canonical import MAX_DEPTH, decode, decode_record, encode, encode_record


def test_the_standard_example_is_encoded_as_the_standard_says() -> None:
    # RFC 8785, section 3.2.2 to 3.2.3.
    value = {
        "numbers": [333333333.33333329, 1e30, 4.50, 2e-3, 0.000000000000000000000000001],
        "string": "€$\u000f\u000aA'\u0042\u0022\u005c\\\"/",
        "literals": [None, True, False],
    }
    assert (
        encode(value)
        == (
            '{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],'
            '"string":"€$\\u000f\\nA\'B\\"\\\\\\\\\\"/"}'
        ).encode()
    )


def test_keys_are_sorted_by_their_utf_16_units() -> None:
    # RFC 8785, section 3.2.3.
    keys = ["\u20ac", "\r", "\ufb33", "1", "\U0001f600", "\u0080", "\u00f6"]
    assert list(decode(encode(dict.fromkeys(keys, 0)))) == ["\r", "1", "\u0080", "ö", "€", "\U0001f600", "\ufb33"]


@pytest.mark.parametrize(
    ("bits", "text"),
    [  # RFC 8785, appendix B, without those that are refused here
        (0x0000000000000000, b"0"),
        (0x8000000000000000, b"0"),
        (0x0000000000000001, b"5e-324"),
        (0x7FEFFFFFFFFFFFFF, b"1.7976931348623157e+308"),
        (0x444B1AE4D6E2EF4F, b"999999999999999900000"),
        (0x444B1AE4D6E2EF50, b"1e+21"),
        (0x3EB0C6F7A0B5ED8C, b"9.999999999999997e-7"),
        (0x3EB0C6F7A0B5ED8D, b"0.000001"),
        (0x41B3DE4355555553, b"333333333.3333332"),
        (0xBECBF647612F3696, b"-0.0000033333333333333333"),
    ],
)
def test_numbers_are_written_as_the_standard_says(bits: int, text: bytes) -> None:
    (number,) = struct.unpack(">d", bits.to_bytes(8, "big"))
    if text == b"999999999999999900000":
        with pytest.raises(ValueError, match="integer domain"):
            encode(number)
    else:
        assert encode(number) == text


@pytest.mark.parametrize(
    "value",
    [
        float("nan"),
        float("inf"),
        -float("inf"),
        2**53,
        -(2**53),
        float(2**53),
        1e17,
        "\ud800",
        {"\ud800": 1},
        {1: 2},
        {None: 2},
        b"bytes",
        {1, 2},
        object(),
    ],
)
def test_a_value_without_canonical_form_is_refused(value: object) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  each library words it differently
        encode({"key": [value]} if not isinstance(value, dict) else value)


def test_the_largest_exact_integer_survives() -> None:
    assert decode(encode([2**53 - 1, 1 - 2**53])) == [2**53 - 1, 1 - 2**53]


def _nested(depth: int) -> object:
    value: object = 0
    for _ in range(depth):
        value = [value]
    return value


def test_nesting_is_bounded_in_both_directions() -> None:
    assert decode(encode(_nested(MAX_DEPTH))) == _nested(MAX_DEPTH)
    with pytest.raises(ValueError, match="nested"):
        encode(_nested(MAX_DEPTH + 1))
    with pytest.raises(ValueError, match="nested"):
        decode(b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1))


def test_absurd_nesting_is_refused_without_a_crash() -> None:
    with pytest.raises(ValueError, match="nested"):
        decode(b"[" * 200_000 + b"]" * 200_000)


@pytest.mark.parametrize(
    "data",
    [
        b'{"a":1,"a":1}',
        b'{"b":1,"a":1}',
        b'{"a": 1}',
        b'{"a":1}\n',
        b'\xef\xbb\xbf{"a":1}',
        b'{"a":1.0}',
        b'{"a":1e6}',
        b'{"a":1E-07}',
        b'{"a":-0}',
        b'{"a":-0.0}',
        b'{"a":01}',
        b'{"a":"\\u00fc"}',
        b'{"a":"\\/"}',
        b'{"a":"\xff"}',
        b'{"a":"\\ud800"}',
        b'{"a":NaN}',
        b'{"a":Infinity}',
        b'{"a":1e400}',
        b'{"a":9007199254740993}',
        b"1" * 5000,
        b"",
        b"{",
    ],
)
def test_bytes_that_are_not_the_canonical_form_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  each library words it differently
        decode(data)


def test_a_record_survives_and_floats_stay_floats() -> None:
    facts = StepFacts(
        step=1, evidence="a" * 64, learning_rate=1e-7, loss=1e6, grad_norm=None, metrics=(("ü\U0001f600", -0.0),)
    )
    read = decode_record(StepFacts, encode_record(facts))
    assert read == facts
    assert isinstance(read.loss, float)
    assert read.metrics[0][0] == "ü\U0001f600"


def test_a_record_with_an_unknown_key_is_refused() -> None:
    with pytest.raises(ValueError, match="Extra inputs"):
        decode_record(Warned, b'{"extra":1,"kind":"a","message":"b"}')


def test_a_record_in_another_key_order_is_refused() -> None:
    with pytest.raises(ValueError, match="canonical"):
        decode_record(Warned, b'{"message":"b","kind":"a"}')
