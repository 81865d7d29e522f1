"""Activation checkpointing, proved on the live model (BUG-062 kind)."""

import contextlib
import dataclasses
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from small_qwen3 import FAMILY, Inputs, materialised, small_model
from torch.utils._python_dispatch import TorchDispatchMode

from autotune.models import checkpointing
from autotune.models.checkpointing import Checkpointing

NONE = Checkpointing(mode="none")
FULL = Checkpointing(mode="full")


@dataclasses.dataclass
class Recompute:
    """What :func:`watch` saw."""

    layers: int
    """Checkpointable layers."""
    forwards: int = 0
    """Forward runs of their first inner parts, recomputation included."""

    def seen(self, micro_steps: int) -> bool:
        """Whether each layer ran twice in each of the ``micro_steps`` forward and backward."""
        return self.layers > 0 and self.forwards == 2 * self.layers * micro_steps


@contextlib.contextmanager
def watch(module: torch.nn.Module) -> Iterator[Recompute]:
    """Count how often the inside of each layer runs: proof of recomputation by its effect.

    Hooks cost time; do not measure inside.
    """
    layers = checkpointing.checkpointable_layers(module)
    result = Recompute(layers=len(layers))

    def count(*_: Any) -> None:
        result.forwards += 1

    handles = [next(layer.children()).register_forward_pre_hook(count) for layer in layers]
    try:
        yield result
    finally:
        for handle in handles:
            handle.remove()


def run(module: torch.nn.Module) -> None:
    FAMILY.logits(module, Inputs(torch.arange(12)[None])).square().mean().backward()


def test_off_unless_enabled():
    module = materialised(small_model())
    checkpointing.enable(module, NONE)
    assert checkpointing.found(module) == NONE
    with watch(module) as seen:
        run(module)
    assert seen.forwards == 3
    assert not seen.seen(micro_steps=1)


def test_enabled_means_recomputed_in_every_layer_with_the_same_gradients():
    plain, recomputed = materialised(small_model()), materialised(small_model())
    checkpointing.enable(recomputed, FULL)
    assert checkpointing.found(recomputed) == FULL
    run(plain)
    with watch(recomputed) as seen:
        run(recomputed)
        run(recomputed)
    assert seen.forwards == 2 * 2 * 3
    assert seen.seen(micro_steps=2)
    recomputed.zero_grad()
    run(recomputed)
    for one, two in zip(plain.parameters(), recomputed.parameters(), strict=True):
        assert torch.equal(one.grad, two.grad)


def test_it_is_not_reentrant():
    module = materialised(small_model())
    checkpointing.enable(module, FULL)
    function = FAMILY.layers(module)[0]._gradient_checkpointing_func
    assert function.keywords == {"use_reentrant": False}


@pytest.mark.parametrize(
    "wanted",
    [
        Checkpointing(mode="full", every=2),
        Checkpointing(mode="full", every=3),
        Checkpointing(mode="full", reentrant=True),
        Checkpointing(mode="full", every=2, reentrant=True),
        Checkpointing(mode="selective"),
        Checkpointing(mode="selective", every=2),
    ],
)
def test_each_way_is_read_back_and_gives_the_same_gradients(wanted):
    plain, recomputed = materialised(small_model()), materialised(small_model())
    checkpointing.enable(recomputed, wanted)
    assert checkpointing.found(recomputed) == wanted
    run(plain)
    with watch(recomputed) as seen:
        run(recomputed)
    again = len(range(0, 3, wanted.every))
    assert seen.forwards == 3 + again
    for one, two in zip(plain.parameters(), recomputed.parameters(), strict=True):
        assert torch.equal(one.grad, two.grad)


class Counted(TorchDispatchMode):
    """Counts functions of ATen by name."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, function, types, arguments=(), named=None):
        self.calls[function._schema.name.removeprefix("aten::")] += 1
        return function(*arguments, **(named or {}))


def backward_calls(wanted: Checkpointing) -> Counter[str]:
    module = materialised(small_model())
    checkpointing.enable(module, wanted)
    loss = FAMILY.logits(module, Inputs(torch.arange(12)[None])).square().mean()
    with Counted() as counted:
        loss.backward()
    return counted.calls


def test_selective_computes_no_product_and_no_attention_again_and_full_does():
    none, full, selective = (
        backward_calls(Checkpointing(mode=mode)) for mode in ("none", "full", "selective")
    )
    attention = "_scaled_dot_product_flash_attention_for_cpu"
    # Seven projections and one attention in each of three layers. The last product of a layer is
    # not needed in backward: recomputation stops before it.
    assert full[attention] == none[attention] + 3
    assert full["mm"] > none["mm"] + 3 * 5
    assert selective[attention] == none[attention]
    assert selective["mm"] == none["mm"]
    # The cheap rest is computed again: the activation of each layer's MLP.
    assert selective["silu"] == full["silu"] == none["silu"] + 3


def test_frozen_weights_get_gradients_through_a_reentrant_layer():
    module = materialised(small_model(tie_word_embeddings=False))
    for parameter in module.parameters():
        parameter.requires_grad_(False)
    trained = FAMILY.layers(module)[1].mlp.up_proj.weight.requires_grad_(True)
    checkpointing.enable(module, Checkpointing(mode="full", reentrant=True))
    run(module)
    assert trained.grad is not None
    assert trained.grad.abs().sum() > 0


def test_evaluation_mode_means_not_active():
    module = materialised(small_model())
    checkpointing.enable(module, FULL)
    assert checkpointing.found(module.eval()) == NONE


def test_a_layer_left_out_is_noticed():
    module = materialised(small_model())
    checkpointing.enable(module, FULL)
    FAMILY.layers(module)[0].gradient_checkpointing = False
    with pytest.raises(ValueError, match="on for some layers and off for others"):
        checkpointing.found(module)
    with watch(module) as seen:
        run(module)
    assert not seen.seen(micro_steps=1)


def test_a_switch_without_effect_is_noticed():
    module = materialised(small_model())
    checkpointing.enable(module, FULL)
    for layer in FAMILY.layers(module):
        layer._gradient_checkpointing_func = lambda function, *arguments: function(*arguments)
    with watch(module) as seen:
        run(module)
    assert not seen.seen(micro_steps=1)


def test_model_without_checkpointable_layers_is_not_active():
    assert checkpointing.found(torch.nn.Linear(1, 1)) == NONE


def test_inside_fsdp2_and_inside_an_engine(single_process_group):
    from torch.distributed.fsdp import fully_shard

    module = materialised(small_model(tie_word_embeddings=True))
    checkpointing.enable(module, FULL)
    for layer in FAMILY.layers(module):
        fully_shard(layer)
    fully_shard(module)
    engine = torch.nn.Module()
    engine.module = module
    assert checkpointing.found(engine) == FULL
    assert len(FAMILY.layers(engine)) == 3
    with watch(engine) as seen:
        run(module)
    assert seen.seen(micro_steps=1)
