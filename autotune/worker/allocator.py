"""Settings of torch's allocator in a rank: told to it before it has given out device memory.

A rank is forked from a process that has imported torch and read the site's variables; what a
trial changes is told through the function behind ``torch.cuda.memory._set_allocator_settings``
(torch 2.9 and later). Settings that are not named go back to their defaults, except expandable
segments, which are named each time.
"""

from __future__ import annotations

from typing import Any, Final

from autotune.contract.plan import Plan
from autotune.knobs.environment import ALLOCATOR_NAMES

_KEEP: Final = "expandable_segments"


def apply(plan: Plan) -> None:
    """Tell the allocator what the plan says of it, if it says anything."""
    text = next((plan.environment[n] for n in ALLOCATOR_NAMES if n in plan.environment), None)
    if text is None and not set(ALLOCATOR_NAMES) & set(plan.unset):
        return
    settings = text or ""
    if _KEEP not in settings:
        settings = ",".join(filter(None, (settings, f"{_KEEP}:False")))
    _tell(settings)


def settings(asked: str | None) -> str | None:
    """Return the settings that the allocator holds, as ``asked`` where they are the same.

    Args:
        asked: What the plan says; ``None`` for the allocator's defaults.
    """
    held = _held()
    mine = _parts(held) - {f"{_KEEP}:False"}
    if mine == _parts(asked or "") - {f"{_KEEP}:False"}:
        return asked
    return held or None


def _parts(text: str) -> set[str]:
    return {part.strip() for part in text.split(",") if part.strip()}


def _tell(settings: str) -> None:
    import torch

    module: Any = torch._C
    name = "_accelerator_setAllocatorSettings"
    if not hasattr(module, name):
        name = "_cuda_cudaCachingAllocator_set_allocator_settings"  # its name before torch 2.10
    getattr(module, name)(settings)


def _held() -> str:
    import torch

    module: Any = torch._C
    if hasattr(module, "_accelerator_getAllocatorSettings"):
        return str(module._accelerator_getAllocatorSettings())
    memory: Any = torch.cuda.memory
    return str(memory._snapshot()["allocator_settings"]["PYTORCH_CUDA_ALLOC_CONF"])
