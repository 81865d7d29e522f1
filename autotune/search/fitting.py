"""Does the model fit at all? A lower bound on memory, known before the first launch."""

from __future__ import annotations

from typing import Any, Final

from autotune.backends.base import backend_of
from autotune.contract import hostmemory
from autotune.contract.plan import Topology, Workload
from autotune.errors import NothingFeasibleError
from autotune.models.family import family_of
from autotune.search.devices import Devices
from autotune.space import domains
from autotune.space.search_space import SearchSpace

_BYTES: Final = {"fp32": 4, "bf16": 2}
_MOMENTS: Final = 2
"""Of AdamW, for each parameter; torch makes them in the format of the weights that it updates."""
_GIB: Final = 1024**3
_STAGED: Final = "deepspeed"
_STAGE: Final = f"{_STAGED}.zero_stage"
_OFFLOADS: Final = ("deepspeed.offload_optimizer", "zero3.offload_optimizer")


def least_memory_bytes(workload: Workload) -> int:
    """Bytes of weights, gradients and Adam's moments of one copy of the model.

    However finely it is sharded, all ranks together hold at least this. Frozen weights have
    neither gradients nor moments. What the optimizer is given has the weights' format, in
    whatever format it was summed.
    """
    precision = workload.precision
    master = _BYTES[precision.master]
    each = master + min(master, _BYTES[precision.accumulate]) + _MOMENTS * master
    return frozen_bytes(workload) + workload.num_trainable * each


def frozen_bytes(workload: Workload) -> int:
    """Bytes of the weights beside which adapters are trained; 0 where all weights are trained.

    Weights in four bits have an 8-bit scale for every 64 of them and a 32-bit one for every 256
    scales (QLoRA, Dettmers et al. 2023, section 3: double quantisation).
    """
    if workload.lora is None:
        return 0
    model = workload.model
    packed = 0
    if workload.finetune == "qlora":
        layers = family_of(model.family).linear_layers(model.config)
        packed = sum(rows * columns for rows, columns in layers.values())
    whole = (model.num_parameters - packed) * _BYTES[workload.precision.compute]
    return whole + packed // 2 + packed // 64 + packed // (64 * 256) * 4


def stage_memory_bytes(
    stage: int, workload: Workload, processes: int, *, offloaded: bool = False
) -> float:
    """Bytes of the model's state that one process holds at a ZeRO stage, at least.

    Stages 1 and 2 keep all weights on every process, stage 1 all gradients too; Adam's moments
    and the master weights are split at each stage.

    Args:
        stage: 1, 2 or 3.
        workload: Model and number formats.
        processes: All of them.
        offloaded: Whether all but the weights may lie in host memory.
    """
    precision, number = workload.precision, workload.num_trainable
    weights = float(frozen_bytes(workload) + number * _BYTES[precision.compute])
    gradients = float(number * _BYTES[precision.accumulate])
    state = float(number * (1 + _MOMENTS) * _BYTES[precision.master])
    if offloaded:
        gradients = state = 0.0
    if stage == 1:
        return weights + gradients + state / processes
    if stage == 2:
        return weights + (gradients + state) / processes
    return least_memory_bytes(workload) / processes if not offloaded else 0.0


def fitting(
    space: SearchSpace, workload: Workload, topology: Topology, devices: Devices
) -> SearchSpace:
    """Return ``space`` without the backends and ZeRO stages whose copies cannot fit.

    Raises:
        NothingFeasibleError: Not even one copy fits on all processes together, or the baseline's
            backend is one of those.
    """
    need = least_memory_bytes(workload)
    rooms = _rooms(topology, devices)
    name = workload.model.name
    offloading = _offloading(space) if topology.device == "cuda" else set()
    nowhere = (
        f"weights, gradients and Adam's moments take {need / _GIB:.1f} GiB over all processes, and "
        f"{sum(rooms) / _GIB:.1f} GiB are there"
    )
    if need > sum(rooms) and not offloading:
        raise NothingFeasibleError(
            f"{name} cannot be trained here: {nowhere}",
            hint="take a smaller model, bf16, or more devices",
        )
    if _STAGED in space.backends:
        space = _fitting_stages(space, workload, rooms, offloaded=_STAGED in offloading)
    for backend in space.backends:
        if backend_of(backend).replicates and need > min(rooms):
            reason = (
                f"each process holds all of {name}: weights, gradients and Adam's moments take "
                f"{need / _GIB:.1f} GiB, and {min(rooms) / _GIB:.1f} GiB are there for it"
            )
        elif need > sum(rooms) and backend not in offloading:
            reason = f"{name}'s {nowhere}, and nothing is offloaded"
        else:
            continue
        if backend == space.baseline_backend:
            raise NothingFeasibleError(
                f"{backend} cannot be the baseline here: {reason}",
                hint="take a backend that shards, such as fsdp2 or zero3, or a smaller model",
            )
        space = space.without(backend, reason)
    return space


def _fitting_stages(
    space: SearchSpace, workload: Workload, rooms: list[float], *, offloaded: bool
) -> SearchSpace:
    """Return ``space`` without the ZeRO stages that cannot fit on the smallest device."""
    reasons: dict[int, str] = {}
    for stage, what in ((1, "all weights and gradients"), (2, "all weights")):
        need = stage_memory_bytes(stage, workload, len(rooms), offloaded=offloaded)
        if need > min(rooms):
            reasons[stage] = (
                f"each process holds {what} of {workload.model.name}, {need / _GIB:.1f} GiB with "
                f"its part of the rest, and {min(rooms) / _GIB:.1f} GiB are there for it"
            )
    if space.baseline_backend == _STAGED:
        baseline = space.baseline_config().values[_STAGE]
        if baseline in reasons:
            raise NothingFeasibleError(
                f"zero_stage {baseline} cannot be the baseline here: {reasons[baseline]}",
                hint="take zero_stage 3, which splits the weights too, or a smaller model",
            )
    elif not _stages(space) - reasons.keys():
        return space.without(_STAGED, "; ".join(reasons.values()))
    return space.without_values(_STAGE, reasons) if reasons else space


def _stages(space: SearchSpace) -> set[Any]:
    """The stages that configurations of the space may have."""
    for param in space.params:
        if param.knob == _STAGE:
            return set(domains.values(param.domain))
    return {space.default_config(_STAGED).values[_STAGE]}


def _offloading(space: SearchSpace) -> set[str]:
    """Backends that some configuration of the space lets keep state in host memory."""
    tuned = {param.knob for param in space.params}
    return {
        name.partition(".")[0]
        for name in _OFFLOADS
        if name in tuned
        or any(given.get(name) not in (None, "none") for given in (space.fixed, space.baseline))
    }


def _rooms(topology: Topology, devices: Devices) -> list[float]:
    """Bytes for each process: of its device, or its part of the host's memory."""
    if topology.device == "cuda":
        return [float(one.memory_bytes) for one in devices.found[: topology.processes]]
    total = devices.host_memory_bytes or hostmemory.total_bytes()
    return [total / topology.processes] * topology.processes
