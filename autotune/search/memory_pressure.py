"""Evidence that the kernel killed a process for want of memory."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_GLOBAL: Final = Path("/proc/vmstat")
_CGROUP: Final = Path("/sys/fs/cgroup")


def oom_kills() -> int:
    """Return how often the out-of-memory killer has acted so far, here and in our cgroup.

    Compare two readings; a counter that cannot be read counts as zero.
    """
    return _counter(_GLOBAL, "oom_kill") + _counter(_own_cgroup() / "memory.events", "oom_kill")


def _own_cgroup() -> Path:
    try:
        lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return _CGROUP
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            own = _CGROUP / path.lstrip("/")
            return own if own.exists() else _CGROUP
    return _CGROUP


def _counter(path: Path, name: str) -> int:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    for line in lines:
        key, _, value = line.partition(" ")
        if key == name and value.strip().isdigit():
            return int(value)
    return 0
