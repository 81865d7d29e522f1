"""What the installed versions and this machine lack: left out before the first launch, in words.

Nothing is imported for it: a method is looked up in the installed source's text, a compiler by
its path.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import os
import re
import shutil
from pathlib import Path
from typing import Any

from autotune.contract.plan import Topology
from autotune.knobs.knob import Knob, Need
from autotune.space import domains
from autotune.space.model import Choices, Param
from autotune.space.search_space import SearchSpace


def available(space: SearchSpace, topology: Topology) -> SearchSpace:
    """Return ``space`` without the values that need what is not there.

    Raises:
        SpaceError: What is fixed or in the baseline needs it, or no value of a parameter is left.
    """
    for section, given in (("fixed", space.fixed), ("baseline", space.baseline)):
        for name, value in given.items():
            knob = space.knobs[name]
            reason = lacking(knob, value, topology)
            # A device's setting changes nothing without one: the same file serves both machines.
            if reason is not None and not _is_dead_without_device(knob, topology):
                place = space.place(f"{section}.{name}")
                raise place.error(f"{knob.name} {value} cannot be here: {reason}")
    for param in space.params:
        space = _without(space, param, topology)
    return space


def lacking(knob: Knob, value: Any, topology: Topology) -> str | None:
    """Return why ``knob`` cannot have ``value`` on this machine; ``None`` if it can."""
    for need in knob.needs:
        concerned = need.concerns(value, knob.default)
        reason = _missing(need, topology) if concerned else None
        if reason is not None:
            return reason
    return None


def _without(space: SearchSpace, param: Param, topology: Topology) -> SearchSpace:
    knob = space.knobs[param.knob]
    whole = [need for need in knob.needs if not need.values]
    reasons = [reason for need in whole if (reason := _missing(need, topology)) is not None]
    if reasons:
        return space.without_param(param.knob, reasons[0])
    if not isinstance(param.domain, Choices):
        return space
    gone = {
        value: reason
        for value in domains.values(param.domain)
        if (reason := lacking(knob, value, topology)) is not None
    }
    return space.without_values(param.knob, gone) if gone else space


def _is_dead_without_device(knob: Knob, topology: Topology) -> bool:
    # Of DeepSpeed's knobs with a stage to choose it is one of several conditions.
    return topology.device == "cpu" and "device == 'cpu'" in (knob.dead_when or "")


def _missing(need: Need, topology: Topology) -> str | None:
    if need.kind == "device":
        return None if topology.device == "cuda" else "it needs a CUDA device"
    if need.kind == "compiler":
        return None if _has_compiler() else (
            "it is compiled on this machine, and neither CUDA_HOME nor PATH has nvcc"
        )  # fmt: skip
    if need.name in _fsdp_methods():
        return None
    return f"torch {_version('torch')} has no FSDPModule.{need.name}"


def _has_compiler() -> bool:
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH") or "/usr/local/cuda"
    return shutil.which("nvcc") is not None or (Path(home) / "bin" / "nvcc").is_file()


@functools.cache
def _fsdp_methods() -> frozenset[str]:
    """Methods defined in torch's ``_fully_shard.py``, which holds ``FSDPModule``."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return frozenset()
    path = Path(spec.origin).parent / "distributed/fsdp/_fully_shard/_fully_shard.py"
    try:
        return frozenset(re.findall(r"^    def (\w+)\(", path.read_text("utf-8"), re.MULTILINE))
    except OSError:
        return frozenset()


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"
