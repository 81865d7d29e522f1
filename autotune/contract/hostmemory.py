"""Memory of this machine and of the control groups that this process is in.

Files: proc(5), and the kernel's ``Documentation/admin-guide/cgroup-v2.rst`` and
``cgroup-v1/memory.rst``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

PROC: Final = Path("/proc")
CGROUP: Final = Path("/sys/fs/cgroup")
_UNLIMITED: Final = 2**60
"""A cgroup limit above this is none."""


def available_bytes(proc: Path = PROC, cgroup: Path = CGROUP) -> int:
    """Return the memory that new work can have: the machine's, or less where a cgroup says so.

    Page cache of the cgroup counts as available, as it does in ``MemAvailable``.
    """
    available = field_bytes(proc / "meminfo", "MemAvailable")
    for folder in cgroup_folders(proc, cgroup):
        room = _cgroup_room(folder)
        if room is not None:
            available = min(available, room)
    return available


def total_bytes(proc: Path = PROC, cgroup: Path = CGROUP) -> int:
    """Return the memory that all programs together can have: the machine's, or a cgroup's limit."""
    limits = (_limit(folder) for folder in cgroup_folders(proc, cgroup))
    machine = field_bytes(proc / "meminfo", "MemTotal")
    return min([machine, *(limit for limit in limits if limit is not None)])


def oom_kills() -> int:
    """Return how often the out-of-memory killer has acted so far, here and in our cgroup.

    Compare two readings; a counter that cannot be read counts as zero.
    """
    events = (folder / "memory.events" for folder in cgroup_folders())
    own = next((path for path in events if path.exists()), CGROUP / "memory.events")
    return statistic(PROC / "vmstat", "oom_kill") + statistic(own, "oom_kill")


def cgroup_folders(proc: Path = PROC, cgroup: Path = CGROUP) -> list[Path]:
    """Return this process's cgroup (version 2, or the memory controller of version 1) and up."""
    try:
        lines = (proc / "self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    folders: list[Path] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            root = cgroup
        elif "memory" in controllers.split(","):
            root = cgroup / "memory"
        else:
            continue
        own = root / path.lstrip("/")
        folders += [own, *(parent for parent in own.parents if parent.is_relative_to(root))]
    return folders


def _limit(folder: Path) -> int | None:
    for name in ("memory.max", "memory.limit_in_bytes"):
        try:
            text = (folder / name).read_text(encoding="ascii").strip()
        except OSError:
            continue
        if text.isdecimal() and int(text) <= _UNLIMITED:
            return int(text)
    return None


def _cgroup_room(folder: Path) -> int | None:
    limit = _limit(folder)
    if limit is None:
        return None
    for usage_file, cache in (
        ("memory.current", "inactive_file"),
        ("memory.usage_in_bytes", "total_inactive_file"),
    ):
        try:
            used = int((folder / usage_file).read_text(encoding="ascii"))
        except (OSError, ValueError):
            continue
        return max(0, limit - used + statistic(folder / "memory.stat", cache))
    return None


def statistic(path: Path, name: str) -> int:
    """Return a counter of a file of names and numbers; 0 where it cannot be read."""
    try:
        for line in path.read_text(encoding="ascii").splitlines():
            key, _, value = line.partition(" ")
            if key == name:
                return int(value)
    except (OSError, ValueError):
        return 0
    return 0


def field_bytes(path: Path, name: str) -> int:
    """Return a field of ``/proc/meminfo`` or ``/proc/PID/status``, which are in KiB."""
    for line in path.read_text(encoding="ascii").splitlines():
        key, _, rest = line.partition(":")
        if key == name:
            return int(rest.split()[0]) * 1024
    raise OSError(f"{path} has no {name}")
