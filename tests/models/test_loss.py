"""The loss, and that a filler neither counts nor breaks the backward."""

import pytest
import torch

from autotune.models.loss import IGNORED, token_loss_sum


def test_sum_over_counted_positions_only():
    logits = torch.randn(2, 5, 7, dtype=torch.float64)
    labels = torch.tensor([[1, 2, IGNORED, 0, 6], [IGNORED, IGNORED, 3, IGNORED, 4]])
    expected = 0.0
    for row in range(2):
        for position in range(5):
            label = int(labels[row, position])
            if label != IGNORED:
                expected -= float(logits[row, position].log_softmax(-1)[label])
    assert token_loss_sum(logits, labels).item() == pytest.approx(expected, rel=1e-6)


def test_bf16_logits_are_summed_in_float32():
    logits = torch.randn(1, 4000, 8, dtype=torch.bfloat16)
    labels = torch.randint(8, (1, 4000))
    loss = token_loss_sum(logits, labels)
    assert loss.dtype == torch.float32
    exact = -logits.double().log_softmax(-1).gather(-1, labels[..., None]).sum()
    assert loss.item() == pytest.approx(exact.item(), rel=1e-5)


def test_filler_has_zero_loss_and_zero_gradient():
    logits = torch.randn(1, 8, 7, requires_grad=True)
    loss = token_loss_sum(logits, torch.full((1, 8), IGNORED))
    loss.backward()
    assert loss.item() == 0.0
    assert logits.grad is not None
    assert torch.equal(logits.grad, torch.zeros_like(logits))
