"""From a parameter's domain to what a sampler can draw, and back to exact values.

A sampler sees *coordinates*: floats on an axis, indices, or text labels. Values keep their
exact type and digits here, outside Optuna, which stores every number as a float.
"""

from __future__ import annotations

import bisect
import dataclasses
import math
import random
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

from autotune.space.domains import MAX_EXACT_INT, grid, grid_point, nearest, steps_of
from autotune.space.model import Choices, Domain, FloatRange, IntRange, Param

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

SLOT: Final = 0.08
"""Length of the slot of one ``also`` value, as a share of the range's axis."""
MAX_STEPS: Final = 1024
"""Longer grids are an axis of real numbers to the sampler, rounded afterwards: the Gaussian
process lists every point of a whole-number dimension (74 GiB for 1e6 … 1e10)."""

Coordinate = float | int | str


class Dimension(Protocol):
    """One parameter as the sampler sees it."""

    @property
    def size(self) -> int | None:
        """Number of distinct values; ``None`` when they are not countable."""

    def distribution(self) -> BaseDistribution:
        """The Optuna distribution of the coordinate."""

    def encode(self, value: Any) -> Coordinate:
        """The coordinate of a legal value."""

    def decode(self, coordinate: Coordinate) -> Any:
        """The value at a coordinate, with its exact type."""

    def values(self) -> Iterator[Any]:
        """All values, where ``size`` is a number."""

    def draw(self, rng: random.Random) -> Any:
        """One value, uniform along the axis."""


def dimension(domain: Domain) -> Dimension:
    """Return how the sampler sees ``domain``."""
    if isinstance(domain, Choices):
        return _ordinal(domain) or LabelDimension(domain)
    if isinstance(domain, IntRange):
        few = (domain.high - domain.low) // domain.step < MAX_STEPS
        plain = not domain.also and domain.high <= MAX_EXACT_INT and domain.low >= 0
        if few and plain and not (domain.log and domain.step != 1):
            return IntDimension(domain)
        return AxisDimension(domain)
    if domain.step is not None and steps_of(domain) < MAX_STEPS:
        return GridDimension(domain)
    return AxisDimension(domain)


def dimensions(params: tuple[Param, ...]) -> Mapping[str, Dimension]:
    """Dimension of each parameter by name."""
    return {param.name: dimension(param.domain) for param in params}


def _ordinal(domain: Choices) -> OrdinalDimension | None:
    """Numbers in a list have an order that the sampler can use; other values have none."""
    numeric = all(isinstance(v, int | float) and not isinstance(v, bool) for v in domain.values)
    return OrdinalDimension(domain) if numeric and len(domain.values) > 2 else None


@dataclasses.dataclass(frozen=True)
class LabelDimension:
    """Choices without an order, by their stable labels."""

    domain: Choices

    @property
    def size(self) -> int | None:
        return len(self.domain.values)

    def distribution(self) -> BaseDistribution:
        from optuna.distributions import CategoricalDistribution

        return CategoricalDistribution(self.domain.labels)

    def encode(self, value: Any) -> Coordinate:
        return self.domain.labels[index_of(value, self.domain.values)]

    def decode(self, coordinate: Coordinate) -> Any:
        return self.domain.values[self.domain.labels.index(str(coordinate))]

    def values(self) -> Iterator[Any]:
        yield from self.domain.values

    def draw(self, rng: random.Random) -> Any:
        return rng.choice(self.domain.values)


@dataclasses.dataclass(frozen=True)
class OrdinalDimension:
    """Choices that are numbers, by their rank."""

    domain: Choices

    @property
    def _sorted(self) -> tuple[Any, ...]:
        return tuple(sorted(self.domain.values))

    @property
    def size(self) -> int | None:
        return len(self.domain.values)

    def distribution(self) -> BaseDistribution:
        from optuna.distributions import IntDistribution

        return IntDistribution(0, len(self.domain.values) - 1)

    def encode(self, value: Any) -> Coordinate:
        return index_of(value, self._sorted)

    def decode(self, coordinate: Coordinate) -> Any:
        return self._sorted[int(coordinate)]

    def values(self) -> Iterator[Any]:
        yield from self._sorted

    def draw(self, rng: random.Random) -> Any:
        return rng.choice(self.domain.values)


@dataclasses.dataclass(frozen=True)
class IntDimension:
    """Whole numbers that a float holds exactly, without extra values."""

    domain: IntRange

    @property
    def _high(self) -> int:
        return self.domain.low + (self.size_int - 1) * self.domain.step

    @property
    def size_int(self) -> int:
        return (self.domain.high - self.domain.low) // self.domain.step + 1

    @property
    def size(self) -> int | None:
        return self.size_int

    def distribution(self) -> BaseDistribution:
        from optuna.distributions import IntDistribution

        return IntDistribution(
            self.domain.low, self._high, log=self.domain.log, step=self.domain.step
        )

    def encode(self, value: Any) -> Coordinate:
        return int(value)

    def decode(self, coordinate: Coordinate) -> Any:
        return int(coordinate)

    def values(self) -> Iterator[Any]:
        yield from range(self.domain.low, self._high + 1, self.domain.step)

    def draw(self, rng: random.Random) -> Any:
        if not self.domain.log:
            return rng.randrange(self.domain.low, self._high + 1, self.domain.step)
        return AxisDimension(self.domain).draw(rng)


