"""What the machine has, found without importing torch: that alone would take 300 MB and 5 s."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from autotune.contract import nvml
from autotune.contract.plan import Topology
from autotune.errors import InputError

CPU_PROCESSES: Final = 2
"""Ranks of a trial on a machine without a device, unless the space file says otherwise."""
CPU_PROCESSES_PER_CORE: Final = 4
MIN_CPU_LIMIT: Final = 8
"""On CPUs a trial shows how it works; more ranks than this would only choke the machine."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Device:
    """One visible GPU."""

    name: str
    memory_bytes: int
    uuid: str = ""
    """``GPU-…``, by which ``CUDA_VISIBLE_DEVICES`` may name it."""
    capability: tuple[int, int] | None = None
    """Compute capability, where the driver says it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Devices:
    """The visible GPUs, or why there are none."""

    found: tuple[Device, ...]
    note: str = ""
    """Why GPUs that are there are not used; empty when there is nothing to say."""
    host_memory_bytes: int | None = None
    """Of the machine with these devices; ``None``: of this one."""


def find_topology(devices: Devices, processes: int | None) -> Topology:
    """Return where the ranks of a trial run.

    Args:
        devices: The visible GPUs.
        processes: ``topology.processes`` of the space file; ``None`` is ``auto``.

    Raises:
        InputError: More processes than devices, or than CPU cores can carry.
    """
    count = len(devices.found)
    if count == 0:
        wanted = processes or CPU_PROCESSES
        most = max(MIN_CPU_LIMIT, CPU_PROCESSES_PER_CORE * (os.cpu_count() or 1))
        if wanted > most:
            raise InputError(
                f"topology.processes is {wanted}, and without a GPU this machine takes {most}: "
                f"{CPU_PROCESSES_PER_CORE} for each CPU core",
                hint=f"write topology: {{processes: {CPU_PROCESSES}}}, or auto",
            )
        return Topology(processes=wanted, device="cpu", devices_per_node=wanted)
    wanted = processes or count
    if wanted > count:
        raise InputError(
            f"topology.processes is {wanted}, but {count} GPU{'s are' if count > 1 else ' is'} "
            "visible here",
            hint=f"write topology: {{processes: {count}}}, or auto, or check CUDA_VISIBLE_DEVICES",
        )
    return Topology(processes=wanted, device="cuda", devices_per_node=wanted)


def visible_devices(environment: Mapping[str, str] | None = None) -> Devices:
    """Return the GPUs that a rank started now would see."""
    environment = os.environ if environment is None else environment
    all_devices = tuple(
        Device(
            name=gpu.name, memory_bytes=gpu.total_bytes, uuid=gpu.uuid, capability=gpu.capability
        )
        for gpu in nvml.gpus()
    )
    if not all_devices:
        return Devices(found=())
    visible = _restrict(all_devices, environment.get("CUDA_VISIBLE_DEVICES"))
    if visible and not torch_has_cuda():
        return Devices(found=(), note="the installed torch is built without CUDA")
    return Devices(found=visible)


def torch_has_cuda() -> bool:
    """Whether the installed torch is a CUDA build, read from its ``version.py``."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return False
    try:
        text = (Path(spec.origin).parent / "version.py").read_text(encoding="utf-8")
    except OSError:
        return False
    return re.search(r"^cuda\b[^=\n]*=\s*['\"]", text, re.MULTILINE) is not None


def _restrict(devices: tuple[Device, ...], visible: str | None) -> tuple[Device, ...]:
    """Apply ``CUDA_VISIBLE_DEVICES``: the list ends at the first entry that is no device."""
    if visible is None:
        return devices
    chosen: list[Device] = []
    for entry in visible.split(","):
        text = entry.strip()
        if text.startswith("GPU-"):
            named = [device for device in devices if device.uuid.startswith(text)]
            if len(named) != 1:
                break
            chosen.append(named[0])
        elif text.startswith("MIG-"):
            # A slice has no entry of its own: what it is cut from stands for it.
            chosen.append(devices[min(len(chosen), len(devices) - 1)])
        elif text.isdecimal() and int(text) < len(devices):
            chosen.append(devices[int(text)])
        else:
            break
    return tuple(chosen)
