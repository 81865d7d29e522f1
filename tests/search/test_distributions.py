from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from autotune.search.distributions import dimension
from autotune.space.canonical import label
from autotune.space.domains import contains
from autotune.space.model import Choices, FloatRange, IntRange


def choices(*values) -> Choices:
    return Choices(values=values, labels=tuple(label(value) for value in values))


def test_zero_beside_a_logarithmic_range_is_the_neighbour_of_the_smallest() -> None:
    """BUG-005: zero can really be drawn, as the integer 0, on one ordered axis."""
    one = dimension(IntRange(low=1000, high=10**7, log=True, also=(0,)))
    distribution = one.distribution()
    assert isinstance(distribution, FloatDistribution)
    assert distribution.low < 0 == one.decode(distribution.low)
    assert one.encode(0) < one.encode(1000) < one.encode(10**7)
    rng = random.Random(1)
    drawn = [one.draw(rng) for _ in range(400)]
    assert {type(value) for value in drawn} == {int}
    assert 0 in drawn
    assert all(value == 0 or 1000 <= value <= 10**7 for value in drawn)


@given(st.integers(min_value=1, max_value=10**9))
def test_integers_on_a_log_axis_stay_near_themselves(value: int) -> None:
    one = dimension(IntRange(low=1, high=10**9, log=True, also=(0,)))
    back = one.decode(one.encode(value))
    assert type(back) is int
    assert back == pytest.approx(value, rel=1e-6, abs=0.6)


def test_values_above_the_range() -> None:
    one = dimension(IntRange(low=1, high=8, also=(64, 128)))
    assert [one.decode(one.encode(v)) for v in (1, 8, 64, 128)] == [1, 8, 64, 128]
    assert one.size == 10
    assert list(one.values()) == [*range(1, 9), 64, 128]


def test_decimal_steps_are_exact() -> None:
    """BUG-006: all seven values are reachable and print as written."""
    one = dimension(FloatRange(low=0.1, high=0.7, step=0.1))
    assert [repr(value) for value in one.values()] == [f"0.{i}" for i in range(1, 8)]
    assert all(one.decode(one.encode(value)) == value for value in one.values())


def test_integer_steps_never_reach_past_the_last() -> None:
    one = dimension(IntRange(low=1, high=10, step=4))
    distribution = one.distribution()
    assert isinstance(distribution, IntDistribution)
    assert list(one.values()) == [1, 5, 9]
    assert (distribution.low, distribution.high, distribution.step) == (1, 9, 4)


def test_numbers_in_a_list_are_ordered_for_the_sampler() -> None:
    one = dimension(choices(8, 1, 4, 2))
    assert isinstance(one.distribution(), IntDistribution)
    assert [one.decode(i) for i in range(4)] == [1, 2, 4, 8]
    assert one.encode(4) == 2


@pytest.mark.parametrize(
    "values",
    [([0.9, 0.95], [0.9, 0.999]), (None, 2048, 4096), (True, False), ("none", "full")],
)
def test_structured_choices_come_back_with_their_types(values) -> None:
    """BUG-009: stored under a stable text label, turned back into the original."""
    one = dimension(choices(*values))
    distribution = one.distribution()
    assert isinstance(distribution, CategoricalDistribution)
    assert all(isinstance(text, str) for text in distribution.choices)
    for value in values:
        back = one.decode(one.encode(value))
        assert back == value
        assert type(back) is type(value)


def test_equal_numbers_of_other_types_are_told_apart() -> None:
    one = dimension(choices(True, False))
    assert one.decode(one.encode(True)) is True
    with pytest.raises(ValueError, match="is none of"):
        one.encode(1)


@given(st.floats(min_value=1e-6, max_value=1.0))
def test_real_ranges(value: float) -> None:
    one = dimension(FloatRange(low=1e-6, high=1.0, log=True))
    assert one.decode(one.encode(value)) == pytest.approx(value)
    assert one.size is None


@pytest.mark.parametrize("value", [0.0, 0.1, 12_345.678901, 99_999.999999, 1e5])
def test_a_long_decimal_grid_is_exact_without_being_listed(value: float) -> None:
    domain = FloatRange(low=0.0, high=1e5, step=1e-6)
    axis = dimension(domain)
    assert axis.size == 10**11 + 1
    assert axis.decode(axis.encode(value)) == value
    assert contains(domain, value)
    assert not contains(domain, value + 4e-7 if value < 1e5 else 99_999.9999994)
