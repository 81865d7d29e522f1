"""What lies in a domain, and what is nearest to a value outside it. Exact, also for decimals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Final

from autotune.space.canonical import label
from autotune.space.model import Choices, Domain, FloatRange, IntRange

MAX_EXACT_INT: Final = 2**53
"""Samplers compute with doubles: whole numbers above it lose digits there."""


def contains(domain: Domain, value: Any) -> bool:
    """Whether ``value`` is one that ``domain`` can take, with its type."""
    if isinstance(domain, Choices):
        return any(type(value) is type(item) and value == item for item in domain.values)
    if isinstance(domain, IntRange):
        if isinstance(value, bool) or not isinstance(value, int):
            return False
        on_grid = (value - domain.low) % domain.step == 0
        return value in domain.also or (domain.low <= value <= domain.high and on_grid)
    if isinstance(value, bool) or not isinstance(value, float):
        return False
    if value in domain.also:
        return True
    if not domain.low <= value <= domain.high:
        return False
    return domain.step is None or value in _around(domain, value)


def values(domain: Domain) -> tuple[Any, ...]:
    """All values of a list or of a short range of whole numbers; none of decimals."""
    if isinstance(domain, Choices):
        return domain.values
    if isinstance(domain, IntRange):
        return tuple(sorted({*range(domain.low, domain.high + 1, domain.step), *domain.also}))
    return ()


def exact(value: float) -> Decimal:
    """The decimal number that a double prints as: 0.1 is a tenth."""
    return Decimal(repr(value))


def steps_of(domain: FloatRange) -> int:
    """Number of steps from ``low`` to ``high``."""
    assert domain.step is not None
    return int((exact(domain.high) - exact(domain.low)) / exact(domain.step))


def grid(low: float, step: float, steps: int) -> tuple[float, ...]:
    """``low + k · step`` for k = 0 … ``steps``, exact in decimal."""
    return tuple(grid_point(low, step, k) for k in range(steps + 1))


def grid_point(low: float, step: float, k: int) -> float:
    """``low + k · step``, exact in decimal."""
    return float(exact(low) + k * exact(step))


def _around(domain: FloatRange, value: float) -> tuple[float, ...]:
    """The grid's points next to ``value``, without listing a grid that may be huge."""
    assert domain.step is not None
    below = int((exact(float(value)) - exact(domain.low)) / exact(domain.step))
    last = steps_of(domain)
    places = sorted({min(last, max(0, k)) for k in (below - 1, below, below + 1)})
    return tuple(grid_point(domain.low, domain.step, k) for k in places)


def nearest(domain: Domain, wished: Any) -> Any:
    """Return the value of ``domain`` that is nearest to ``wished``.

    Text, switches and structures that are no choice give the first choice; numbers the nearest on
    the domain's scale.
    """
    if isinstance(domain, Choices):
        return _nearest_choice(domain, wished)
    number = float(domain.low) if not _is_number(wished) else wished
    if number in domain.also:
        return next(value for value in domain.also if value == number)
    clipped = min(max(number, domain.low), domain.high)
    inside: Any
    if isinstance(domain, IntRange):
        inside = _on_int_grid(domain, clipped)
    elif domain.step is not None:
        inside = _closest(_around(domain, clipped), clipped)
    else:
        inside = float(clipped)
    return _closest((inside, *domain.also), number)


def _on_int_grid(domain: IntRange, clipped: float) -> int:
    steps = (int(clipped) - domain.low) // domain.step
    lower = domain.low + steps * domain.step
    upper = min(lower + domain.step, domain.high)
    return int(_closest((lower, upper), clipped))


def _nearest_choice(domain: Choices, wished: Any) -> Any:
    for item in domain.values:
        if type(item) is type(wished) and item == wished:
            return item
    numbers = [item for item in domain.values if _is_number(item)]
    if _is_number(wished) and numbers:
        return _closest(numbers, wished)
    by_label = dict(zip(domain.labels, domain.values, strict=True))
    return by_label.get(label(wished) if _is_plain(wished) else "", domain.values[0])


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, bool | int | float | str)


def _closest(values: Sequence[Any], wished: float) -> Any:
    """By ratio among positive numbers (sizes), else by difference.

    Zero means off: it is near to zero only.
    """
    positive = [value for value in values if value > 0]
    if wished > 0 and positive:
        return min(positive, key=lambda value: abs(math.log(value) - math.log(wished)))
    return min(values, key=lambda value: abs(value - wished))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
