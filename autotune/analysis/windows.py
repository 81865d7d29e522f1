"""When a warm-up is over and when enough iterations were timed.

All rules are functions of times alone, those of the slowest rank: ranks that have exchanged their
times decide the same, and a launch that is played from a record ends where it would have ended.
All times in seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

from autotune.analysis import timing
from autotune.contract.plan import Measuring, Racing

Verdict = Literal["go_on", "done", "slower"]
MIN_RACING_SHARE: Final = 0.10
"""Racing never stops a trial that is less than this share worse than the best."""


def warm(times: Sequence[float], cycle: int, measuring: Measuring) -> Literal["no", "yes", "limit"]:
    """Say whether the warm-up is over: two cycles agree, or the limit of cycles is reached.

    Args:
        times: Seconds of all warm-up iterations of the slowest rank, whole cycles.
        cycle: Iterations per cycle.
        measuring: The plan's rules.
    """
    cycles = len(times) // cycle
    if cycles >= 2 and timing.cycles_agree(
        times[-2 * cycle : -cycle], times[-cycle:], measuring.warmup_tolerance
    ):
        return "yes"
    return "limit" if cycles >= measuring.warmup_max_cycles else "no"


def window(times: Sequence[float], cycle: int, measuring: Measuring) -> Verdict:
    """Say whether the timed window goes on, is complete, or may end as clearly slower.

    Args:
        times: Seconds of all timed iterations of the slowest rank, whole cycles, at least one.
        cycle: Iterations per cycle.
        measuring: The plan's rules.
    """
    interval = timing.mean_interval(timing.cycle_means(times, cycle))
    if (
        len(times) >= measuring.window_iterations
        or sum(times) >= measuring.window_s
        or interval.share <= measuring.interval_share
    ):
        return "done"
    if measuring.racing is not None and interval.count >= 2:
        return "slower" if clearly_slower(interval, measuring.racing) else "go_on"
    return "go_on"


def clearly_slower(interval: timing.Interval, racing: Racing) -> bool:
    """Return whether the mean is worse than the best by more than all three allowances."""
    allowance = max(
        interval.high - interval.mean,
        3.0 * racing.noise_share * racing.best_s_per_it,
        MIN_RACING_SHARE * racing.best_s_per_it,
    )
    return interval.mean - racing.best_s_per_it > allowance


def compile_seconds(warmup: Sequence[float], steady: Sequence[float], cycle: int) -> float:
    """Return what the warm-up cost beyond the same batches at their steady time.

    Compilation, kernel selection, ZeRO-3's trace and the optimizer's first step.
    """
    typical = timing.batch_medians(steady, cycle)
    return sum(max(0.0, seconds - typical[i % cycle]) for i, seconds in enumerate(warmup))
