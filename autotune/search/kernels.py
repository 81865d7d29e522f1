"""Which kernels can run here: told before the first launch, by what is installed and the model."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any

from autotune.contract.plan import Topology, Workload
from autotune.knobs import kernels
from autotune.models.family import family_of
from autotune.models.kernels import convolution, linear_attention
from autotune.models.kernels.choice import LayerKernels, Machine, unavailable, version
from autotune.models.kernels.table import LAYERS
from autotune.search.checks import Check
from autotune.search.devices import Devices
from autotune.space import domains
from autotune.space.model import Limits
from autotune.space.search_space import SearchSpace


def machine_of(workload: Workload, topology: Topology, devices: Devices) -> Machine:
    """Return what decides which kernels can run."""
    used = devices.found[: topology.devices_per_node] if topology.device == "cuda" else ()
    known = [device.capability for device in used if device.capability is not None]
    return Machine(
        device=topology.device,
        capability=min(known, default=None),
        compute=workload.precision.compute,
    )


def limits_of(
    space: SearchSpace, workload: Workload, topology: Topology, devices: Devices
) -> Limits:
    """Return the kernels that cannot run here, with the reason, and whether packing can be."""
    machine, model = machine_of(workload, topology, devices), workload.model
    gone: dict[str, dict[Any, str]] = {}
    for layer in LAYERS:
        for choice in layer.choices:
            # What no machine can change is said first.
            reason = layer.refused(model.family, choice.name) or unavailable(choice, machine)
            if reason is not None:
                gone.setdefault(full_name(layer), {})[choice.name] = reason
    family = family_of(model.family)
    facts = {**family.layer_counts(model.config), **_bound_by_the_library(machine)}
    limits = Limits(values=gone, facts=facts)
    combinations = _combinations(dataclasses.replace(space, limits=limits), gone)
    refusals = [family.packing_refusal(model.config, chosen) for chosen in combinations]
    packing = None if None in refusals else next(iter(refusals), None)
    return dataclasses.replace(limits, packing=packing)


def _bound_by_the_library(machine: Machine) -> dict[str, bool]:
    """Facts for the defaults of knobs: what transformers binds by itself, and can run here.

    ``transformers/integrations/hub_kernels.py``: a package that can be imported is taken.
    """
    return {
        f"{package}_binds": unavailable(layer.choice(package), machine) is None
        for layer, package in (
            (linear_attention.LAYER, "fla"),
            (convolution.LAYER, "causal_conv1d"),
        )
    }


def kernel_table(devices: Devices) -> list[Check]:
    """Which choices of each ``kernel.*`` knob can run here, and why the others cannot."""
    known = [one.capability for one in devices.found if one.capability is not None]
    device = "cuda" if devices.found else "cpu"
    # What a workload in float32 could not have is not the machine's lack.
    machine = Machine(device=device, capability=min(known, default=None), compute="bf16")
    checks = []
    for layer in LAYERS:
        reasons = {one.name: unavailable(one, machine) for one in layer.choices}
        usable = [name for name, reason in reasons.items() if reason is None]
        lacking = [f"{name}: {reason}" for name, reason in reasons.items() if reason is not None]
        checks.append(
            Check(
                name=f"knob {full_name(layer)}",
                state="note" if lacking else "ok",
                text="; ".join([f"{', '.join(usable)} can run here", *lacking]),
                data={
                    "choices": [
                        {
                            "name": one.name,
                            "usable": reasons[one.name] is None,
                            "reason": reasons[one.name],
                            "versions": {name: version(name) for name in one.packages},
                        }
                        for one in layer.choices
                    ]
                },
            )
        )
    return checks


def full_name(layer: LayerKernels) -> str:
    """Return the knob of a layer type by its full name."""
    return f"{kernels.OWNER}.{layer.knob}"


def offered(space: SearchSpace, layer: LayerKernels) -> tuple[str, ...]:
    """Return the choices of a layer type that configurations of the space may have."""
    knob = full_name(layer)
    tuned = [param for param in space.params if param.knob == knob]
    values = [str(value) for param in tuned for value in domains.values(param.domain)]
    stated = str(space.baseline_config().values[knob])
    return tuple(dict.fromkeys([stated, *values]))


def _combinations(space: SearchSpace, gone: dict[str, dict[Any, str]]) -> Iterator[dict[str, str]]:
    names = [layer.knob for layer in LAYERS]
    left = [
        [one for one in offered(space, layer) if one not in gone.get(full_name(layer), {})]
        for layer in LAYERS
    ]
    for choices in itertools.product(*left):
        yield dict(zip(names, choices, strict=True))
