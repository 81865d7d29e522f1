"""All layer types with a choice of kernels, in the order in which they are bound.

To add one: a file with its :class:`~autotune.models.kernels.choice.LayerKernels`, a line here,
and its knob in ``autotune.knobs.kernels``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from autotune.models.kernels import (
    attention,
    compiled,
    convolution,
    linear_attention,
    loss,
    mlp,
    norm,
    rope,
)
from autotune.models.kernels.choice import LayerKernels, Target

if TYPE_CHECKING:
    import torch

    from autotune.models.family import ModelFamily

LAYERS: Final[tuple[LayerKernels, ...]] = (
    # First: it gives the output head what the others read of it.
    loss.LAYER,
    attention.LAYER,
    linear_attention.LAYER,
    convolution.LAYER,
    norm.LAYER,
    rope.LAYER,
    mlp.LAYER,
    # Last: what it compiles must be what the others have bound.
    compiled.LAYER,
)


def of_knob(knob: str) -> LayerKernels | None:
    """Return the layer type of a bare knob name, or ``None``: a knob that others bind."""
    return next((layer for layer in LAYERS if layer.knob == knob), None)


def default(knob: str) -> str:
    """Return the default of a knob of the table."""
    layer = of_knob(knob)
    assert layer is not None, knob
    return layer.choices[0].name


def references() -> dict[str, str]:
    """Bare knob name to the choice that is taken for right."""
    return {layer.knob: layer.reference for layer in LAYERS}


def bind(target: Target, kernels: Mapping[str, str]) -> None:
    """Bind a choice to every layer type; one that is not named has its default.

    Raises:
        KernelRefusedError: A library has no such kernel for this model.
        KernelNotBoundError: A patch changes nothing.
    """
    for layer in LAYERS:
        layer.bind(target, kernels.get(layer.knob, layer.choices[0].name))


def bound(family: ModelFamily, module: torch.nn.Module) -> dict[str, str]:
    """Bare knob name to the choice that the live modules run."""
    from autotune.models.causal_lm import causal_model

    target = Target(family=family, module=causal_model(module), static_shapes=False)
    return {layer.knob: layer.bound(target) for layer in LAYERS}


def chosen(config: Mapping[str, Any]) -> dict[str, str]:
    """Bare knob name to choice, from full knob names to values."""
    return {layer.knob: _asked(config, layer) for layer in LAYERS}


def lets_samples_mix(knob: str, kernels: Mapping[str, str]) -> str | None:
    """Return why packed samples would see each other through a layer type; ``None``: they do not.

    Args:
        knob: Bare name of the layer type's knob.
        kernels: Bare knob name to choice.
    """
    layer = of_knob(knob)
    assert layer is not None, knob
    choice = layer.choice(kernels.get(knob, layer.choices[0].name))
    if choice.boundaries:
        return None
    return f"{layer.kinds[0]} by {choice.name} takes no sequence boundaries"


def kinds_of(config: Mapping[str, Any], other: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the layer types for which two configurations ask for different kernels.

    Args:
        config: Full knob name to value.
        other: The same of the other one.
    """
    return tuple(
        kind
        for layer in LAYERS
        if _asked(config, layer) != _asked(other, layer)
        for kind in layer.kinds
    )


def _asked(config: Mapping[str, Any], layer: LayerKernels) -> Any:
    return config.get(f"kernel.{layer.knob}", layer.choices[0].name)
