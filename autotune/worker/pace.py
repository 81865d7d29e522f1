"""Whether a rank moves: a phase may take long, but its heartbeat must not stand still.

Each phase has its own limit on standing still. Between the first check iteration and the memory
probe the limit grows with what the rank has shown: a configuration whose micro-steps take minutes
is slow, not hung.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from autotune.contract.failures import STEPPING
from autotune.contract.smallfile import Beat

PATIENCE: Final = 3.0
"""A pause of this many times the longest one so far is no reason yet to give a rank up."""


class Pace:
    """How one rank has moved so far. The clock is ``time.monotonic``."""

    def __init__(self, started: float) -> None:
        self.beat = Beat()
        self.since = started
        """When it last moved."""
        self._longest_s = 0.0

    def look(self, beat: Beat, now: float) -> None:
        """Take note of what the heartbeat says now."""
        if beat == self.beat:
            return
        # A pause that began in one phase and ended in the next holds part of a micro-step too.
        if self.beat.phase in STEPPING:
            self._longest_s = max(self._longest_s, now - self.since)
        self.beat, self.since = beat, now

    def limit_s(self, limits: Mapping[str, float]) -> float | None:
        """Return how long it may stand still in its present phase; ``None``: for ever."""
        limit = limits.get(self.beat.phase)
        if limit is None or self.beat.phase not in STEPPING:
            return limit
        return max(limit, PATIENCE * self._longest_s)
