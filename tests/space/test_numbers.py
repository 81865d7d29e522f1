from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.space.numbers import NumberError, parse_float, parse_int, parse_number


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5e7", 50_000_000),
        ("5.0e8", 500_000_000),
        ("5e+8", 500_000_000),
        ("1.5e8", 150_000_000),
        ("500_000_000", 500_000_000),
        ("1E3", 1000),
        ("-3", -3),
        ("+3", 3),
        ("0", 0),
        ("-0", 0),
        ("8.0", 8),
        ("9223372036854775807", 9_223_372_036_854_775_807),
        ("123456789012345678901234567890", 123456789012345678901234567890),
    ],
)
def test_whole_numbers_are_exact_integers(text: str, value: int) -> None:
    """BUG-001"""
    parsed = parse_int(text)
    assert parsed == value
    assert type(parsed) is int


@pytest.mark.parametrize(
    ("text", "value"),
    [("1e-5", 0.00001), ("0.1", 0.1), (".5", 0.5), ("5.", 5.0), ("1_0.2_5", 10.25)],
)
def test_decimal_numbers_are_floats(text: str, value: float) -> None:
    """BUG-001"""
    parsed = parse_float(text)
    assert parsed == value
    assert type(parsed) is float


def test_a_fraction_is_no_whole_number() -> None:
    """BUG-001"""
    with pytest.raises(NumberError, match=r"1\.05e1 is not a whole number"):
        parse_int("1.05e1")


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("010", "write 10, or 8 if octal was meant"),
        ("-010", "write -10, or -8 if octal was meant"),
        ("08", "write 8"),
        ("00", "write 0"),
        ("0x10", "write the decimal number 16"),
        ("0o17", "write the decimal number 15"),
        ("0b11", "write the decimal number 3"),
        ("1:30", "90s"),
        ("1,000", "write 1_000"),
        ("1,000,000", "write 1_000_000"),
        ("1 000", "write 1_000"),
        ("5k", "write it without a suffix, for example 5e3"),
        ("2GB", "write it without a suffix, for example 2e9"),
    ],
)
def test_an_ambiguous_form_is_refused_with_the_clear_one(text: str, hint: str) -> None:
    with pytest.raises(NumberError) as caught:
        parse_number(text)
    assert caught.value.hint is not None
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    "text",
    ["", "e5", "1e", "1__0", "_1", "1_", ".", "-", "nan", ".inf", "inf", "1e400", "1e-400", "१"],
)
def test_what_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(NumberError):
        parse_number(text)


@given(st.integers(min_value=-(10**300), max_value=10**300))
def test_every_integer_reads_back_exactly(value: int) -> None:
    assert parse_number(str(value)) == value
    assert parse_int(f"{value:_}") == value


@given(st.floats(allow_nan=False, allow_infinity=False, min_value=1e-300, max_value=1e300))
def test_every_float_reads_back_exactly(value: float) -> None:
    assert parse_float(repr(value)) == value


@given(st.text(max_size=30))
def test_any_text_is_a_number_or_a_number_error(text: str) -> None:
    with contextlib.suppress(NumberError):
        assert isinstance(parse_number(text), int | float)
