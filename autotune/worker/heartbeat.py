"""The rank's sign of life, and the record of how long each phase took."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Final

from autotune.contract.failures import Phase

MIN_INTERVAL_S: Final = 1.0
"""Within a phase the file is written at most once in this many seconds."""


class Heartbeat:
    """Writes ``heartbeat-N.json``: phase, ``time.time()``, iterations completed, steps.

    ``steps`` counts every sign of progress, so that the watchdog can tell a rank that is slow
    from one that stands still. The file is advice for the watchdog, not a record: written aside
    and renamed, but not synced to the disk, and a full disk is left for the record to report.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._written = 0.0
        self._entered = time.perf_counter()
        self.phase: Phase = "launch"
        self.iteration = 0
        self.steps = 0
        self.phase_s: dict[str, float] = {}

    def enter(self, phase: Phase) -> None:
        """Begin ``phase``."""
        self._account()
        self.phase = phase
        self._write()

    def beat(self, iteration: int) -> None:
        """Say that ``iteration`` iterations are done; writes at most once a second."""
        self.iteration = iteration
        self.pulse()

    def pulse(self) -> None:
        """Say that this rank has moved, by a micro-step or a parameter made; as :meth:`beat`."""
        self.steps += 1
        if time.monotonic() - self._written >= MIN_INTERVAL_S:
            self._write()

    def finish(self) -> dict[str, float]:
        """Close the present phase and return the seconds of each phase."""
        self._account()
        return dict(self.phase_s)

    def _account(self) -> None:
        now = time.perf_counter()
        self.phase_s[self.phase] = self.phase_s.get(self.phase, 0.0) + now - self._entered
        self._entered = now

    def _write(self) -> None:
        self._written = time.monotonic()
        said = {"phase": self.phase, "at": time.time(), "iteration": self.iteration}
        text = json.dumps(said | {"steps": self.steps})
        temporary = self._path.with_name(f".{self._path.name}.tmp")
        try:
            temporary.write_text(text, encoding="utf-8")
            temporary.replace(self._path)
        except OSError:
            return
