"""Reads files that a measured process writes, without trusting what lies there."""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final

from autotune.contract.failures import PHASES, Phase

MAX_HEARTBEAT_BYTES: Final = 4096


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


def read_phase(heartbeat: Path) -> Phase:
    """Return the phase that a heartbeat file names; ``launch`` when it says nothing."""
    data = read_object(heartbeat, MAX_HEARTBEAT_BYTES)
    named = None if data is None else data.get("phase")
    return next((phase for phase in PHASES if phase == named), "launch")
