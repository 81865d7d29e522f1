"""The speed of every configuration from all its launches, good enough to put them in order.

One launch is a noisy value. Two kinds of noise say nothing about a configuration and can be taken
out without another launch: slow iterations that every launch meets alike, and the drift of the
machine, which the configurations that were launched more than once show.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Final

from autotune.analysis import students_t
from autotune.analysis.paired import Launch

BY_CHANCE: Final = 0.01
"""A configuration with more slow iterations than chance gives it this often has them itself."""
LEAST_SHARE: Final = 0.02
"""Share of slow iterations that is always put down to the machine: windows are too short to show
that it is smaller."""
UNSTABLE: Final = 0.03
"""Share by which a configuration whose allocator ran out of room must be ahead of a stable one:
some of its steps wait for memory, and a short window may miss how often."""
MIN_DEGREES: Final = 3
"""Degrees of freedom from which a drift is believed at all."""


def estimates(launches: Sequence[tuple[int, Launch]]) -> dict[int, float]:
    """Return each configuration's seconds per iteration, comparable with one another.

    The value of a launch is its typical time with what slow iterations usually add. Where a
    configuration has more of them than the others' share explains (1 %), it is the launch's mean.
    A linear drift over the order of launches is removed where the repeated ones prove it (95 %).
    Several launches count by their median.

    Args:
        launches: Number of the configuration and launch, in the order of launching.
    """
    if not launches:
        return {}
    values = _without_common_slowness(launches)
    by_number: dict[int, list[tuple[int, float]]] = {}
    for position, ((number, _), value) in enumerate(zip(launches, values, strict=True)):
        by_number.setdefault(number, []).append((position, value))
    slope = drift(by_number)
    middle = (len(launches) - 1) / 2
    return {
        number: math.exp(
            statistics.median(value - slope * (position - middle) for position, value in mine)
        )
        for number, mine in by_number.items()
    }


def weighed(seconds: float, *, unstable: bool) -> float:
    """What a configuration's time counts as when it is compared with others."""
    return seconds * (1.0 + UNSTABLE) if unstable else seconds


def _without_common_slowness(launches: Sequence[tuple[int, Launch]]) -> list[float]:
    """Logarithm of each launch's value."""
    own = _with_own_slowness(launches)
    added = [math.log(one.mean_s / one.typical_s) for number, one in launches if number not in own]
    usual = statistics.fmean(added) if added else 0.0
    return [
        math.log(one.mean_s) if number in own else math.log(one.typical_s) + usual
        for number, one in launches
    ]


def _with_own_slowness(launches: Sequence[tuple[int, Launch]]) -> set[int]:
    """Configurations whose slow iterations are more than the machine's share explains."""
    counts: dict[int, tuple[int, int]] = {}
    for number, one in launches:
        slow, total = counts.get(number, (0, 0))
        counts[number] = (slow + one.num_slow, total + one.iterations)
    all_slow = sum(slow for slow, _ in counts.values())
    all_total = sum(total for _, total in counts.values())
    found: set[int] = set()
    for number, (slow, total) in counts.items():
        others = all_total - total
        share = max(LEAST_SHARE, (all_slow - slow) / others if others else 0.0)
        if _at_least(slow, total, share) < BY_CHANCE:
            found.add(number)
    return found


def _at_least(count: int, total: int, share: float) -> float:
    """Chance of ``count`` or more of ``total`` when each comes with probability ``share``.

    By logarithms: the number of ways has more digits than a float can hold from some thousand
    iterations on.
    """
    if share >= 1.0:
        return 1.0
    odds = math.log(share), math.log1p(-share)
    fewer = (_log_ways(total, k) + k * odds[0] + (total - k) * odds[1] for k in range(count))
    return max(0.0, 1.0 - math.fsum(map(math.exp, fewer)))


def _log_ways(total: int, count: int) -> float:
    return math.lgamma(total + 1) - math.lgamma(count + 1) - math.lgamma(total - count + 1)


def drift(launches: Mapping[int, Sequence[tuple[int, float]]]) -> float:
    """Return the drift of the log time per launch, 0 where it is not proved.

    Args:
        launches: Position and log time of each launch, by configuration. Those that were launched
            once say nothing about drift.
    """
    moved: list[tuple[float, float]] = []
    repeated = 0
    for mine in launches.values():
        if len(mine) < 2:
            continue
        repeated += 1
        centre = statistics.fmean(position for position, _ in mine)
        level = statistics.fmean(value for _, value in mine)
        moved += [(position - centre, value - level) for position, value in mine]
    degrees = len(moved) - repeated - 1
    if degrees < MIN_DEGREES:
        return 0.0
    weight = math.fsum(x * x for x, _ in moved)
    slope = math.fsum(x * y for x, y in moved) / weight
    rest = math.fsum((y - slope * x) ** 2 for x, y in moved) / degrees
    proved = abs(slope) > students_t.quantile(0.975, degrees) * math.sqrt(rest / weight)
    return slope if proved else 0.0
