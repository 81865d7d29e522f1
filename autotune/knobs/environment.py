"""Environment variables as knobs: read by the driver, by NCCL or by torch in every rank.

A variable is tuned only where a space file names it (``env.NAME``); ``null`` is a value and means
that it is not set. What no file names reaches every rank as the site has it.

Sources: NVIDIA's *CUDA C++ Programming Guide* (CUDA environment variables), NCCL's user guide
(*Environment Variables*), torch 2.11 and 2.13 (``c10/core/AllocatorConfig.h``,
``c10/cuda/CUDAAllocatorConfig.h``, ``torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from autotune.knobs.knob import Knob, Need

OWNER: Final = "env"
ALLOCATOR: Final = "PYTORCH_ALLOC_CONF"
"""The knob that says the allocator's settings."""
ALLOCATOR_NAMES: Final = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""The names under which they are set: of two, the device's allocator obeys the second and the
common part the first (``CUDAAllocatorConfig.h``, ``instance``; ``AllocatorConfig.h``)."""

_ON_DEVICE: Final = (Need(kind="device"),)
_NCCL: Final = "NCCL user guide, Environment Variables"
_SETTING: Final = (
    r"(expandable_segments:(True|False)|garbage_collection_threshold:0?\.\d+|"
    r"max_split_size_mb:[1-9]\d+|roundup_power2_divisions:[1-9]\d*)"
)


def _nccl(name: str, *, low: int, high: int | None, unit: str, meaning: str) -> Knob:
    return Knob(
        owner=OWNER,
        name=name,
        type="int",
        default=None,
        low=low,
        high=high,
        unit=unit,
        # Where a message is cut decides in which order the ranks' parts are summed.
        numerics="order",
        dead_when="device == 'cpu'",
        read_back="environment",
        read_from=f"{name} of the rank's process",
        source=_NCCL,
        meaning=meaning,
        needs=_ON_DEVICE,
        later=True,
    )


KNOBS: Final[tuple[Knob, ...]] = (
    Knob(
        owner=OWNER,
        name=ALLOCATOR,
        type="text",
        default=None,
        pattern=rf"{_SETTING}(,{_SETTING})*",
        form="settings such as expandable_segments:True or "
        "garbage_collection_threshold:0.8,max_split_size_mb:512 (also roundup_power2_divisions)",
        numerics="neutral",
        dead_when="device == 'cpu'",
        read_back="live",
        read_from="torch._C._accelerator_getAllocatorSettings()",
        source="c10/core/AllocatorConfig.h",
        meaning="How torch's allocator cuts and keeps device memory; expandable segments leave "
        "fewer gaps. It is set under both names that torch reads.",
        needs=_ON_DEVICE,
        later=True,
    ),
    Knob(
        owner=OWNER,
        name="CUDA_DEVICE_MAX_CONNECTIONS",
        type="int",
        default=None,
        low=1,
        high=32,
        unit="queues",
        numerics="neutral",
        dead_when="device == 'cpu'",
        read_back="environment",
        read_from="CUDA_DEVICE_MAX_CONNECTIONS of the rank's process",
        source="CUDA C++ Programming Guide, CUDA Environment Variables",
        meaning="Work queues from the host to the device (the driver's own number is 8); 1 starts "
        "kernels in the order of their launches, more lets streams pass one another.",
        needs=_ON_DEVICE,
        later=True,
    ),
    _nccl(
        "NCCL_MIN_CTAS",
        low=1,
        high=64,
        unit="blocks",
        meaning="Fewest thread blocks that a collective takes; more is faster alone, and takes "
        "multiprocessors from what it overlaps with.",
    ),
    _nccl(
        "NCCL_MAX_CTAS",
        low=1,
        high=64,
        unit="blocks",
        meaning="Most thread blocks that a collective takes; fewer leave more for computation.",
    ),
    _nccl(
        "NCCL_BUFFSIZE",
        low=65_536,
        high=1_073_741_824,
        unit="bytes",
        meaning="Buffer of each pair of devices (NCCL's own is 4 MiB); more helps long messages "
        "and costs device memory.",
    ),
    Knob(
        owner=OWNER,
        name="TORCH_NCCL_HIGH_PRIORITY",
        type="bool",
        default=None,
        numerics="neutral",
        dead_when="device == 'cpu'",
        read_back="environment",
        read_from="TORCH_NCCL_HIGH_PRIORITY of the rank's process",
        source="torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp",
        meaning="Collectives on streams of high priority: they start before waiting computation.",
        needs=_ON_DEVICE,
        later=True,
    ),
)

FORBIDDEN: Final[tuple[str, ...]] = (
    "NCCL_NVLS_ENABLE",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST",
    "NVSHMEM_DISABLE_NVLS",
)
"""Settings of the site: they reach every rank as they are, and are never changed nor tuned."""

REFUSED: Final[dict[str, str]] = {
    "PYTORCH_CUDA_ALLOC_CONF": "env.PYTORCH_ALLOC_CONF says it, and sets both names",
    "NCCL_PROTO": "NCCL chooses it by topology; LL128 where the hardware does not keep its order "
    "corrupts data silently",
    "NCCL_ALGO": "NCCL chooses it by topology and message; its own guide keeps it for debugging",
    "NCCL_P2P_DISABLE": "it is for debugging and only makes transfers slower",
    "TORCH_NCCL_AVOID_RECORD_STREAMS": "it changes nothing since torch 2.8",
    "OMP_NUM_THREADS": "the launcher divides the host's cores among the ranks",
}
"""Variables that people try, with the reason why they are no knobs."""


def text_of(value: Any) -> str:
    """A value as the environment has it: switches are ``1`` and ``0``."""
    return str(int(value)) if isinstance(value, bool) else str(value)


def variables(config: Mapping[str, Any]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return what a configuration sets in its ranks, and the names that it must not find set.

    Args:
        config: Full knob name to value; other owners' knobs are passed over.
    """
    found: dict[str, str] = {}
    unset: list[str] = []
    for full, value in config.items():
        owner, _, name = full.partition(".")
        if owner != OWNER:
            continue
        names = ALLOCATOR_NAMES if name == ALLOCATOR else (name,)
        if value is None:
            unset.extend(names)
        else:
            found.update(dict.fromkeys(names, text_of(value)))
    return found, tuple(sorted(unset))


def contradiction(config: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the variable that cannot be as it is beside another, and why; ``None``: all can."""
    least, most = (config.get(f"{OWNER}.NCCL_{end}_CTAS") for end in ("MIN", "MAX"))
    if least is None or most is None or least <= most:
        return None
    return f"{OWNER}.NCCL_MIN_CTAS", f"NCCL_MIN_CTAS {least} is above NCCL_MAX_CTAS {most}"


def typed(text: str, knob: Knob) -> Any:
    """Return a variable's text as a value of its knob.

    Raises:
        ValueError: It is none.
    """
    if knob.type == "bool":
        if text.strip().lower() in ("1", "true", "y", "yes"):
            return True
        if text.strip().lower() in ("0", "false", "n", "no"):
            return False
        raise ValueError(text)
    return int(text) if knob.type == "int" else text
