"""What a fork server imports before it forks: all that a trial would import, and no device.

The list is fixed, plus what each backend and each model family names in its ``preload``. A
module that is missing is reported: of a whole package that a backend needs the launcher makes an
error (:func:`packages_of`), for versions differ in what is inside.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import sys
from collections.abc import Iterable, Sequence
from typing import Final

from autotune import registry
from autotune.contract import processes

HARMLESS_THREADS: Final = ("cuda",)
"""Starts of names of threads that hold no lock a rank needs. The driver names NVML's own thread
so: torch counts devices through NVML (``torch/cuda/__init__.py``, ``_raw_device_count_nvml``)
and leaves it open; a call of ``nvmlShutdown`` after the imports left it there. Ranks forked beside
it ran NCCL, FSDP2 and ZeRO-3 (two H200, driver 580)."""
COMMON: Final = (
    "torch",
    "torch.distributed",
    "torch.distributed.fsdp",
    "torch.distributed.device_mesh",
    "torch.profiler._cupti_monitor",
    "torch.utils.checkpoint",
    "torch.optim.adamw",
    "transformers",
    "safetensors.torch",
    # Imported at the first use of an optimizer or of checkpointing by some decorator; about 2 s
    # of `deepspeed.initialize` otherwise.
    "torch._dynamo",
    "torch._dynamo.repro.after_aot",
    "torch._inductor.compile_fx",
    "torch._subclasses.schema_check_mode",
    "functorch.compile",
    # Our own, which import each other inside functions.
    "autotune.worker.session",
    "autotune.worker.attestation",
    "autotune.worker.gradients",
    "autotune.worker.leaks",
    "autotune.worker.measure",
    "autotune.worker.rendezvous",
    "autotune.worker.step",
    "autotune.data.stream",
    "autotune.models.checkpoint",
    "autotune.models.checkpointing",
    "autotune.models.family",
    "autotune.models.kernels.cross_entropy",
    "autotune.models.loss",
    "autotune.models.weights",
)


def modules_for(
    backends: Sequence[str], extra: Iterable[str]
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the modules to import for ``backends``, in order, and what could not be looked up."""
    names: list[str] = [*extra, *COMMON]
    missing: dict[str, str] = {}
    wanted = [("backends", backend) for backend in backends]
    wanted += [("models", family) for family in registry.names("models")]
    for kind, name in wanted:
        try:
            part = registry.load(kind, name)  # type: ignore[arg-type]  # found out here
        except Exception as error:  # another package's module may fail in any way
            missing[f"{kind}:{name}"] = _reason(error)
            continue
        names.extend(getattr(part, "preload", ()))
        if kind == "models" and not getattr(part, "imports_kernels", False):
            names.append(f"transformers.models.{name}.modeling_{name}")
    return tuple(dict.fromkeys(names)), missing


def packages_of(backends: Sequence[str]) -> tuple[str, ...]:
    """Return the packages without which no trial of ``backends`` can run, each as a whole."""
    modules: list[str] = []
    for backend in backends:
        with contextlib.suppress(Exception):  # modules_for tells of it
            modules += getattr(registry.load("backends", backend), "preload", ())
    return tuple(dict.fromkeys(module.partition(".")[0] for module in modules))


def preload(names: Iterable[str]) -> tuple[int, dict[str, str]]:
    """Import ``names``; return how many there are now, and what failed and why."""
    count = 0
    missing: dict[str, str] = {}
    for name in names:
        try:
            importlib.import_module(name)
        except Exception as error:  # an optional package may fail in any way
            missing[name] = _reason(error)
        else:
            count += 1
    # What is imported stays: leaving it out of collections keeps the pages shared after a fork.
    gc.collect()
    gc.freeze()
    return count, missing


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:300]


def why_no_fork() -> str | None:
    """Return why a child of this process could hang or fail; ``None`` if it is sound."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return "an import has created a CUDA context"
    names = [n for n in processes.other_threads() if not n.startswith(HARMLESS_THREADS)]
    return f"an import has left threads ({', '.join(names)})" if names else None
