"""Environment variables as knobs: none can be tuned yet, and some never will be."""

from __future__ import annotations

from typing import Final

from autotune.knobs.knob import Knob

KNOBS: Final[tuple[Knob, ...]] = ()

FORBIDDEN: Final[tuple[str, ...]] = (
    "NCCL_NVLS_ENABLE",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST",
    "NVSHMEM_DISABLE_NVLS",
)
"""Settings of the site: they reach every rank as they are, and are never changed nor tuned."""
