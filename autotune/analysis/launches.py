"""A configuration's time over all its launches."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence
from typing import Final

from autotune.contract.outcome import Measurement

CONFIDENCE: Final = 0.95


@dataclasses.dataclass(frozen=True, kw_only=True)
class LaunchTime:
    """Seconds per iteration over the launches of one configuration."""

    median: float
    low: float
    high: float
    mean: float


def summarise(launches: Sequence[Measurement]) -> LaunchTime | None:
    """Return the median over launches with a 95 % interval, ``None`` without launches.

    From six launches on the interval is the distribution-free one between two order statistics
    (Conover, *Practical Nonparametric Statistics*, ch. 3.2). Fewer cannot give 95 %: then it is
    the hull of the launches' own intervals, which for one launch is that launch's interval.
    """
    if not launches:
        return None
    times = sorted(launch.s_per_it for launch in launches)
    trim = trimmed_ranks(len(times))
    if trim is None:
        low = min(launch.low for launch in launches)
        high = max(launch.high for launch in launches)
    else:
        low, high = times[trim], times[-1 - trim]
    median = statistics.median(times)
    return LaunchTime(
        median=median,
        low=min(low, median),
        high=max(high, median),
        mean=statistics.fmean(times),
    )


def trimmed_ranks(count: int) -> int | None:
    """How many values at each end lie outside the median's 95 % interval; ``None`` if too few.

    The interval from the (k+1)-th smallest to the (k+1)-th largest of ``count`` values covers the
    median with probability ``1 - 2 · P(Binomial(count, ½) ≤ k)``.
    """
    outside = 0.0
    found: int | None = None
    for k in range(count // 2):
        outside += math.comb(count, k) / 2**count
        if 2 * outside > 1 - CONFIDENCE:
            break
        found = k
    return found
