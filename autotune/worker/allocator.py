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
    import torch

    settings = text or ""
    if _KEEP not in settings:
        settings = ",".join(filter(None, (settings, f"{_KEEP}:False")))
    _functions(torch)[1](settings)


def settings(asked: str | None) -> str | None:
    """Return the settings that the allocator holds, as ``asked`` where they are the same.

    Args:
        asked: What the plan says; ``None`` for the allocator's defaults.
    """
    import torch

    held = str(_functions(torch)[0]())
    mine = _parts(held) - {f"{_KEEP}:False"}
    if mine == _parts(asked or "") - {f"{_KEEP}:False"}:
        return asked
    return held or None


def _parts(text: str) -> set[str]:
    return {part.strip() for part in text.split(",") if part.strip()}


def _functions(torch: Any) -> tuple[Any, Any]:
    """Torch's own functions that return and take the settings as one text."""
    return torch._C._accelerator_getAllocatorSettings, torch._C._accelerator_setAllocatorSettings
