"""The grammar of German numbers on generated texts and values."""

from __future__ import annotations

import contextlib
import re
from decimal import Decimal
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from experiment.environments.german_tools.numbers import (
    MAX_DECIMALS,
    MAX_WHOLE_DIGITS,
    GermanNumberError,
    calculate,
    format_number,
    parse_number,
)

SCALE = 10**MAX_DECIMALS
VALUES = st.one_of(
    st.integers(-(10**6), 10**6),
    st.integers(-(10 ** (MAX_WHOLE_DIGITS + MAX_DECIMALS)) + 1, 10 ** (MAX_WHOLE_DIGITS + MAX_DECIMALS) - 1),
).map(lambda scaled: Decimal(scaled).scaleb(-MAX_DECIMALS))
NEARLY_NUMBERS = st.text(alphabet="0123456789.,-\u2212\u00a0\u202f +eE", max_size=45)


@given(VALUES)
def test_canonical_form_reads_back_exactly(value: Decimal) -> None:
    assert parse_number(format_number(value)) == value


@given(VALUES)
def test_equal_values_have_one_canonical_form(value: Decimal) -> None:
    assert format_number(value) == format_number(value.normalize()) == format_number(value + Decimal("0.000000"))


@given(st.one_of(NEARLY_NUMBERS, st.text()))
def test_any_text_is_a_bounded_number_or_refused(text: str) -> None:
    with contextlib.suppress(GermanNumberError):
        value = parse_number(text)
        assert abs(value) < 10**MAX_WHOLE_DIGITS
        assert (value * SCALE) % 1 == 0
        assert parse_number(format_number(value)) == value


@given(NEARLY_NUMBERS)
def test_accepted_text_has_the_value_of_its_digits(text: str) -> None:
    with contextlib.suppress(GermanNumberError):
        value = parse_number(text)
        plain = re.sub("[.\u00a0\u202f]", "", text).replace(",", ".").replace("\u2212", "-")
        assert value == Decimal(plain)


@given(VALUES)
def test_english_form_never_reads_as_another_number(value: Decimal) -> None:
    """`1,234.5` and `1,234` are refused; only forms without a point or comma mean the same in both."""
    english = f"{value.normalize():,f}"
    if "," in english:
        with contextlib.suppress(GermanNumberError):
            assert parse_number(english) is None


@given(st.sampled_from(["plus", "minus", "mal"]), VALUES, VALUES)
def test_calculation_equals_rational_arithmetic(operation: str, a: Decimal, b: Decimal) -> None:
    x, y = Fraction(a), Fraction(b)
    expected = {"plus": x + y, "minus": x - y, "mal": x * y}
    assert Fraction(calculate(operation, a, b)) == expected[operation]


@given(VALUES, VALUES.filter(bool))
def test_exact_quotient_times_divisor_is_the_dividend(a: Decimal, b: Decimal) -> None:
    product = calculate("mal", a, b)
    assert calculate("geteilt", product, b) == a
