"""Summaries of iteration times within one launch. All times in seconds."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence
from typing import Final

from autotune.analysis import students_t

CLOCK_GAP: Final = 0.10
"""Share by which the sum of the iterations may differ from the clock of the timed window."""
UNSTEADY_GAP: Final = 0.03
"""Share by which mean and median may differ before a trial is called unsteady."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Interval:
    """A mean with its 95 % confidence interval."""

    mean: float
    low: float
    high: float
    """``low`` and ``high`` equal ``mean`` when ``count`` is 1: the spread is then unknown."""
    count: int
    """Number of values that the interval rests on."""

    @property
    def share(self) -> float:
        """Half the width as a share of the mean; infinite while the spread is unknown."""
        return math.inf if self.count < 2 else (self.high - self.mean) / self.mean


def mean_interval(cycle_times: Sequence[float]) -> Interval:
    """Return the mean of whole-cycle times and its 95 % interval (Student's t).

    The batches of a cycle differ in length, so single iterations are no sample of one
    distribution; whole cycles are.

    Args:
        cycle_times: Mean iteration time of each whole cycle.

    Raises:
        ValueError: No value, or one that is not positive and finite.
    """
    _check(cycle_times)
    mean = statistics.fmean(cycle_times)
    count = len(cycle_times)
    if count == 1:
        return Interval(mean=mean, low=mean, high=mean, count=1)
    half = students_t.quantile(0.975, count - 1) * statistics.stdev(cycle_times) / math.sqrt(count)
    # A time cannot reach zero; with two or three noisy cycles the formula alone would.
    low = max(mean - half, min(cycle_times) / 2.0)
    return Interval(mean=mean, low=low, high=mean + half, count=count)


def cycle_means(iteration_s: Sequence[float], cycle: int) -> tuple[float, ...]:
    """Return the mean iteration time of each whole cycle of ``cycle`` iterations.

    Raises:
        ValueError: The iterations are not whole cycles.
    """
    _check(iteration_s)
    if cycle < 1 or len(iteration_s) % cycle:
        raise ValueError(f"{len(iteration_s)} iterations are not whole cycles of {cycle}")
    return tuple(
        statistics.fmean(iteration_s[start : start + cycle])
        for start in range(0, len(iteration_s), cycle)
    )


def batch_medians(iteration_s: Sequence[float], cycle: int) -> tuple[float, ...]:
    """Return the median time of each batch of the cycle.

    Raises:
        ValueError: Less than one whole cycle.
    """
    _check(iteration_s)
    if cycle < 1 or len(iteration_s) < cycle:
        raise ValueError(f"{len(iteration_s)} iterations are less than one cycle of {cycle}")
    return tuple(statistics.median(iteration_s[batch::cycle]) for batch in range(cycle))


def cycles_agree(previous: Sequence[float], last: Sequence[float], tolerance: float) -> bool:
    """Return whether the medians of two cycles are within ``tolerance`` (a share).

    The share is taken of the smaller median, so the order of the two does not matter.
    """
    _check(previous)
    _check(last)
    first, second = statistics.median(previous), statistics.median(last)
    return abs(first - second) <= tolerance * min(first, second)


def quantile(values: Sequence[float], p: float) -> float:
    """Return the ``p`` quantile (0 … 1), interpolated linearly between order statistics.

    Raises:
        ValueError: No value, or ``p`` out of range.
    """
    if not values or not 0.0 <= p <= 1.0:
        raise ValueError(f"no {p!r} quantile of {len(values)} values")
    ordered = sorted(values)
    position = p * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def is_unsteady(iteration_s: Sequence[float], cycle: int) -> bool:
    """Return whether mean and median of the iterations differ by more than 3 %.

    The batches of a cycle take different times on purpose, which alone parts mean and median.
    So each time is first divided by its batch's typical one (the lower median: with two cycles
    the middle of two values would hide a spike).

    Args:
        iteration_s: Times of whole cycles, in order.
        cycle: Iterations per cycle. With a single cycle nothing can be told: not unsteady.
    """
    _check(iteration_s)
    typical = [statistics.median_low(iteration_s[batch::cycle]) for batch in range(cycle)]
    relative = [seconds / typical[i % cycle] for i, seconds in enumerate(iteration_s)]
    gap = statistics.fmean(relative) / statistics.median(relative) - 1.0
    return abs(gap) > UNSTEADY_GAP


def agrees_with_clock(iteration_s: Sequence[float], window_s: float) -> bool:
    """Return whether the iterations add up to the host's clock of the window within 10 %.

    A larger difference is a fault of the worker, such as milliseconds taken for seconds.
    """
    _check((*iteration_s, window_s))
    return abs(math.fsum(iteration_s) - window_s) <= CLOCK_GAP * window_s


def _check(values: Sequence[float]) -> None:
    if not values:
        raise ValueError("no times were given")
    for value in values:
        if not math.isfinite(value) or value <= 0:
            raise ValueError(f"a time must be positive and finite, not {value!r}")
