"""Which iterations of a launch were slow, and what the launch takes without them.

What is asked of a configuration is its mean time in the long run. A few dozen iterations show it
badly where one in fifty takes half as long again: whether such a one falls into a window of eight
moves its mean by 6 %, by luck. So the mean is taken apart, mean = typical x surcharge. The typical
time is the mean without the slow iterations, and short windows show it well. The surcharge is what
the slow ones add; whether it belongs to the configuration or to the machine only many launches
show (:mod:`autotune.analysis.paired`, :mod:`autotune.analysis.ranking`).

An iteration is slow where it takes over 20 % longer than is usual for its batch in its launch, and
longer than the noise of the others explains. Everything else counts fully, whatever its sign, so
where nothing is slow the typical time *is* the mean: noise is not cut off at one side.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence
from typing import Final

LEAST_EXCESS: Final = 0.20
"""Share beyond the usual below which an iteration is never slow."""
NOISE_LIMIT: Final = 5.0
"""Standard deviations of the other iterations below which it is not: a short window shows them
too small by up to a third."""
_SWEEPS: Final = 3
_TO_DEVIATION: Final = 1.4826
"""From the median distance to the standard deviation of a normal distribution."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Parted:
    """The iterations of one launch."""

    typical_s: float
    """Mean over the batches of the cycle, slow iterations left out (s/it)."""
    num_slow: int


def part(launches: Sequence[Sequence[float]], cycle: int) -> tuple[Parted, ...]:
    """Take the launches of *one* configuration apart.

    They share how long each batch takes relative to the others, so with several launches even a
    window of a single cycle can tell a slow iteration from a long batch. A single launch of a
    single cycle cannot, and nothing in it is slow.

    Args:
        launches: Seconds of the timed iterations of each launch, whole cycles, in order.
        cycle: Iterations of a cycle.

    Raises:
        ValueError: A launch is not whole cycles, or a time is not positive and finite.
    """
    for launch in launches:
        if not launch or len(launch) % cycle:
            raise ValueError(f"{len(launch)} iterations are not whole cycles of {cycle}")
        if not all(math.isfinite(seconds) and seconds > 0 for seconds in launch):
            raise ValueError("an iteration's time must be positive and finite")
    logs = [[math.log(seconds) for seconds in launch] for launch in launches]
    levels, batches = _usual(logs, cycle)
    limit = max(math.log1p(LEAST_EXCESS), NOISE_LIMIT * _noise(logs, levels, cycle))
    found: list[Parted] = []
    for launch, values, level in zip(launches, logs, levels, strict=True):
        usual = [level + batch for batch in batches]
        slow = [value - usual[i % cycle] > limit for i, value in enumerate(values)]
        typical = []
        for b in range(cycle):
            kept = [s for s, out in zip(launch[b::cycle], slow[b::cycle], strict=True) if not out]
            typical.append(statistics.fmean(kept) if kept else math.exp(usual[b]))
        found.append(Parted(typical_s=statistics.fmean(typical), num_slow=sum(slow)))
    return tuple(found)


def _usual(logs: Sequence[Sequence[float]], cycle: int) -> tuple[list[float], list[float]]:
    """Return the level of each launch and the offset of each batch (median polish, Tukey 1977).

    Lower medians: of two values the middle would be half a slow one.
    """
    batches = [0.0] * cycle
    levels = [0.0] * len(logs)
    for _ in range(_SWEEPS):
        levels = [
            statistics.median_low([v - batches[i % cycle] for i, v in enumerate(launch)])
            for launch in logs
        ]
        batches = [statistics.median_low(values) for values in _by_batch(logs, levels, cycle)]
    return levels, batches


def _noise(logs: Sequence[Sequence[float]], levels: Sequence[float], cycle: int) -> float:
    """Standard deviation of the log times about their batch, which slow ones do not move."""
    distances: list[float] = []
    for values in _by_batch(logs, levels, cycle):
        if len(values) > 1:
            middle = statistics.median(values)
            # The middle of few values lies nearer to them than the truth does.
            scale = math.sqrt(len(values) / (len(values) - 1))
            apart = sorted(scale * abs(value - middle) for value in values)
            distances += apart[len(values) % 2 :]  # the middle value itself shows no distance
    return _TO_DEVIATION * statistics.median_low(distances) if distances else 0.0


def _by_batch(
    logs: Sequence[Sequence[float]], levels: Sequence[float], cycle: int
) -> list[list[float]]:
    return [
        [v - level for launch, level in zip(logs, levels, strict=True) for v in launch[b::cycle]]
        for b in range(cycle)
    ]
