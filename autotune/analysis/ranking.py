"""The speed of every configuration from all its launches, good enough to put them in order.

One launch is a noisy value. Two kinds of noise say nothing about a configuration and can be taken
out without another launch: spikes that every launch meets alike, and the drift of the machine,
which the configurations that were launched more than once show.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Final

from autotune.analysis import students_t
from autotune.analysis.paired import Launch

OWN_SPIKES: Final = 0.07
"""Spikes may add this share more to a launch than to the others before they count against its
configuration. With 2 % of the iterations at 1.5 times one launch of 24 iterations in 400 does."""
MIN_DEGREES: Final = 3
"""Degrees of freedom from which a drift is believed at all."""


def estimates(launches: Sequence[tuple[int, Launch]]) -> dict[int, float]:
    """Return each configuration's seconds per iteration, comparable with one another.

    The value of a launch is its typical time with the spikes of a usual launch added, unless its
    own add over 7 % more: then it is its mean. A linear drift over the order of launches is
    removed where the repeated ones prove it (95 %). Several launches count by their median.

    Args:
        launches: Number of the configuration and launch, in the order of launching.
    """
    if not launches:
        return {}
    values = _without_common_spikes([launch for _, launch in launches])
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


def _without_common_spikes(launches: Sequence[Launch]) -> list[float]:
    """Logarithm of each launch's value."""
    surcharges = [math.log(launch.mean_s / launch.typical_s) for launch in launches]
    usual = statistics.median(surcharges)
    allowed = usual + math.log1p(OWN_SPIKES)
    return [
        math.log(launch.typical_s) + usual if surcharge <= allowed else math.log(launch.mean_s)
        for launch, surcharge in zip(launches, surcharges, strict=True)
    ]


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
