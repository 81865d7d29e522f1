"""Why a name is no knob: collected from the tables, for messages."""

from __future__ import annotations

from typing import Final

from autotune.knobs import ddp, deepspeed, fsdp2, kernels, workload, zero3

REFUSED: Final[dict[str, dict[str, str]]] = {
    "zero3": zero3.REFUSED,
    "deepspeed": deepspeed.REFUSED,
    "fsdp2": fsdp2.REFUSED,
    "ddp": ddp.REFUSED,
    "workload": workload.REFUSED,
    kernels.OWNER: kernels.REFUSED,
}
"""Owner to names that it knows and that are not offered, with the reason."""

ALIASES: Final[dict[str, str]] = {"zero3": "deepspeed", "deepspeed": "zero3"}
"""Two names of one engine: ``zero3`` is ``deepspeed`` at ``zero_stage`` 3. A space has one of them,
and there the full names of both mean its own knobs."""

ENGINES: Final[dict[str, tuple[str, ...]]] = {
    "deepspeed": ("zero3", "deepspeed"),
    "fsdp2": ("fsdp2",),
    "ddp": ("ddp",),
}
"""Names under ``unverified`` to the backends of that engine."""

WITHOUT_KEYS: Final[dict[str, str]] = {
    "fsdp2": "fully_shard is called with arguments and reads no file of keys",
    "ddp": "DistributedDataParallel is called with arguments and reads no file of keys",
}
"""Engines that ``unverified`` can pass nothing to, with the reason."""

RESERVED_KEYS: Final[dict[str, dict[str, str]]] = {"deepspeed": zero3.RESERVED_KEYS}
"""Engine to keys that ``unverified`` may not set, with the reason."""
