"""The rank's sign of life, and the record of how long each phase took."""

from __future__ import annotations

import json
import mmap
import os
import time
from pathlib import Path
from typing import Final

from autotune.contract.failures import PHASES, Phase
from autotune.contract.smallfile import PROGRESS, progress_file

MIN_INTERVAL_S: Final = 1.0
"""Within a phase the JSON file is written at most once in this many seconds."""


class Heartbeat:
    """Tells the watchdog how far the rank has come.

    ``heartbeat-N.json`` has phase, ``time.time()``, iterations completed and steps, for whoever
    looks; ``heartbeat-N.progress`` beside it has the same numbers up to the last step, so that of
    two ranks that stand still the one that came less far is known. ``steps`` counts every sign of
    progress. While a cycle is timed only :meth:`passed` and :meth:`pulse` are called: a store to
    mapped memory each and no system call, where writing the file takes most of a millisecond.

    Both are advice, not a record: not synced to the disk, and a full disk is left for the record
    to report.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._progress: mmap.mmap | None = None
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
        if self._progress is None:
            self._progress = _mapped(progress_file(self._path))
        self._note()
        self._write()

    def passed(self, iteration: int) -> None:
        """Note that ``iteration`` iterations are done; without mapped memory, as :meth:`beat`."""
        if self._progress is None:
            self.beat(iteration)
        elif iteration != self.iteration:
            self.iteration = iteration
            self.steps += 1
            self._note()

    def beat(self, iteration: int) -> None:
        """Say that ``iteration`` iterations are done, in the JSON file too."""
        if iteration != self.iteration:
            self.iteration = iteration
            self.steps += 1
            self._note()
        if time.monotonic() - self._written >= MIN_INTERVAL_S:
            self._write()

    def pulse(self) -> None:
        """Say that this rank has moved: by a micro-step, or by a parameter made."""
        self.steps += 1
        self._note()

    def finish(self) -> dict[str, float]:
        """Close the present phase and return the seconds of each phase."""
        self._account()
        return dict(self.phase_s)

    def _account(self) -> None:
        now = time.perf_counter()
        self.phase_s[self.phase] = self.phase_s.get(self.phase, 0.0) + now - self._entered
        self._entered = now

    def _note(self) -> None:
        if self._progress is not None:
            numbers = (PHASES.index(self.phase), self.iteration, self.steps)
            PROGRESS.pack_into(self._progress, 0, *numbers)

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


def _mapped(path: Path) -> mmap.mmap | None:
    """Map the file; ``None`` where that cannot be had: the JSON file then says what it can."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        handle = os.open(path, flags, 0o666)
    except OSError:
        return None
    try:
        # Written, not only made longer: a hole on a full disk would end the rank by SIGBUS.
        os.pwrite(handle, bytes(PROGRESS.size), 0)
        return mmap.mmap(handle, PROGRESS.size)
    except (OSError, ValueError):
        return None
    finally:
        os.close(handle)
