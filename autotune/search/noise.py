"""How far apart two launches of one configuration lie, and what that leaves undecided."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, Literal

from autotune.analysis.noise import launch_spread
from autotune.search import history
from autotune.store.records import StudyContents

UNKNOWN: Final = {"cpu": 0.25, "cuda": 0.05}
"""Noise taken until it is measured; on two CPU cores up to 21 % was seen."""
FEW_LAUNCHES: Final = 3
"""Launches from which their spread is believed as it is: two may agree by luck."""
LEAST_OF_FEW: Final = 0.2
"""Share of the unknown noise that fewer launches do not go below."""
ONE_SIDED: Final = 1.645
"""Standard deviations that a difference exceeds by chance in 5 %, to one side."""


def for_racing(contents: StudyContents, device: Literal["cpu", "cuda"]) -> float:
    """The spread between launches of the baseline as a share, or what stands for it."""
    baseline = contents.baseline()
    times = () if baseline is None else contents.launches(baseline.number)
    return _believed([one.s_per_it for one in times], device)


def may_be_as_fast(
    contents: StudyContents, device: Literal["cpu", "cuda"], candidate: int, reference: int
) -> bool:
    """Whether the noise between launches leaves open that the candidate is no slower.

    A candidate that looks slower in the launches of the search is given up only where that is
    no luck of single launches: one-sided, 5 %.
    """
    times = history.search_times(contents)
    gap = math.log(times[candidate] / times[reference])
    if gap <= 0:
        return True
    counts = [len(history.search_launches(contents, one)) for one in (candidate, reference)]
    spread = math.sqrt(sum(1 / count for count in counts))
    return gap <= ONE_SIDED * math.log1p(_noise(contents, device)) * spread


def _noise(contents: StudyContents, device: Literal["cpu", "cuda"]) -> float:
    """The spread of what configurations are ranked by; spikes that all have alike are no part."""
    baseline = contents.baseline()
    launches = () if baseline is None else history.search_launches(contents, baseline.number)
    return _believed([one.typical_s for one in launches], device)


def _believed(times: Sequence[float], device: Literal["cpu", "cuda"]) -> float:
    """The spread of launches; few of them may agree by luck."""
    spread = launch_spread(times) if times else None
    if spread is None:
        return UNKNOWN[device]
    return spread if len(times) >= FEW_LAUNCHES else max(spread, LEAST_OF_FEW * UNKNOWN[device])
