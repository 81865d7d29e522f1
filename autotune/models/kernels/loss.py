"""The summed cross-entropy and the output projection before it, computed in the head's forward.

The engine has gathered the head's weights only while its modules' own ``forward`` runs. So the
model is called with ``targets``, hands its last hidden states and these to the head, and the head
returns the loss. Without ``targets`` both do what the library has them do.
"""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any, Final

from autotune.models.kernels import liger
from autotune.models.kernels.choice import Choice, LayerKernels, Target, by_path

if TYPE_CHECKING:
    import torch

_ATTRIBUTE: Final = "loss_sum"
"""Of the output head: the function that it calls."""
_FILE: Final = "autotune.models.kernels.cross_entropy"
_FUNCTIONS: Final = {
    "torch": "whole_loss_sum",
    "chunked": "chunked_loss_sum",
    "liger": "liger_loss_sum",
}


def function_of(head: torch.nn.Module) -> Any:
    """Return the function by which the output head of a built model makes the loss."""
    return getattr(head, _ATTRIBUTE)


def _bind(target: Target, choice: str) -> None:
    from autotune.models.kernels import cross_entropy

    model: Any = target.module
    head: Any = model.lm_head
    setattr(head, _ATTRIBUTE, getattr(cross_entropy, _FUNCTIONS[choice]))
    head.forward = types.MethodType(_head_forward, head)
    model.forward = types.MethodType(_model_forward, model)


def _model_forward(
    model: Any, *args: Any, targets: torch.Tensor | None = None, **named: Any
) -> Any:
    """The causal language model's forward; with ``targets`` it returns the summed loss."""
    if targets is None:
        return type(model).forward(model, *args, **named)
    hidden = model.model(*args, **named).last_hidden_state
    return model.lm_head(hidden, targets)


def _head_forward(head: Any, hidden: torch.Tensor, targets: torch.Tensor | None = None) -> Any:
    """The output projection; with ``targets`` the loss of what it projects to."""
    if targets is None:
        return type(head).forward(head, hidden)
    return function_of(head)(hidden, head.weight, targets)


LAYER: Final = LayerKernels(
    knob="loss",
    kinds=("loss",),
    choices=(Choice(name="torch"), Choice(name="chunked"), liger.CHOICE),
    bind=_bind,
    bound=by_path("loss", {name: f"{_FILE}.{made}" for name, made in _FUNCTIONS.items()}),
)
