from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.space.expression import Expression, ExpressionError


@pytest.mark.parametrize(
    ("text", "values", "expected"),
    [
        ("a <= b", {"a": 1, "b": 2}, True),
        ("a <= b", {"a": 3, "b": 2}, False),
        ("overlap == true", {"overlap": True}, True),
        ("overlap == on or overlap", {"overlap": True, "on": False}, True),
        ("not a == 1 and b", {"a": 2, "b": True}, True),
        ("not (a == 1 and b)", {"a": 1, "b": False}, True),
        ("a + 2 * b == 7", {"a": 1, "b": 3}, True),
        ("(a + 2) * b == 9", {"a": 1, "b": 3}, True),
        ("a - b - 1 == 0", {"a": 3, "b": 2}, True),
        ("8 / a / 2 == 2", {"a": 2}, True),
        ("-a < -5e-1", {"a": 1}, True),
        ("a == 5e+8", {"a": 500_000_000}, True),
        ("1 < a < 3", {"a": 2}, True),
        ("1 < a < 3", {"a": 3}, False),
        ("zero3.x == 'q r'", {"zero3.x": "q r"}, True),
        ("1e5-1 < 100_000", {}, True),
        ("a / 3 * 3 == a", {"a": 2**70 + 1}, True),
        ("a == true", {"a": 1}, False),
        ("a != 1", {"a": True}, True),
        ("tokens == none", {"tokens": None}, True),
        ("tokens != null", {"tokens": 8192}, True),
        ("checkpointing == none", {"checkpointing": "none"}, True),
        ("checkpointing == none", {"checkpointing": "full"}, False),
    ],
)
def test_value(text: str, values: dict[str, Any], expected: bool) -> None:
    assert Expression.parse(text).value(values) is expected


@pytest.mark.parametrize(
    ("text", "values", "expected"),
    [
        ("a < 3", {"a": None}, None),
        ("a < 3", {}, None),
        ("a == 3", {}, None),
        ("a / b < 3", {"a": 1, "b": 0}, None),
        ("a / b == a / b", {"a": 1, "b": 0}, None),
        ("not a", {}, None),
        ("a == 1 or b == 2", {"b": 2}, True),
        ("a == 1 or b == 2", {"b": 3}, None),
        ("a == 1 and b == 2", {"b": 3}, False),
        ("1e300 * 1e300 * a < 2", {"a": 0.5}, None),
    ],
)
def test_what_has_no_value_is_unknown(
    text: str, values: dict[str, Any], expected: bool | None
) -> None:
    expression = Expression.parse(text)
    assert expression.value(values) is expected
    assert expression.evaluate(values) is (expected is True)


def test_names_in_order_of_use_and_their_offsets() -> None:
    expression = Expression.parse("b < zero3.a and b > c", words={"c"})
    assert expression.names == ("b", "zero3.a")
    assert expression.name_offsets == {"b": 0, "zero3.a": 4}


def test_renaming_keeps_the_text() -> None:
    expression = Expression.parse("a < 1").renamed({"a": "zero3.a"})
    assert (expression.text, expression.names) == ("a < 1", ("zero3.a",))
    assert expression.evaluate({"zero3.a": 0})


def test_equal_meaning_has_one_canonical_text() -> None:
    first = Expression.parse("a<=5e8 and (b)")
    assert first.canonical == Expression.parse("(a  <= 500_000_000) and b").canonical
    assert first.canonical != Expression.parse("a < 5e8 and b").canonical


@pytest.mark.parametrize(
    ("text", "offset", "words"),
    [
        ("", 0, "empty"),
        ("a <", 3, "ends too early"),
        ("a = 1", 2, "'='"),
        ("(a", 0, "not closed"),
        ("a)", 1, r"'\)'"),
        ("a b", 2, "'b'"),
        ("a < 010", 4, "ambiguous"),
        ("a < 'x", 4, "quote"),
        ("a ** 2 == 4", 2, r"\*\*"),
        ("a && b", 2, "&&"),
        ("not", 3, "ends too early"),
        ("a and or b", 6, "'or'"),
        ("__import__('os')", 10, r"\("),
        ("a.b[0]", 3, r"\["),
        ("a if b else c", 2, "'if'"),
        ("lambda: 1", 6, ":"),
        ("(" * 60 + "a", 50, "50 levels"),
        ("not " * 60 + "a", 200, "50 levels"),
    ],
)
def test_a_syntax_error_carries_its_offset(text: str, offset: int, words: str) -> None:
    with pytest.raises(ExpressionError, match=words) as caught:
        Expression.parse(text)
    assert caught.value.offset == offset


def test_length_is_bounded() -> None:
    with pytest.raises(ExpressionError, match="2000 characters"):
        Expression.parse("a + " * 600 + "a < 1")
    assert Expression.parse("1+" * 900 + "1 > 1").value({}) is True


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("number", "neither true nor false"),
        ("number + 1", "neither true nor false"),
        ("number == text", "never equal"),
        ("number == true", "never equal"),
        ("text < 3", "needs numbers"),
        ("switch + 1 < 3", "needs numbers"),
        ("number and switch", "joins conditions"),
        ("not number", "joins conditions"),
    ],
)
def test_types_that_do_not_fit_are_refused(text: str, words: str) -> None:
    kinds = {"number": {"number"}, "text": {"text"}, "switch": {"bool"}}
    with pytest.raises(ExpressionError, match=words):
        Expression.parse(text).check(kinds)


@given(st.text(alphabet="ab01 .<>=!()+-*/'\"notrude", max_size=40))
def test_any_text_parses_and_evaluates_or_is_an_expression_error(text: str) -> None:
    # Any other exception fails the test.
    with contextlib.suppress(ExpressionError):
        expression = Expression.parse(text)
        for value in (None, 0, 1.5, True, "a"):
            result = expression.value(dict.fromkeys(expression.names, value))
            assert result in (True, False, None)


@pytest.mark.parametrize("text", ["1 / 0 > a", "a / (b * 2) / 0 == 1", "a / 0.0 < 1"])
def test_a_division_by_a_written_zero_is_refused(text: str) -> None:
    with pytest.raises(ExpressionError, match="a division by 0 has no result") as caught:
        Expression.parse(text).check({"a": {"number"}, "b": {"number"}})
    assert caught.value.offset == text.index("/ 0") + 2
