"""The chunked loss for a trainer's own script: what an export's ``apply`` arranges."""

from __future__ import annotations

import functools
import types
from typing import Any

import torch
from torch.nn import functional

from autotune.models.kernels.cross_entropy import chunked_loss_sum
from autotune.models.loss import IGNORED


def take_labels(model: Any) -> None:
    """Let ``model(…, labels=labels)`` return the mean loss without making all logits.

    The loss is made in the forward of the output head, where an engine has its weights gathered.
    Without ``labels`` the model does what it did. ``num_items_in_batch``, which trainers pass to
    divide by the targets of all micro-steps, is divided by instead of the batch's own.

    Args:
        model: A causal language model of transformers, before it is sharded or wrapped.
    """

    # Trainers keep the columns of a data set that the forward's signature names.
    @functools.wraps(type(model).forward)
    def forward(model: Any, *args: Any, **named: Any) -> Any:
        return _model_forward(model, *args, **named)

    model.forward = types.MethodType(forward, model)
    model.lm_head.forward = types.MethodType(_head_forward, model.lm_head)


def _model_forward(
    model: Any,
    *args: Any,
    labels: torch.Tensor | None = None,
    num_items_in_batch: torch.Tensor | int | None = None,
    **named: Any,
) -> Any:
    if labels is None:
        return type(model).forward(model, *args, **named)
    from transformers.modeling_outputs import CausalLMOutputWithPast

    hidden = model.model(*args, **named).last_hidden_state
    following = functional.pad(labels[..., 1:], (0, 1), value=IGNORED)
    count = num_items_in_batch if num_items_in_batch is not None else (following != IGNORED).sum()
    return CausalLMOutputWithPast(loss=model.lm_head(hidden, following) / count)


def _head_forward(head: Any, hidden: torch.Tensor, targets: torch.Tensor | None = None) -> Any:
    if targets is None:
        return type(head).forward(head, hidden)
    return chunked_loss_sum(hidden, head.weight, targets)
