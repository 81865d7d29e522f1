"""Reads small files that a measured process writes, without trusting what lies there."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any, Final

from autotune.contract.failures import PHASES, Phase

MAX_HEARTBEAT_BYTES: Final = 4096


def read_small(path: Path, limit: int) -> bytes | None:
    """Return the bytes of a regular file of at most ``limit`` bytes, else ``None``.

    Never blocks: a FIFO, a device or a link in the file's place is not read.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    with os.fdopen(handle, "rb", buffering=0) as file:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode) or status.st_size > limit:
            return None
        try:
            return file.read(limit)
        except OSError:
            return None


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


def read_phase(heartbeat: Path) -> Phase:
    """Return the phase that a heartbeat file names; ``launch`` when it says nothing."""
    data = read_object(heartbeat, MAX_HEARTBEAT_BYTES)
    named = None if data is None else data.get("phase")
    return next((phase for phase in PHASES if phase == named), "launch")
