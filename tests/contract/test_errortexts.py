"""Texts of real libraries, each with the kind that it stands for."""

from __future__ import annotations

import pytest

from autotune.contract.errortexts import kind_of

NCCL_MEMORY = """NCCL error in: ProcessGroupNCCL.cpp:3782, unhandled cuda error, NCCL version 2.28.9
ncclUnhandledCudaError: Call to CUDA function failed.
Last error:
Cuda failure 2 'out of memory'"""
NCCL_SHARED = """NCCL error in: ProcessGroupNCCL.cpp:3782, unhandled system error
ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.
Last error:
Error while creating shared memory segment /dev/shm/nccl-Ab12Cd (size 9637888), error: No space"""


@pytest.mark.parametrize(
    ("names", "text", "kind"),
    [
        ({"OutOfMemoryError"}, "anything", "oom_device"),
        ({"RuntimeError"}, "CUDA out of memory. Tried to allocate 2.00 GiB.", "oom_device"),
        ({"AcceleratorError"}, "CUDA error: out of memory", "oom_device"),
        ({"DistBackendError"}, NCCL_MEMORY, "oom_device"),
        ({"DistBackendError"}, "Failed to CUDA calloc 4194304 bytes", "oom_device"),
        ({"RuntimeError"}, "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling …", "oom_device"),
        (
            {"RuntimeError"},
            "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
            "oom_device",
        ),
        ({"RuntimeError"}, "cuDNN error: CUDNN_STATUS_ALLOC_FAILED", "oom_device"),
        ({"RuntimeError"}, "Triton Error [CUDA]: out of memory", "oom_device"),
        ({"MemoryError"}, "", "oom_host"),
        (
            {"RuntimeError"},
            "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate "
            "memory: you tried to allocate 4611686018427387904 bytes.",
            "oom_host",
        ),
        ({"OSError"}, "[Errno 12] Cannot allocate memory", "oom_host"),
        ({"DistBackendError"}, NCCL_SHARED, "oom_host"),
        (
            {"RuntimeError"},
            "DataLoader worker (pid 7) is killed by signal: Bus error. It is possible that "
            "dataloader's workers are out of shared memory. insufficient shared memory (shm).",
            "oom_host",
        ),
        (
            {"RuntimeError"},
            "unable to allocate shared memory(shm) for file </torch_7_1_0>: No space left on "
            "device (28)",
            "oom_host",
        ),
        (
            {"OutOfResources"},
            "out of resource: shared memory, Required: 264192, Hardware limit: 232448.",
            "incompatible",
        ),
        ({"IncompatibleConfigError"}, "DeepSpeed refuses the configuration", "incompatible"),
        (
            {"InternalTorchDynamoError", "TorchDynamoException", "RuntimeError"},
            "TypeError: cannot determine truth value of Relational: s12*s48 < s48",
            "incompatible",
        ),
        (set(), "torch._dynamo.exc.Unsupported: Data-dependent branching", "incompatible"),
        ({"FailOnRecompileLimitHit"}, "recompile_limit reached", "incompatible"),
        (
            {"BackendCompilerFailed", "TorchDynamoException"},
            "backend='inductor' raised: OSError: [Errno 28] No space left on device",
            "infra",
        ),
        ({"OSError"}, "[Errno 98] Address already in use", "infra"),
        (
            {"DistNetworkError"},
            "The server socket has failed to listen on any local network address. port: 29500, "
            "code: -98, name: EADDRINUSE, message: address already in use",
            "infra",
        ),
        ({"OSError"}, "[Errno 28] No space left on device", "infra"),
        ({"OSError"}, "[Errno 116] Stale file handle: '/home/u/.triton/cache/x'", "infra"),
        (
            {"FileNotFoundError", "OSError"},
            "[Errno 2] No such file or directory: '/runs/.cache/h/f/slot-0/triton/rank-0/k.json'",
            "infra",
        ),
        (
            {"InductorError"},
            "ImportError: /runs/.cache/h/f/slot-0/inductor/rank-1/r4/cr4.main.so: file too short",
            "infra",
        ),
        (
            {"ImportError"},
            "/site-packages/triton/_C/libtriton.so: undefined symbol: _ZN4llvm",
            "crash",
        ),
        ({"FileNotFoundError"}, "[Errno 2] No such file or directory: '/data/chat.json'", "crash"),
        ({"RuntimeError"}, "[gloo/transport/tcp/pair.cc:525] Connection closed by peer", "infra"),
        ({"AcceleratorError"}, "CUDA error: uncorrectable ECC error encountered", "infra"),
        ({"RuntimeError"}, "CUDA error: device-side assert triggered", "crash"),
        ({"KeyError"}, "'memory'", "crash"),
    ],
)
def test_kind(names: set[str], text: str, kind: str) -> None:
    assert kind_of(names, text) == kind
