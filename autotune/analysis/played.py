"""A launch that is played from recorded ones: its iterations, ended by the rules of a real one.

Pure functions of recorded times and of the draws that are handed in. All times in seconds.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Sequence

from autotune.analysis import windows
from autotune.contract.plan import Measuring

Iteration = tuple[float, ...]
"""Seconds of one iteration, by rank."""
LEAST_SHARE = 0.1
"""No drawn iteration takes less than this share of its batch's mean."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recorded:
    """Iterations of one recorded launch, whole cycles."""

    warmup: tuple[Iteration, ...]
    timed: tuple[Iteration, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Played:
    """Iterations of a played launch."""

    warmup: tuple[Iteration, ...]
    timed: tuple[Iteration, ...]
    steady: bool
    """Whether the warm-up ended because two cycles agreed."""
    verdict: windows.Verdict
    """Why the window ended: ``done`` or ``slower``."""


class Source:
    """What was recorded of one configuration, and what more of it can be drawn.

    Args:
        launches: Its recorded launches, the first one first.
        cycle: Iterations per cycle.
        others: Relative deviations of other configurations, for one that was timed for a single
            cycle, whose own are not known.
    """

    def __init__(self, launches: Sequence[Recorded], cycle: int, others: Sequence[float]) -> None:
        self.first = launches[0]
        self.cycle = cycle
        levels = [math.log(level(one.timed)) for one in launches]
        self.level = math.exp(math.fsum(levels) / len(levels))
        """Geometric mean over the launches of the slowest rank's mean iteration."""
        own = [one for launch in launches for one in deviations(launch.timed, cycle)]
        self._deviations = own or list(others) or [1.0]

    def drawn(self, draw: random.Random, at: float) -> list[Iteration]:
        """Return one cycle whose iterations take ``at`` seconds on average."""
        scale = at / level(self.first.timed)
        cycle: list[Iteration] = []
        for batch in range(self.cycle):
            share = draw.choice(self._deviations) * scale
            recorded = self.first.timed[batch :: self.cycle]
            means = (math.fsum(rank) / len(rank) for rank in zip(*recorded, strict=True))
            cycle.append(tuple(mean * share for mean in means))
        return cycle


def play(
    source: Source, rules: Measuring, draw: random.Random, *, factor: float | None = None
) -> Played:
    """Run the rules over recorded iterations and, where those end, over drawn ones.

    Args:
        source: What was recorded.
        rules: The plan's rules of measuring.
        draw: Draws what was not recorded.
        factor: Of a launch that is drawn whole, how much longer than the configuration's usual
            its iterations take; ``None``: the first recorded launch itself.
    """
    cycle = source.cycle
    usual = level(source.first.timed)
    at = usual if factor is None else source.level * factor
    scale = at / usual
    warmup = [tuple(seconds * scale for seconds in one) for one in source.first.warmup]
    while (state := windows.warm(slowest(warmup), cycle, rules)) == "no":
        warmup += source.drawn(draw, at)
    recorded = list(source.first.timed) if factor is None else []
    timed: list[Iteration] = []
    verdict: windows.Verdict = "go_on"
    while verdict == "go_on":
        timed += recorded[:cycle] or source.drawn(draw, at)
        del recorded[:cycle]
        verdict = windows.window(slowest(timed), cycle, rules)
    return Played(warmup=tuple(warmup), timed=tuple(timed), steady=state == "yes", verdict=verdict)


def slowest(iterations: Sequence[Iteration]) -> list[float]:
    """Return the time of the slowest rank in each iteration."""
    return [max(one) for one in iterations]


def level(iterations: Sequence[Iteration]) -> float:
    """Return the mean iteration of the slowest rank."""
    return math.fsum(slowest(iterations)) / len(iterations)


def deviations(iterations: Sequence[Iteration], cycle: int) -> list[float]:
    """Return each iteration as a share of its batch's mean.

    The mean of a few values lies nearer to each of them than the true one does; shares are spread
    to make up for it. Of a single cycle there are none.
    """
    cycles = len(iterations) // cycle
    if cycles < 2:
        return []
    times = slowest(iterations)
    wider = math.sqrt(cycles / (cycles - 1))
    found: list[float] = []
    for batch in range(cycle):
        own = times[batch::cycle]
        mean = math.fsum(own) / len(own)
        found += [max(LEAST_SHARE, 1.0 + (one / mean - 1.0) * wider) for one in own]
    return found
