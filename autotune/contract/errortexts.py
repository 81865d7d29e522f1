"""Which failure kind an error is, by its type's name and, where no type says it, by its text.

A rank asks for the exception that ended it, the coordinator for one that a rank could not name.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

from autotune.contract.failures import FailureKind

_PEER: Final = re.compile(
    r"connection (closed|reset|refused) by|connection (was )?(closed|reset)|broken pipe|"
    r"gloo/transport|ncclRemoteError|ncclSystemError|remote process exited|socket timeout|"
    r"recvValue failed|sendBytes failed|Failed to recv|Timed out waiting|store->(get|wait)|"
    r"ProcessGroupNCCL.*watchdog|wait timeout after",
    re.IGNORECASE,
)
_PEER_TYPES: Final = frozenset(
    {
        "ConnectionError",
        "ConnectionResetError",
        "ConnectionRefusedError",
        "ConnectionAbortedError",
        "BrokenPipeError",
        "DistBackendError",
        "DistNetworkError",
        "DistStoreError",
    }
)
_DEVICE_MEMORY: Final = re.compile(
    r"(CUDA|HIP|GPU|XPU).{0,40}out of memory|out of memory on dev|CU(BLAS|DNN)_STATUS_ALLOC_FAILED",
    re.IGNORECASE | re.DOTALL,
)
_HOST_MEMORY: Final = re.compile(
    r"DefaultCPUAllocator|can't allocate memory|cannot allocate memory|bad_alloc|"
    r"unable to allocate .{0,40}(bytes|[KMGT]i?B)",
    re.IGNORECASE,
)


def kind_of(type_names: Collection[str], text: str) -> FailureKind:
    """Return the kind of an error.

    Args:
        type_names: Names of the exception's class and of those that it derives from, if known.
        text: Its message.
    """
    if "IncompatibleConfigError" in type_names:
        return "incompatible"
    if "OutOfMemoryError" in type_names or _DEVICE_MEMORY.search(text):
        return "oom_device"
    if "MemoryError" in type_names or is_host_memory(text):
        return "oom_host"
    lost = not _PEER_TYPES.isdisjoint(type_names) or _PEER.search(text)
    return "infra" if lost or "No space left on device" in text else "crash"


def is_host_memory(text: str) -> bool:
    """Whether a message or the end of a log says that host memory could not be had."""
    return bool(_HOST_MEMORY.search(text))
