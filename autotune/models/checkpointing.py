"""Activation checkpointing of every decoder layer, and whether it is really at work."""

from __future__ import annotations

from typing import Any

import torch


def enable_full(module: torch.nn.Module) -> None:
    """Recompute each decoder layer in backward (non-reentrant).

    Call it on the library's model, before or after it is wrapped.
    """
    model: Any = _pretrained(module)
    arguments = {"use_reentrant": False}
    # 5.24 renamed it and warns about the old name; 5.17 has only the old one.
    if hasattr(model, "activation_checkpointing_enable"):
        model.activation_checkpointing_enable(activation_checkpointing_kwargs=arguments)
    else:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=arguments)


def is_active(module: torch.nn.Module) -> bool:
    """Whether every checkpointable layer would recompute in the next backward.

    Reads the live layers, not the configuration: each must carry the switch and a checkpoint
    function, be in training mode, and no cache may be on.

    Raises:
        ValueError: Some layers would and some would not.
    """
    states = {_recomputes(layer) for layer in checkpointable_layers(module)}
    if len(states) > 1:
        raise ValueError("activation checkpointing is on for some layers and off for others")
    return states == {True}


def checkpointable_layers(module: torch.nn.Module) -> list[torch.nn.Module]:
    """The layers that the library can recompute, also inside FSDP2 or an engine.

    FSDP2 replaces a layer's class by a subclass of it; DeepSpeed keeps it.
    """
    from transformers.modeling_layers import GradientCheckpointingLayer

    return [layer for layer in module.modules() if isinstance(layer, GradientCheckpointingLayer)]


def _recomputes(layer: Any) -> bool:
    switched_on = bool(getattr(layer, "gradient_checkpointing", False))
    return (
        switched_on
        and layer.training
        and callable(getattr(layer, "_gradient_checkpointing_func", None))
    )


def _pretrained(module: torch.nn.Module) -> torch.nn.Module:
    while not hasattr(module, "supports_gradient_checkpointing"):
        inner = getattr(module, "module", None)
        if inner is None:
            raise TypeError(f"a {type(module).__name__} holds no transformers model")
        module = inner
    return module
