"""Peak memory of one rank, and what it may use.

On a device: the allocator's peak plus all that others hold on the device (contexts, NCCL
buffers, libraries), against the whole device. Without one: the largest resident size since the
build, against the memory that is available to this machine or cgroup, divided by the ranks here.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    import torch

_UNLIMITED: Final = 2**60
"""A cgroup limit above this is none."""


class MemoryMeter(Protocol):
    """Measures one rank."""

    @property
    def limit_bytes(self) -> int:
        """What this rank may use. Whether its peak fits is for the coordinator to judge."""

    def reset(self) -> None:
        """Forget the peak so far."""

    def peak_bytes(self) -> int:
        """Peak since the last :meth:`reset`."""


class DeviceMeter:
    """Memory of one CUDA device."""

    def __init__(self, device: torch.device) -> None:
        import torch

        self._cuda = torch.cuda
        self._device = device
        _, total = self._cuda.mem_get_info(device)
        self.limit_bytes = int(total)

    def reset(self) -> None:
        self._cuda.synchronize(self._device)
        self._cuda.reset_peak_memory_stats(self._device)

    def peak_bytes(self) -> int:
        self._cuda.synchronize(self._device)
        free, total = self._cuda.mem_get_info(self._device)
        outside = total - free - self._cuda.memory_reserved(self._device)
        return int(self._cuda.max_memory_allocated(self._device) + max(0, outside))


class HostMeter:
    """Resident size of this process.

    ``clear_refs`` 5 resets the kernel's peak (proc(5)). Where the kernel does not let us, the
    peak since the process began is reported, which is never too small.
    """

    def __init__(self, local_processes: int, *, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self.limit_bytes = available_bytes(proc) // max(1, local_processes)

    def reset(self) -> None:
        with contextlib.suppress(OSError):
            (self._proc / "self/clear_refs").write_text("5", encoding="ascii")

    def peak_bytes(self) -> int:
        return _field_kib(self._proc / "self/status", "VmHWM") * 1024


def meter_for(device: torch.device, local_processes: int) -> MemoryMeter:
    """Return the meter of the rank's device."""
    return DeviceMeter(device) if device.type == "cuda" else HostMeter(local_processes)


def available_bytes(proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the memory that new work can have: the machine's, or less where a cgroup says so.

    Page cache of the cgroup counts as available, as it does in ``MemAvailable``.
    """
    available = _field_kib(proc / "meminfo", "MemAvailable") * 1024
    for folder in _cgroup_folders(proc, cgroup):
        room = _cgroup_room(folder)
        if room is not None:
            available = min(available, room)
    return available


def _cgroup_folders(proc: Path, cgroup: Path) -> list[Path]:
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


def _cgroup_room(folder: Path) -> int | None:
    for limit_file, usage_file, cache in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        try:
            limit = (folder / limit_file).read_text(encoding="ascii").strip()
            used = int((folder / usage_file).read_text(encoding="ascii"))
        except (OSError, ValueError):
            continue
        if not limit.isdecimal() or int(limit) > _UNLIMITED:
            continue
        return max(0, int(limit) - used + _statistic(folder / "memory.stat", cache))
    return None


def _statistic(path: Path, name: str) -> int:
    try:
        for line in path.read_text(encoding="ascii").splitlines():
            key, _, value = line.partition(" ")
            if key == name:
                return int(value)
    except (OSError, ValueError):
        return 0
    return 0


def _field_kib(path: Path, name: str) -> int:
    for line in path.read_text(encoding="ascii").splitlines():
        key, _, rest = line.partition(":")
        if key == name:
            return int(rest.split()[0])
    raise OSError(f"{path} has no {name}")
