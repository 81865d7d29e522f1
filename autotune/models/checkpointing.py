"""Activation checkpointing: which decoder layers recompute what, and what is really at work.

``full`` keeps a layer's input and computes the rest again in backward. ``selective`` also keeps
what matrix products and attention gave, and computes the cheap rest again (torch's own
``create_selective_checkpoint_contexts``; ``torch/utils/checkpoint.py``, 2.11 and 2.13 alike).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import torch

from autotune.knobs.recomputed import ATTENTIONS, PRODUCTS


@dataclasses.dataclass(frozen=True, kw_only=True)
class Checkpointing:
    """What the layers do in backward."""

    mode: str
    """``none``, ``full`` or ``selective``."""
    every: int = 1
    """Of so many layers the first recomputes."""
    reentrant: bool = False
    """Whether by autograd inside backward (``use_reentrant``), which cannot be selective."""


def enable(module: torch.nn.Module, wanted: Checkpointing) -> None:
    """Switch it on, or do nothing for ``none``.

    Call it on the library's model, before or after it is wrapped; frozen weights must be frozen.
    """
    if wanted.mode == "none":
        return
    model: Any = _pretrained(module)
    arguments: dict[str, Any] = {"use_reentrant": wanted.reentrant}
    if wanted.mode == "selective":
        arguments["context_fn"] = selective_contexts
    # 5.24 renamed it and warns about the old name; 5.17 has only the old one.
    if hasattr(model, "activation_checkpointing_enable"):
        model.activation_checkpointing_enable(activation_checkpointing_kwargs=arguments)
    else:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=arguments)
    layers: list[Any] = list(checkpointable_layers(module))
    for index, layer in enumerate(layers):
        # Of every n-th layer only 5.24 knows; the switch of a layer is the same in both.
        layer.gradient_checkpointing = index % wanted.every == 0
    if wanted.reentrant and not model.get_input_embeddings().weight.requires_grad:
        # Without a gradient to its input, a layer that recomputes by autograd gives its weights
        # none (torch/utils/checkpoint.py, CheckpointFunction).
        model.enable_input_require_grads()


def found(module: torch.nn.Module) -> Checkpointing:
    """Return what the live layers would do in the next backward.

    Reads the layers, not the configuration: each that recomputes must carry the switch and a
    checkpoint function and be in training mode.

    Raises:
        ValueError: They are at odds with one another, or recompute at no regular distance.
    """
    layers = checkpointable_layers(module)
    recomputing = [layer for layer in layers if _recomputes(layer)]
    if not recomputing:
        return Checkpointing(mode="none")
    ways = {_way(layer) for layer in recomputing}
    every = _distance([_recomputes(layer) for layer in layers])
    if len(ways) > 1:
        raise ValueError("layers recompute in different ways")
    if every is None:
        raise ValueError("activation checkpointing is on for some layers and off for others")
    mode, reentrant = ways.pop()
    return Checkpointing(mode=mode, every=every, reentrant=reentrant)


def checkpointable_layers(module: torch.nn.Module) -> list[torch.nn.Module]:
    """The layers that the library can recompute, also inside FSDP2 or an engine.

    FSDP2 replaces a layer's class by a subclass of it; DeepSpeed keeps it.
    """
    from transformers.modeling_layers import GradientCheckpointingLayer

    return [layer for layer in module.modules() if isinstance(layer, GradientCheckpointingLayer)]


def selective_contexts() -> Any:
    """What one selective recomputation runs under: a context for forward, one for backward."""
    from torch.utils import checkpoint

    make: Any = checkpoint.create_selective_checkpoint_contexts  # torch leaves it untyped
    return make(_policy())


@functools.cache
def _policy() -> Callable[..., Any]:
    from torch.utils.checkpoint import CheckpointPolicy

    keep = _kept_functions()

    def decide(_context: Any, function: Any, *_arguments: Any, **_named: Any) -> Any:
        return CheckpointPolicy.MUST_SAVE if function in keep else CheckpointPolicy.PREFER_RECOMPUTE

    return decide


def _kept_functions() -> frozenset[Any]:
    """The functions that :data:`PRODUCTS` and :data:`ATTENTIONS` name, and attention beyond ATen.

    Flex attention is an operator of higher order; torch's varlen attention registers itself when
    its module is imported.
    """
    aten, kept = torch.ops.aten, set()
    for name in (*PRODUCTS, *ATTENTIONS):
        if hasattr(aten, name):
            kept.add(getattr(aten, name).default)
    for name in ("flex_attention",):
        operator = getattr(torch.ops.higher_order, name, None)
        if operator is not None:
            kept.add(operator)
    varlen = getattr(getattr(torch.ops, "torch_attn", None), "_varlen_attn", None)
    if varlen is not None:
        kept.add(varlen.default)
    return frozenset(kept)


def _recomputes(layer: Any) -> bool:
    switched_on = bool(getattr(layer, "gradient_checkpointing", False))
    return (
        switched_on
        and layer.training
        and callable(getattr(layer, "_gradient_checkpointing_func", None))
    )


def _way(layer: Any) -> tuple[str, bool]:
    """Mode and reentrance, from the arguments that the layer's function was bound to."""
    arguments = getattr(layer._gradient_checkpointing_func, "keywords", {})
    mode = "selective" if arguments.get("context_fn") is not None else "full"
    return mode, bool(arguments.get("use_reentrant"))


def _distance(flags: list[bool]) -> int | None:
    """The n for which exactly every n-th flag is set, from the first on; ``None`` without one."""
    for every in range(1, len(flags) + 1):
        if all(flag == (index % every == 0) for index, flag in enumerate(flags)):
            return every
    return None


def _pretrained(module: torch.nn.Module) -> torch.nn.Module:
    while not hasattr(module, "supports_gradient_checkpointing"):
        inner = getattr(module, "module", None)
        if inner is None:
            raise TypeError(f"a {type(module).__name__} holds no transformers model")
        module = inner
    return module
