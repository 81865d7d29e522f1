"""Output projection and summed cross-entropy, three ways. Imports torch.

All take the last hidden states (rows × length × hidden), the head's weight (vocabulary × hidden)
and the labels (rows × length, shifted), and return the loss summed over positions whose label
counts, in float32. Where all labels are ignored it is 0 and its gradients are zeros.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch.nn import functional

from autotune.models.loss import IGNORED, token_loss_sum

ROWS: Final = 1024
"""Positions whose logits are in memory at once. With a vocabulary of 150,000 they take 1.5 GB in
bf16 with their float32 copies, and the products are large enough to fill a GPU."""


def whole_loss_sum(
    hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor
) -> torch.Tensor:
    """The plain way: all logits, kept for backward."""
    return token_loss_sum(functional.linear(hidden, weight), labels)


def chunked_loss_sum(
    hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor
) -> torch.Tensor:
    """:data:`ROWS` positions at a time, and their logits once more in backward.

    The logits are computed in the format of ``hidden`` and the rest in float32, as in the plain
    way; the weight's gradient is summed over chunks in float32.
    """
    # torch leaves it untyped.
    apply: Any = _Chunked.apply
    loss: torch.Tensor = apply(hidden.flatten(0, -2), weight, labels.flatten())
    return loss


def liger_loss_sum(
    hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor
) -> torch.Tensor:
    """Liger's fused linear cross-entropy, the weight's gradient summed in float32.

    ``liger_kernel/transformers/functional.py``; its own default sums in the weight's format.
    """
    from liger_kernel.transformers.functional import liger_fused_linear_cross_entropy

    loss: torch.Tensor = liger_fused_linear_cross_entropy(
        hidden.flatten(0, -2),
        weight,
        labels.flatten(),
        ignore_index=IGNORED,
        reduction="sum",
        accum_dtype=torch.float32,
    )
    return loss


class _Chunked(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor
    ) -> torch.Tensor:
        ctx.save_for_backward(hidden, weight, labels)
        total = torch.zeros((), dtype=torch.float32, device=hidden.device)
        for start in range(0, hidden.shape[0], ROWS):
            rows = slice(start, start + ROWS)
            total += token_loss_sum(functional.linear(hidden[rows], weight), labels[rows])
        return total

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        hidden, weight, labels = ctx.saved_tensors
        wants_hidden, wants_weight, _ = ctx.needs_input_grad
        of_hidden = torch.empty_like(hidden) if wants_hidden else None
        of_weight: torch.Tensor | None = None
        if wants_weight:
            of_weight = torch.zeros(weight.shape, dtype=torch.float32, device=weight.device)
        for start in range(0, hidden.shape[0], ROWS):
            part = hidden[start : start + ROWS]
            of_logits = _of_logits(part, weight, labels[start : start + ROWS], gradient)
            if of_hidden is not None:
                torch.mm(of_logits, weight, out=of_hidden[start : start + ROWS])
            if of_weight is not None:
                of_weight += of_logits.t() @ part
        return of_hidden, None if of_weight is None else of_weight.to(weight.dtype), None


def _of_logits(
    hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor, gradient: torch.Tensor
) -> torch.Tensor:
    """Gradient of the logits: softmax less one at the label, nothing where it is ignored."""
    counts = labels != IGNORED
    probabilities = functional.linear(hidden, weight).float().softmax(dim=-1)
    at = torch.where(counts, labels, 0).unsqueeze(-1)
    probabilities.scatter_add_(-1, at, probabilities.new_full(at.shape, -1.0))
    probabilities *= (counts * gradient).unsqueeze(-1)
    return probabilities.to(hidden.dtype)
