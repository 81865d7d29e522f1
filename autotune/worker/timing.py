"""When iterations began and ended.

Marks lie between iterations. On a device they are events, which the host neither waits for nor
reads before the cycle ends; without one they are readings of the host clock, and no barrier is
added. At the end of each cycle of the batch stream the ranks exchange their times, and decide by
the rules of :mod:`autotune.analysis.windows`.
"""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch


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
