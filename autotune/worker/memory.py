"""Peak memory of one rank, and what it may use.

On a device: the allocator's peak plus all that others hold on the device (contexts, NCCL
buffers, libraries), against the whole device. Without one: the largest resident size since the
build, against the memory that is available to this machine or cgroup, divided by the ranks here.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from autotune.contract import hostmemory

if TYPE_CHECKING:
    import torch


class MemoryMeter(Protocol):
    """Measures one rank."""

    @property
    def limit_bytes(self) -> int:
        """What this rank may use. Whether its peak fits is for the coordinator to judge."""

    def reset(self) -> None:
        """Forget the peak so far."""

    def peak_bytes(self) -> int:
        """Peak since the last :meth:`reset`."""

    def at_most(self, growth: float) -> int | None:
        """Upper bound of the peak if all that this rank made for itself grew ``growth`` times.

        ``None`` where only a measurement can tell.
        """

    def alloc_retries(self) -> int:
        """How often so far the allocator found no room and had to give its cache back first."""


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

    def at_most(self, growth: float) -> int | None:
        # Caches, workspaces and fragments follow no rule, and the margin is small.
        del growth
        return None

    def alloc_retries(self) -> int:
        # Absent where another allocator backend keeps no statistics.
        return int(self._cuda.memory_stats(self._device).get("num_alloc_retries", 0))


class HostMeter:
    """Resident size of this process.

    ``clear_refs`` 5 resets the kernel's peak (proc(5)). Where the kernel does not let us, the
    peak since the process began is reported, which is never too small.
    """

    def __init__(self, local_processes: int, *, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._start_bytes = self._status_bytes("VmRSS")
        self.limit_bytes = hostmemory.available_bytes(proc) // max(1, local_processes)

    def reset(self) -> None:
        with contextlib.suppress(OSError):
            (self._proc / "self/clear_refs").write_text("5", encoding="ascii")

    def peak_bytes(self) -> int:
        return self._status_bytes("VmHWM")

    def at_most(self, growth: float) -> int | None:
        # All since the rank began counts as growing, parameters too: what the build gave back to
        # the heap may be used again unseen. Nothing that is held is taken to serve again: blocks of
        # another shape's sizes may not, and rows that were hardly longer needed 25 MiB more.
        peak = self.peak_bytes()
        return peak + round(growth * max(0, peak - self._start_bytes))

    def alloc_retries(self) -> int:
        return 0

    def _status_bytes(self, field: str) -> int:
        return hostmemory.field_bytes(self._proc / "self/status", field)


def meter_for(device: torch.device, local_processes: int) -> MemoryMeter:
    """Return the meter of the rank's device."""
    return DeviceMeter(device) if device.type == "cuda" else HostMeter(local_processes)
