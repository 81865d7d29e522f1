"""What DeepSpeed ZeRO refuses, or passes by: told before a launch.

Facts are from DeepSpeed 0.19.8 (``runtime/zero/config.py``, ``stage3.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from autotune.backends import adapters, recompute
from autotune.backends.base import Refusal
from autotune.contract.plan import Precision, Topology, Workload

_COMPILE: Final = "kernel.compile"
"""Four tiny layers with ZeRO-3's hooks were not compiled after fifteen minutes (DeepSpeed 0.19.8,
torch 2.13), where a whole trial takes half a minute under FSDP2."""


def refused(
    name: str, stage: int, config: Mapping[str, Any], workload: Workload, topology: Topology
) -> Refusal | None:
    """Return why the engine cannot run a configuration, in words, or ``None``.

    Args:
        name: Of the backend, before its knobs.
        stage: Of ZeRO.
        config: Values by full knob name.
        workload: The work.
        topology: Processes and their places.
    """
    return (
        (_refused_at_3(name, config, topology) if stage == 3 else None)
        or recompute.refused(config, workload)
        or _refused_precision(workload.precision)
        or adapters.refused_quantized(workload)
    )


def _refused_at_3(name: str, config: Mapping[str, Any], topology: Topology) -> Refusal | None:
    granularity = f"{name}.stage3_module_granularity_threshold"
    if (config.get(granularity) or 0) > 0 and topology.device == "cpu":
        return Refusal(
            about=granularity,
            reason="stage3_module_granularity_threshold above 0 needs a device: without one "
            "the engine fails while it builds",
        )
    group = config.get(f"{name}.zero_hpz_partition_size") or 1
    if topology.processes % group:
        return Refusal(
            about=f"{name}.zero_hpz_partition_size",
            reason=f"zero_hpz_partition_size {group} does not divide the "
            f"{topology.processes} processes",
        )
    if config.get(_COMPILE, "none") != "none":
        return Refusal(
            about=_COMPILE,
            reason="ZeRO-3 gathers weights by hooks inside every layer, so torch.compile finds "
            "no layer to compile as a whole and makes a graph of each piece",
        )
    return _refused_quantised(name, config, topology)


def _refused_quantised(name: str, config: Mapping[str, Any], topology: Topology) -> Refusal | None:
    """Quantising what goes nowhere: the engine passes it by and still compiles the extension.

    Gradients in ``__avg_scatter_grads``, weights in ``all_gather_coalesced``, which gathers nothing
    on one process.
    """
    for part, place, alone in (
        ("gradients", "node", topology.nodes == 1),
        ("weights", "process", topology.processes == 1),
    ):
        knob = f"{name}.zero_quantized_{part}"
        if alone and config.get(knob):
            return Refusal(
                about=knob,
                reason=f"zero_quantized_{part} changes nothing on one {place}: ZeRO-3 "
                f"quantises {part} only where they go from {place} to {place}",
            )
    return None


def _refused_precision(precision: Precision) -> Refusal | None:
    reason = None
    if precision.master != "fp32":
        reason = "DeepSpeed keeps bf16 master weights only with its own CPU Adam; use fp32"
    elif precision.compute == "fp32" and precision.accumulate != "fp32":
        reason = "ZeRO with fp32 weights accumulates gradients in fp32"
    return None if reason is None else Refusal(about="workload.precision", reason=reason)