@dataclasses.dataclass(frozen=True)
class GridDimension:
    """Real numbers ``low + k · step``, computed in decimal so that each prints as written."""

    domain: FloatRange

    @property
    def _grid(self) -> tuple[float, ...]:
        assert self.domain.step is not None
        regular = grid(self.domain.low, self.domain.step, steps_of(self.domain))
        return tuple(sorted({*regular, *self.domain.also}))

    @property
    def size(self) -> int | None:
        return len(self._grid)

    def distribution(self) -> BaseDistribution:
        from optuna.distributions import IntDistribution

        return IntDistribution(0, len(self._grid) - 1)

    def encode(self, value: Any) -> Coordinate:
        points = self._grid
        place = bisect.bisect_left(points, value)
        near = [i for i in (place - 1, place) if 0 <= i < len(points)]
        return min(near, key=lambda i: abs(points[i] - value))

    def decode(self, coordinate: Coordinate) -> Any:
        return self._grid[int(coordinate)]

    def values(self) -> Iterator[Any]:
        yield from self._grid

    def draw(self, rng: random.Random) -> Any:
        return rng.choice(self._grid)


@dataclasses.dataclass(frozen=True)
class AxisDimension:
    """A range on the axis 0 … 1, lengthened by one slot for each ``also`` value.

    With ``also: [0]`` under a logarithmic range, zero has the slot just below ``low``: the
    sampler sees one ordered dimension in which zero is the neighbour of the smallest values.
    """

    domain: IntRange | FloatRange

    @property
    def _below(self) -> tuple[Any, ...]:
        """Extra values below the range, the nearest first."""
        return tuple(sorted((v for v in self.domain.also if v < self.domain.low), reverse=True))

    @property
    def _above(self) -> tuple[Any, ...]:
        return tuple(sorted(v for v in self.domain.also if v > self.domain.low))

    @property
    def size(self) -> int | None:
        if isinstance(self.domain, IntRange):
            steps = (self.domain.high - self.domain.low) // self.domain.step
        elif self.domain.step is not None:
            steps = steps_of(self.domain)
        elif self.domain.low < self.domain.high:
            return None
        else:
            steps = 0
        return steps + 1 + len(self.domain.also)

    def distribution(self) -> BaseDistribution:
        from optuna.distributions import FloatDistribution

        return FloatDistribution(*self._ends())

    def encode(self, value: Any) -> Coordinate:
        if value in self._below:
            return -SLOT * (self._below.index(value) + 0.5)
        if value in self._above:
            return 1.0 + SLOT * (self._above.index(value) + 0.5)
        low, high = self._span()
        if high <= low:
            return 0.5
        place = math.log(value) if self.domain.log else float(value)
        return min(1.0, max(0.0, (place - low) / (high - low)))

    def decode(self, coordinate: Coordinate) -> Any:
        place = float(coordinate)
        if place < 0.0 and self._below:
            return self._below[min(int(-place / SLOT), len(self._below) - 1)]
        if place > 1.0 and self._above:
            return self._above[min(int((place - 1.0) / SLOT), len(self._above) - 1)]
        low, high = self._span()
        raw = low + min(1.0, max(0.0, place)) * (high - low)
        if self.domain.log:
            raw = math.exp(raw)
        return self._snap(raw)

    def values(self) -> Iterator[Any]:
        yield from sorted(self._below)
        if isinstance(self.domain, IntRange):
            yield from range(self.domain.low, self.domain.high + 1, self.domain.step)
        elif self.domain.step is not None:
            points = range(steps_of(self.domain) + 1)
            yield from (grid_point(self.domain.low, self.domain.step, k) for k in points)
        else:
            yield self.domain.low
        yield from self._above

    def draw(self, rng: random.Random) -> Any:
        return self.decode(rng.uniform(*self._ends()))

    def _ends(self) -> tuple[float, float]:
        return -SLOT * len(self._below), 1.0 + SLOT * len(self._above)

    def _span(self) -> tuple[float, float]:
        """Ends of the range on the inner axis; whole numbers own half a unit to each side."""
        half = 0.5 if isinstance(self.domain, IntRange) and self.domain.step == 1 else 0.0
        low, high = float(self.domain.low) - half, float(self.domain.high) + half
        if self.domain.log:
            return math.log(low), math.log(high)
        return low, high

    def _snap(self, raw: float) -> Any:
        low, high = self.domain.low, self.domain.high
        if isinstance(self.domain, FloatRange):
            return float(nearest(self.domain, min(high, max(low, raw))))
        assert isinstance(low, int)
        steps = round((raw - low) / self.domain.step)
        largest = (int(high) - low) // self.domain.step
        return low + min(largest, max(0, steps)) * self.domain.step


def index_of(value: Any, values: tuple[Any, ...]) -> int:
    """Index of ``value`` among ``values``, where ``1``, ``True`` and ``"1"`` differ."""
    for index, candidate in enumerate(values):
        if type(candidate) is type(value) and candidate == value:
            return index
    for index, candidate in enumerate(values):
        both_numbers = not isinstance(value, bool) and not isinstance(candidate, bool)
        if both_numbers and candidate == value:
            return index
    raise ValueError(f"{value!r} is none of {values!r}")
