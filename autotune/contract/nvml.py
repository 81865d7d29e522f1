"""What the driver's management library (NVML) says of the GPUs, by ctypes: no package is needed.

Structures and names are those of ``nvml.h``. No call here creates a context or changes anything.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
from collections.abc import Iterator
from typing import Any, Final

_LIBRARY: Final = "libnvidia-ml.so.1"
_NAME_BYTES: Final = 96
SUCCESS: Final = 0
_NO_VALUE: Final = 2**64 - 1
"""``NVML_VALUE_NOT_AVAILABLE``."""
_PROCESS_LISTS: Final = (
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetGraphicsRunningProcesses_v3",
)
_MOST_PROCESSES: Final = 1024


@dataclasses.dataclass(frozen=True, kw_only=True)
class GpuProcess:
    """A process that has memory on a GPU."""

    pid: int
    """As the driver numbers it: in a container it may be a number of the host's."""
    used_bytes: int | None
    """``None`` where the driver does not say."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gpu:
    """One GPU of this machine, whether visible to us or not."""

    index: int
    name: str
    uuid: str
    total_bytes: int
    used_bytes: int
    """By all processes and the driver itself."""
    capability: tuple[int, int] | None = None
    """Compute capability; ``None`` where the driver does not say."""
    processes: tuple[GpuProcess, ...] = ()


class _Memory(ctypes.Structure):
    _fields_ = (
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


class _ProcessInfo(ctypes.Structure):
    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


def gpus() -> tuple[Gpu, ...]:
    """Return all GPUs that the driver lists; none where there is no driver."""
    library = opened()
    if library is None:
        return ()
    try:
        return tuple(_all(library))
    finally:
        library.nvmlShutdown()


def opened() -> Any | None:
    """Return the library, initialised; ``None`` where there is no driver.

    Who opens it may end it by ``nvmlShutdown``; calls are counted, and the process's end will do.
    """
    library: Any = None
    with contextlib.suppress(OSError):
        library = ctypes.CDLL(_LIBRARY)
    return None if library is None or library.nvmlInit_v2() != SUCCESS else library


def _all(library: Any) -> Iterator[Gpu]:
    count = ctypes.c_uint()
    if library.nvmlDeviceGetCount_v2(ctypes.byref(count)) != SUCCESS:
        return
    for index in range(count.value):
        handle = ctypes.c_void_p()
        if library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)) != SUCCESS:
            continue
        memory = _Memory()
        library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory))
        yield Gpu(
            index=index,
            name=_text(library.nvmlDeviceGetName, handle),
            uuid=_text(library.nvmlDeviceGetUUID, handle),
            total_bytes=int(memory.total),
            used_bytes=int(memory.used),
            capability=_capability(library, handle),
            processes=_processes(library, handle),
        )


def _capability(library: Any, handle: ctypes.c_void_p) -> tuple[int, int] | None:
    major, minor = ctypes.c_int(), ctypes.c_int()
    call = library.nvmlDeviceGetCudaComputeCapability
    if call(handle, ctypes.byref(major), ctypes.byref(minor)) != SUCCESS:
        return None
    return major.value, minor.value


def _text(call: Any, handle: ctypes.c_void_p) -> str:
    buffer = ctypes.create_string_buffer(_NAME_BYTES)
    call(handle, buffer, _NAME_BYTES)
    return buffer.value.decode(errors="replace")


def _processes(library: Any, handle: ctypes.c_void_p) -> tuple[GpuProcess, ...]:
    found: dict[int, GpuProcess] = {}
    for name in _PROCESS_LISTS:
        call = getattr(library, name, None)  # an older driver has older versions only
        if call is None:
            continue
        number = ctypes.c_uint(_MOST_PROCESSES)
        entries = (_ProcessInfo * _MOST_PROCESSES)()
        if call(handle, ctypes.byref(number), entries) != SUCCESS:
            continue
        for entry in entries[: number.value]:
            used = None if entry.used == _NO_VALUE else int(entry.used)
            found[entry.pid] = GpuProcess(pid=int(entry.pid), used_bytes=used)
    return tuple(found.values())
