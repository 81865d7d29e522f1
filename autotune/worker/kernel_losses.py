"""Kernels of the loss at the whole vocabulary, where their chunks and blocks are the real ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import torch

from autotune.backends.numberformats import TORCH_DTYPES
from autotune.contract.plan import DType, Plan
from autotune.models.causal_lm import causal_model
from autotune.models.kernels.cross_entropy import whole_loss_sum
from autotune.models.kernels.loss import function_of
from autotune.models.loss import IGNORED

if TYPE_CHECKING:
    from autotune.worker.kernel_check import Difference, Tensors

_PIECE: Final = 1024
"""Rows of the reference at once: a sum can be taken in pieces, and its memory is small then."""
_SCALE: Final = 0.37
"""What the loss is multiplied with, so that a backward that forgets its argument shows."""


def compare_losses(
    plan: Plan,
    module: torch.nn.Module,
    device: torch.device,
    compute: DType,
    differ: Callable[[Tensors, Tensors, Tensors, DType, str], list[Difference]],
) -> list[Difference]:
    """Compare the loss function of ``module`` with the plain one over the real vocabulary.

    Rows are those of the workload's longest sample; every tenth label is ignored. A batch whose
    labels are all ignored must give 0 and gradients of zeros.
    """
    config = plan.training.model.config
    rows, vocabulary = plan.training.samples.max_length, int(config["vocab_size"])
    generator = torch.Generator(device=device).manual_seed(17)
    hidden = torch.randn(rows, config["hidden_size"], generator=generator, device=device)
    weight = torch.randn(vocabulary, config["hidden_size"], generator=generator, device=device)
    weight *= float(config["initializer_range"])
    labels = torch.randint(vocabulary, (rows,), generator=generator, device=device)
    labels[::10] = IGNORED
    dtype = TORCH_DTYPES[compute]
    # Both start from what the workload's format can hold.
    hidden, weight = (each.to(dtype).float() for each in (hidden, weight))
    function = function_of(causal_model(module).lm_head)
    truth = _run(whole_loss_sum, hidden, weight, labels, _PIECE)
    plain = truth
    if dtype != torch.float32:
        plain = _run(whole_loss_sum, hidden.to(dtype), weight.to(dtype), labels, _PIECE)
    found = _run(function, hidden.to(dtype), weight.to(dtype), labels, rows)
    where = f" ({rows:,} rows, vocabulary of {vocabulary:,})"
    nothing = torch.full_like(labels, IGNORED)
    empty = _run(function, hidden.to(dtype), weight.to(dtype), nothing, rows)
    zeros = {name: torch.zeros_like(value) for name, value in empty.items()}
    return [
        *differ(found, truth, plain, compute, where),
        *differ(empty, zeros, zeros, compute, " (all labels ignored)"),
    ]


def _run(
    function: Any,
    hidden: torch.Tensor,
    weight: torch.Tensor,
    labels: torch.Tensor,
    piece: int,
) -> Tensors:
    total = torch.zeros((), device=hidden.device)
    of_weight = torch.zeros(weight.shape, dtype=torch.float32, device=weight.device)
    of_hidden = []
    for start in range(0, hidden.shape[0], piece):
        rows = slice(start, start + piece)
        inputs = hidden[rows].detach().clone().requires_grad_()
        leaf = weight.detach().requires_grad_()
        loss = function(inputs.unsqueeze(0), leaf, labels[rows].unsqueeze(0)) * _SCALE
        torch.autograd.backward(loss)
        assert inputs.grad is not None
        assert leaf.grad is not None
        total += loss.detach().float()
        of_hidden.append(inputs.grad.float())
        of_weight += leaf.grad
    return {
        "loss": total.cpu(),
        "gradient of the head's input": torch.cat(of_hidden),
        "gradient of the head's weight": of_weight,
    }
