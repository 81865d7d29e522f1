"""The chunked loss: the plain one's numbers, and never all logits at once."""

import inspect

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from autotune.models.kernels import cross_entropy
from autotune.models.kernels.chunked_labels import take_labels
from autotune.models.kernels.cross_entropy import chunked_loss_sum, whole_loss_sum
from autotune.models.loss import IGNORED

ROWS, WIDTH, VOCABULARY = 53, 32, 211


def inputs(dtype, *, frozen=False, seed=0):
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(1, ROWS, WIDTH, generator=generator, dtype=torch.float64)
    weight = 0.3 * torch.randn(VOCABULARY, WIDTH, generator=generator, dtype=torch.float64)
    labels = torch.randint(VOCABULARY, (1, ROWS), generator=generator)
    labels[0, 3:9] = IGNORED
    hidden = hidden.to(dtype).requires_grad_()
    return hidden, weight.to(dtype).requires_grad_(not frozen), labels


@pytest.mark.parametrize("chunk", [1, 7, 53, 1024])
def test_loss_and_gradients_are_the_plain_ones(monkeypatch, chunk):
    monkeypatch.setattr(cross_entropy, "ROWS", chunk)
    hidden, weight, labels = inputs(torch.float32)
    truth = inputs(torch.float32)
    (0.37 * chunked_loss_sum(hidden, weight, labels)).backward()
    (0.37 * whole_loss_sum(truth[0], truth[1], labels)).backward()
    torch.testing.assert_close(hidden.grad, truth[0].grad, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(weight.grad, truth[1].grad, rtol=1e-4, atol=1e-6)
    loss = chunked_loss_sum(hidden, weight, labels)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(whole_loss_sum(hidden, weight, labels).item(), rel=1e-6)


def test_in_bf16_it_is_about_as_near_to_the_truth_as_the_plain_one(monkeypatch):
    monkeypatch.setattr(cross_entropy, "ROWS", 8)
    hidden, weight, labels = inputs(torch.bfloat16)
    exact = [t.detach().float().requires_grad_() for t in (hidden, weight)]
    plain = [t.detach().clone().requires_grad_() for t in (hidden, weight)]
    chunked_loss_sum(hidden, weight, labels).backward()
    whole_loss_sum(*plain, labels).backward()
    whole_loss_sum(*exact, labels).backward()
    for mine, theirs, truth in zip((hidden, weight), plain, exact, strict=True):
        size = truth.grad.norm()
        error = (mine.grad.float() - truth.grad).norm() / size
        # Each chunk's part of the weight's gradient is rounded once more.
        assert error < 1.5 * (theirs.grad.float() - truth.grad).norm() / size
        assert mine.grad.dtype == torch.bfloat16


def test_a_filler_has_zero_loss_and_zero_gradients(monkeypatch):
    monkeypatch.setattr(cross_entropy, "ROWS", 8)
    hidden, weight, _ = inputs(torch.float32)
    loss = chunked_loss_sum(hidden, weight, torch.full((1, ROWS), IGNORED))
    loss.backward()
    assert loss.item() == 0.0
    assert not hidden.grad.any()
    assert not weight.grad.any()


def test_a_frozen_head_gets_no_gradient():
    hidden, weight, labels = inputs(torch.float32, frozen=True)
    chunked_loss_sum(hidden, weight, labels).backward()
    assert weight.grad is None
    assert hidden.grad.any()


def test_the_logits_never_lie_whole_in_memory(monkeypatch):
    monkeypatch.setattr(cross_entropy, "ROWS", 8)
    shapes = set()

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, kinds, arguments=(), named=None):
            output = function(*arguments, **(named or {}))
            if isinstance(output, torch.Tensor):
                shapes.add(tuple(output.shape))
            return output

    hidden, weight, labels = inputs(torch.float32)
    with Watch():
        chunked_loss_sum(hidden, weight, labels).backward()
    with_vocabulary = {shape[0] for shape in shapes if shape[-1:] == (VOCABULARY,)}
    assert with_vocabulary
    assert max(with_vocabulary) <= 32  # eight positions, or a hidden row for the weight's gradient


def test_a_trainers_script_has_the_mean_loss_by_its_labels():
    """What an export's ``apply`` arranges: transformers' own loss, without its logits."""
    from small_qwen3 import materialised, small_model

    ids = torch.randint(96, (2, 11), generator=torch.Generator().manual_seed(1))
    labels = ids.clone()
    labels[0, :4] = IGNORED
    plain, mine = materialised(small_model()), materialised(small_model())
    del plain.forward, plain.lm_head.forward  # as the library made them
    take_labels(mine)
    expected = plain(input_ids=ids, labels=labels).loss
    found = mine(input_ids=ids, labels=labels)
    assert found.logits is None
    assert found.loss.item() == pytest.approx(expected.item(), rel=1e-6)
    expected.backward()
    found.loss.backward()
    for one, other in zip(plain.parameters(), mine.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-7)
    halved = mine(input_ids=ids, labels=labels, num_items_in_batch=34).loss
    assert halved.item() == pytest.approx(expected.item() * 17 / 34, rel=1e-6)


def test_a_trainer_still_sees_what_the_model_takes():
    """It keeps those columns of a data set that the forward's signature names."""
    from small_qwen3 import materialised, small_model

    model = materialised(small_model())
    del model.forward, model.lm_head.forward
    wanted = list(inspect.signature(model.forward).parameters)
    take_labels(model)
    assert list(inspect.signature(model.forward).parameters) == wanted
    assert {"input_ids", "labels"} <= set(wanted)
