"""``torch.compile`` of each decoder layer, in place.

The layer's own ``forward`` is compiled, not the call of the module: hooks of engines stand around
it and stay outside the graph (torchtitan compiles its blocks before ``fully_shard`` as well).

Activation checkpointing wraps the call in transformers 5.17 and the class's ``forward`` in 5.24
(``modeling_layers.py``), where it then lies inside the graph. There a class that FSDP2 derives has
a wrapper of its own, and only the outermost one recomputes: so the class's ``forward`` is looked
up when it is called.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from autotune.knobs.kernels import COMPILED_VARIANTS
from autotune.models.kernels.choice import Choice, LayerKernels, Target, no_compiler

if TYPE_CHECKING:
    import torch

_ORIGINAL: Final = "_torchdynamo_orig_callable"
"""What dynamo leaves on a compiled function (``torch/_dynamo/eval_frame.py``)."""


def _bind(target: Target, choice: str) -> None:
    if choice == "none":
        return
    import torch
    import torch._dynamo.config as settings

    # Layer kinds, with and without mask, gradients and a second row: eight variants, torch's limit,
    # are soon there, and beyond it layers would run as they are without a word.
    settings.recompile_limit = max(COMPILED_VARIANTS, settings.recompile_limit)
    settings.fail_on_recompile_limit_hit = True
    for layer in target.family.layers(target.module):
        inside: Any = layer
        # Shapes that vary are dynamic from the start: one compilation instead of two.
        forward = types.MethodType(_forward, layer)
        inside.forward = torch.compile(forward, dynamic=not target.static_shapes)


def _forward(layer: Any, *args: Any, **named: Any) -> Any:
    return type(layer).forward(layer, *args, **named)


def is_compiled(layer: Any) -> bool:
    """Whether a decoder layer runs compiled."""
    return hasattr(layer.forward, _ORIGINAL)


@contextlib.contextmanager
def as_written(layers: Iterable[torch.nn.Module]) -> Iterator[None]:
    """Run decoder layers without the compiler's work, as long as it is entered."""
    kept = [(layer, vars(layer).pop("forward")) for layer in layers if is_compiled(layer)]
    try:
        yield
    finally:
        for layer, forward in kept:
            layer.forward = forward


def _bound(target: Target) -> str:
    states = {is_compiled(layer) for layer in target.family.layers(target.module)}
    if len(states) > 1:
        return "some layers"
    return "layer" if states == {True} else "none"


LAYER: Final = LayerKernels(
    knob="compile",
    kinds=("layer",),
    choices=(Choice(name="none"), Choice(name="layer", unfit=no_compiler)),
    bind=_bind,
    bound=_bound,
)
