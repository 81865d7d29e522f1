"""What the driver and the machine say beside a trial: memory in use, clocks, shared memory."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from typing import Any

from autotune.contract import nvml
from autotune.worker.clocks import FLAGS, POLICIES, NvmlWatch

BACK_BYTES = 64 * 1024**2
"""Device memory counts as given back within so much of what was in use before."""


def shared_segments() -> Iterator[tuple[str, int]]:
    """NCCL's and torch's segments of this user."""
    for entry in os.scandir("/dev/shm"):
        if entry.name.startswith(("nccl-", "torch_")):
            try:
                status = entry.stat()
            except OSError:
                continue
            if status.st_uid == os.geteuid():
                yield entry.name, status.st_size


def clocks() -> dict[str, Any]:
    """What NVML says of the first GPU's clocks: counters of each policy, flags now."""
    library = nvml.opened()
    if library is None:
        return {}
    handle, value = ctypes.c_void_p(), ctypes.c_ulonglong()
    library.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(handle))
    watch = NvmlWatch(library, handle)
    counters = {POLICIES[policy]: held for policy, held in watch._counters().items()}
    known = watch._reasons(ctypes.byref(value)) == nvml.SUCCESS
    flags = [name for bit, name in FLAGS.items() if value.value & bit]
    raw = hex(value.value) if known else None
    return {"held_ns": counters, "flags_now": flags, "reasons_now": raw}


def used() -> dict[str, int]:
    return {gpu.uuid: gpu.used_bytes for gpu in nvml.gpus()}


def is_back(before: dict[str, int]) -> bool:
    return all(size <= before[uuid] + BACK_BYTES for uuid, size in used().items())
