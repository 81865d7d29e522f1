"""MLPs and experts: torch, or Liger's SwiGLU and fused experts."""

from __future__ import annotations

from typing import Final

from autotune.models.kernels import liger
from autotune.models.kernels.choice import Choice, LayerKernels, Target

KINDS: Final = ("mlp", "experts")


def _bind(target: Target, choice: str) -> None:
    if choice == liger.CHOICE.name:
        liger.patch(target, "swiglu", KINDS)


def _bound(target: Target) -> str:
    return liger.bound(target, KINDS)


LAYER: Final = LayerKernels(
    knob="mlp",
    kinds=KINDS,
    choices=(Choice(name="torch"), liger.CHOICE),
    bind=_bind,
    bound=_bound,
)
