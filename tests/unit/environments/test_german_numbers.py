"""The frozen grammar of German numbers, form by form."""

from __future__ import annotations

import decimal
from decimal import Decimal

import pytest

from experiment.environments.german_tools.numbers import (
    GermanNumberError,
    calculate,
    format_number,
    parse_number,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", "0"),
        ("15", "15"),
        ("-14", "-14"),
        ("1,5", "1.5"),
        ("3,0", "3"),
        ("-0", "0"),
        ("1.234", "1234"),
        ("15.000", "15000"),
        ("1.234,50", "1234.5"),
        ("1.234,567", "1234.567"),
        ("1234,567", "1234.567"),
        ("0,234", "0.234"),
        ("1,2340", "1.234"),
        ("1\u202f234,5", "1234.5"),
        ("1\u00a0234", "1234"),
        ("\u22123", "-3"),
        ("12.032.026", "12032026"),
        ("999.999.999.999.999,999999", "999999999999999.999999"),
    ],
)
def test_form_with_one_german_reading_has_that_value(text: str, value: str) -> None:
    assert parse_number(text) == Decimal(value)
    assert not parse_number(text).is_signed() or value.startswith("-")


@pytest.mark.parametrize("text", ["1,234", "12,345", "-999,000", "\u22121,234"])
def test_comma_that_an_english_reader_takes_for_thousands_is_ambiguous(text: str) -> None:
    with pytest.raises(GermanNumberError) as caught:
        parse_number(text)
    assert caught.value.flaw == "ambiguous"


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "-",
        "1.5",
        "1.23",
        "1.2345",
        "12.03.2026",
        "0.234",
        "0.000",
        "1234.567",
        "1 234",
        "1 234,5",
        "1.234\u202f567",
        "1\u202f234.567",
        "1’234",
        "+3",
        "--3",
        "- 3",
        ",5",
        "5,",
        "1,5,0",
        "007",
        "00",
        "1e5",
        "0x1F",
        "1_000",
        " 3",
        "3 ",
        "3\n",
        "3 €",
        "drei",
        "NaN",
        "Infinity",
        "٣",
        "\uff13",
        "²",
        "1,5%",
        "9**9**9",
        "((((1))))",
    ],
)
def test_any_other_form_is_no_number(text: str) -> None:
    with pytest.raises(GermanNumberError) as caught:
        parse_number(text)
    assert caught.value.flaw == "not a number"


@pytest.mark.parametrize("text", ["1000000000000000", "1,0000000", "1" * 5000, "(" * 2000 + "1", "x" * 1_000_000])
def test_text_beyond_the_bounds_is_too_long(text: str) -> None:
    with pytest.raises(GermanNumberError) as caught:
        parse_number(text)
    assert caught.value.flaw == "too long"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("0", "0"),
        ("-0", "0"),
        ("0E+400000000", "0"),
        ("22", "22"),
        ("-14", "-14"),
        ("2.0", "2"),
        ("1.50", "1,5"),
        ("1E+3", "1.000"),
        ("105000000", "105.000.000"),
        ("-15.007", "-15,0070"),
        ("9.125", "9,1250"),
        ("0.125", "0,125"),
        ("1234.567", "1.234,567"),
        ("0.000001", "0,000001"),
    ],
)
def test_canonical_form_is_unambiguous(value: str, text: str) -> None:
    assert format_number(Decimal(value)) == text
    assert parse_number(text) == Decimal(value)


@pytest.mark.parametrize("value", ["1E+15", "-1E+15", "1E-7", "0.1234567", "1E+400000000", "1E-400000000"])
def test_number_beyond_the_bounds_is_refused_before_it_is_written(value: str) -> None:
    with pytest.raises(GermanNumberError, match="too long"):
        format_number(Decimal(value))


def test_calculation_is_exact_whatever_the_thread_s_decimal_context() -> None:
    with decimal.localcontext(prec=3):
        assert calculate("plus", Decimal("0.1"), Decimal("0.2")) == Decimal("0.3")
        product = calculate("mal", Decimal("999999999999999.999999"), Decimal("0.000001"))
        assert product == Decimal("999999999.999999999999")
        assert calculate("minus", Decimal(123456), Decimal(1)) == Decimal(123455)
        assert format_number(Decimal("-123456.5")) == "-123.456,5"
        assert parse_number("-123.456,5") == Decimal("-123456.5")


def test_quotient_without_finite_decimals_is_refused() -> None:
    assert calculate("geteilt", Decimal(7), Decimal(8)) == Decimal("0.875")
    with pytest.raises(decimal.Inexact):
        calculate("geteilt", Decimal(1), Decimal(3))
    for numerator in (0, 1):
        with pytest.raises(ZeroDivisionError):
            calculate("geteilt", Decimal(numerator), Decimal(0))
