"""Does the model fit at all? A lower bound on memory, known before the first launch."""

from __future__ import annotations

from typing import Final

from autotune.backends.base import backend_of
from autotune.contract import hostmemory
from autotune.contract.plan import Topology, Workload
from autotune.errors import NothingFeasibleError
from autotune.search.devices import Devices
from autotune.space.search_space import SearchSpace

_BYTES: Final = {"fp32": 4, "bf16": 2}
_ADAM_BYTES: Final = 8
"""Two float32 moments a parameter."""
_GIB: Final = 1024**3


def least_memory_bytes(workload: Workload) -> int:
    """Bytes of weights, gradients and Adam's moments of one copy of the model.

    However finely it is sharded, all ranks together hold at least this.
    """
    precision = workload.precision
    each = _BYTES[precision.master] + _BYTES[precision.accumulate] + _ADAM_BYTES
    return workload.model.num_parameters * each


def fitting(
    space: SearchSpace, workload: Workload, topology: Topology, devices: Devices
) -> SearchSpace:
    """Return ``space`` without the backends whose copies of the model cannot fit.

    Raises:
        NothingFeasibleError: Not even one copy fits on all processes together, or the baseline's
            backend is one of those.
    """
    need = least_memory_bytes(workload)
    rooms = _rooms(topology, devices)
    name = workload.model.name
    if need > sum(rooms):
        raise NothingFeasibleError(
            f"{name} cannot be trained here: weights, gradients and Adam's moments "
            f"take {need / _GIB:.1f} GiB over all processes, and {sum(rooms) / _GIB:.1f} GiB are "
            "there",
            hint="take a smaller model, bf16, or more devices",
        )
    if need <= min(rooms):
        return space
    for backend in space.backends:
        if not backend_of(backend).replicates:
            continue
        reason = (
            f"each process holds all of {name}: weights, gradients and Adam's moments take "
            f"{need / _GIB:.1f} GiB, and {min(rooms) / _GIB:.1f} GiB are there for it"
        )
        if backend == space.baseline_backend:
            raise NothingFeasibleError(
                f"{backend} cannot be the baseline here: {reason}",
                hint="take a backend that shards, such as fsdp2 or zero3, or a smaller model",
            )
        space = space.without(backend, reason)
    return space


def _rooms(topology: Topology, devices: Devices) -> list[float]:
    """Bytes for each process: of its device, or its part of the host's memory."""
    if topology.device == "cuda":
        return [float(one.memory_bytes) for one in devices.found[: topology.processes]]
    return [hostmemory.total_bytes() / topology.processes] * topology.processes
