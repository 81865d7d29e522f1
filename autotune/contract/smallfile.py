"""Reads files that a measured process writes, without trusting what lies there."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import stat
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final

from autotune.contract.failures import PHASES, Phase

MAX_HEARTBEAT_BYTES: Final = 4096
PROGRESS: Final = struct.Struct("<qqq")
"""Phase (its place in ``PHASES``), iterations, steps."""


def read_small(path: Path, limit: int) -> bytes | None:
    """Return the bytes of a regular file of at most ``limit`` bytes, else ``None``.

    Never blocks: a FIFO, a device or a link in the file's place is not read.
    """
    try:
        with open_plain(path) as file:
            return None if os.fstat(file.fileno()).st_size > limit else file.read(limit)
    except OSError:
        return None


def read_end(path: Path, limit: int) -> str:
    """Return at most the last ``limit`` bytes of a regular file as text; empty if there is none."""
    try:
        with open_plain(path) as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - limit))
            return file.read(limit).decode("utf-8", errors="replace")
    except OSError:
        return ""


@contextlib.contextmanager
def open_plain(path: Path) -> Iterator[BinaryIO]:
    """Open a regular file for reading, without waiting for what else may lie in its place.

    Raises:
        OSError: There is none, or it is a FIFO, a device, a link or a folder.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(f"{path} is no plain file")
        yield file


def read_object(path: Path, limit: int) -> dict[str, Any] | None:
    """Return the JSON object in a small file, or ``None`` if there is none."""
    raw = read_small(path, limit)
    if raw is None:
        return None
    try:
        data = json.loads(raw)
    except (UnicodeDecodeError, ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Beat:
    """How far a rank has come. Two that are equal mean that it has not moved in between."""

    phase: Phase = "launch"
    iteration: int = 0
    """Iterations completed."""
    steps: int = 0
    """Signs of progress: micro-steps, iterations, parameters made. Only ever grows."""

    @property
    def progress(self) -> tuple[int, int, int]:
        """Larger for a rank that is further on."""
        return PHASES.index(self.phase), self.iteration, self.steps


def progress_file(heartbeat: Path) -> Path:
    """Return the file beside a heartbeat file that has the last step's numbers."""
    return heartbeat.with_suffix(".progress")


def read_beat(heartbeat: Path) -> Beat:
    """Return what a rank's heartbeat says; the very beginning when it says nothing.

    Of its two files, each of which may be missing or behind, the one that is further on counts.
    """
    return max(_read_json(heartbeat), _read_progress(heartbeat), key=lambda beat: beat.progress)


def _read_json(heartbeat: Path) -> Beat:
    data = read_object(heartbeat, MAX_HEARTBEAT_BYTES) or {}
    named = data.get("phase")
    phase = next((phase for phase in PHASES if phase == named), None)
    if phase is None:
        return Beat()
    counts = [data.get(name) for name in ("iteration", "steps")]
    iteration, steps = (count if isinstance(count, int) else 0 for count in counts)
    return Beat(phase=phase, iteration=iteration, steps=steps)


def _read_progress(heartbeat: Path) -> Beat:
    raw = read_small(progress_file(heartbeat), PROGRESS.size)
    if raw is None or len(raw) != PROGRESS.size:
        return Beat()
    phase, iteration, steps = PROGRESS.unpack(raw)
    if not 0 <= phase < len(PHASES):
        return Beat()
    return Beat(phase=PHASES[phase], iteration=iteration, steps=steps)


def read_phase(heartbeat: Path) -> Phase:
    """Return the phase that a heartbeat file names; ``launch`` when it says nothing."""
    return read_beat(heartbeat).phase
