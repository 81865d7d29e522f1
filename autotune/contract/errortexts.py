"""Which failure kind an error is, by its type's name and, where no type says it, by its text.

A rank asks for the exception that ended it, the coordinator for one that a rank could not name.
The texts are those of torch 2.13 (``c10/cuda``, ``c10/core/impl/alloc_cpu.cpp``,
``aten/src/ATen/MapAllocator.cpp``, ``torch/utils/data/_utils``, ``torch/utils/checkpoint.py``), of
NCCL (``src/misc/shmutils.cc``, ``src/include/alloc.h``, ``src/include/checks.h``), of cuBLAS's
status names, and of Triton (``triton/runtime/errors.py``).
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
_REFUSAL_TYPES: Final = frozenset({"IncompatibleConfigError", "OutOfResources", "CheckpointError"})
_REFUSAL: Final = re.compile(r"out of resource: (shared memory|threads|tensor memory)")
"""A kernel that wants more of a processor than it has: a matter of its block sizes."""
RECOMPUTED: Final = re.compile(
    r"torch\.utils\.checkpoint: (Recomputed values|A different number of tensors|"
    r"trying to save|Unpack is being triggered)"
)
"""Activation checkpointing whose backward meets other tensors than its forward left, because what
holds the weights changed their shape in between: a matter of its mode."""
RECOMPUTED_SELECTIVELY: Final = re.compile(
    r"encountered during backward,? but not found in storage|"
    r"backward an extra time.*selective activation checkpoint",
    re.DOTALL,
)
"""The same where a policy decides what is kept. Versions of torch before the one that counts calls
have a comma, and take one tensor more than forward left for a second backward."""
_DEVICE_MEMORY: Final = re.compile(
    r"(CUDA|HIP|GPU|XPU).{0,40}out of memory|out of memory on dev|"
    r"cudaErrorMemoryAllocation|CUDA_ERROR_OUT_OF_MEMORY|"
    r"(CUBLAS|CUDNN|CUSOLVER|CUSPARSE|HIPBLAS|MIOPEN)_STATUS_ALLOC_FAILED|CUFFT_ALLOC_FAILED|"
    r"Failed to (CUDA|HIP) [cm]alloc|"
    # cuBLAS takes its workspace when its handle is made, and says no more than this without room.
    r"CUBLAS_STATUS_NOT_INITIALIZED when calling .?cublasCreate",
    re.IGNORECASE | re.DOTALL,
)
_HOST_MEMORY: Final = re.compile(
    r"DefaultCPUAllocator|can't allocate memory|cannot allocate memory|bad_alloc|"
    r"unable to allocate .{0,40}(bytes|[KMGT]i?B)|\[Errno 12\]|unable to mmap|"
    r"(cudaHostAlloc|cudaHostRegister).{0,80}(out of memory|failed)|"
    r"insufficient shared memory|(unable to|Couldn't) allocate shared memory|"
    r"creating shared memory segment|"
    r"/dev/shm.{0,200}No space left|No space left.{0,200}/dev/shm|"
    r"shared memory object.{0,200}No space left",
    re.IGNORECASE | re.DOTALL,
)
_MACHINE: Final = re.compile(
    r"No space left on device|Disk quota exceeded|Input/output error|Stale file handle|"
    r"Address already in use|EADDRINUSE|No route to host|Network is unreachable|"
    r"Name or service not known|Too many open files|can't start new thread|"
    r"Resource temporarily unavailable|uncorrectable (ECC|NVLink) error|fallen off the bus|"
    r"devices? (is|are) busy or unavailable|busy or unavailable|system not yet initialized|"
    r"no CUDA-capable device|CUDA driver initialization failed",
    re.IGNORECASE,
)
_CACHE_FOLDER: Final = (
    r"/(\.?triton|inductor|torchinductor_\w+|tilelang|torch_extensions|extensions)/"
)
_CACHE: Final = re.compile(
    rf"\[Errno \d+\][^\n]*{_CACHE_FOLDER}|"
    rf"{_CACHE_FOLDER}[^\n]*: (file too short|invalid ELF header|cannot read file data)"
)
"""A file of a compiler's cache that another process took away or half wrote."""
_COMPILER_TYPES: Final = frozenset({"TorchDynamoException", "FailOnRecompileLimitHit"})
COMPILER: Final = re.compile(r"\btorch\._dynamo\.exc\.|Set TORCHDYNAMO_VERBOSE=1")
"""``torch.compile`` that cannot take a model (``torch/_dynamo/exc.py``): a matter of what was to be
compiled, unless the machine kept it from compiling."""


def kind_of(type_names: Collection[str], text: str) -> FailureKind:
    """Return the kind of an error.

    Args:
        type_names: Names of the exception's class and of those that it derives from, if known.
        text: Its message.
    """
    refusals = (_REFUSAL, RECOMPUTED, RECOMPUTED_SELECTIVELY)
    if not _REFUSAL_TYPES.isdisjoint(type_names) or any(one.search(text) for one in refusals):
        return "incompatible"
    if "MemoryError" in type_names or is_host_memory(text):
        return "oom_host"
    if "OutOfMemoryError" in type_names or _DEVICE_MEMORY.search(text):
        return "oom_device"
    lost = not _PEER_TYPES.isdisjoint(type_names) or _PEER.search(text)
    if lost or _MACHINE.search(text) or _CACHE.search(text):
        return "infra"
    uncompiled = not _COMPILER_TYPES.isdisjoint(type_names) or COMPILER.search(text)
    return "incompatible" if uncompiled else "crash"


def is_host_memory(text: str) -> bool:
    """Whether a message or the end of a log says that host memory could not be had."""
    return bool(_HOST_MEMORY.search(text))
