"""When iterations began and ended, and when enough of them were timed.

Marks lie between iterations. On a device they are events, which the host neither waits for nor
reads before the cycle ends; without one they are readings of the host clock, and no barrier is
added. At the end of each cycle of the batch stream the ranks exchange their times. All rules
below are functions of the exchanged numbers alone, so every rank decides the same.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, Protocol

from autotune.analysis import timing
from autotune.contract.plan import Measuring, Racing

if TYPE_CHECKING:
    import torch

Verdict = Literal["go_on", "done", "slower"]
MIN_RACING_SHARE = 0.10
"""Racing never stops a trial that is less than this share worse than the best."""


class Marks(Protocol):
    """Time marks of consecutive iterations."""

    def mark(self) -> None:
        """Set one mark."""

    def take(self) -> list[float]:
        """Wait for the last mark; return the seconds between neighbours and forget them."""


class HostMarks:
    """Marks on the host clock."""

    def __init__(self) -> None:
        self._at: list[float] = []

    def mark(self) -> None:
        self._at.append(time.perf_counter())

    def take(self) -> list[float]:
        at, self._at = self._at, []
        return [after - before for before, after in itertools.pairwise(at)]


class DeviceMarks:
    """Marks in the device's default stream."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._events: list[torch.cuda.Event] = []

    def mark(self) -> None:
        import torch

        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # untyped
        event.record(torch.cuda.current_stream(self._device))
        self._events.append(event)

    def take(self) -> list[float]:
        events, self._events = self._events, []
        if events:
            events[-1].synchronize()
        pairs = itertools.pairwise(events)
        return [before.elapsed_time(after) / 1000.0 for before, after in pairs]


def marks_for(device: torch.device) -> Marks:
    """Return the marks that suit the rank's device."""
    return DeviceMarks(device) if device.type == "cuda" else HostMarks()


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
