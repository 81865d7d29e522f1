"""Activation checkpointing, proved on the live model (BUG-062 kind)."""

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from small_qwen3 import FAMILY, Inputs, materialised, small_model

from autotune.models import checkpointing


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
    assert not checkpointing.is_active(module)
    with watch(module) as seen:
        run(module)
    assert seen.forwards == 3
    assert not seen.seen(micro_steps=1)


def test_enabled_means_recomputed_in_every_layer_with_the_same_gradients():
    plain, recomputed = materialised(small_model()), materialised(small_model())
    checkpointing.enable_full(recomputed)
    assert checkpointing.is_active(recomputed)
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
    checkpointing.enable_full(module)
    function = FAMILY.layers(module)[0]._gradient_checkpointing_func
    assert function.keywords == {"use_reentrant": False}


def test_evaluation_mode_means_not_active():
    module = materialised(small_model())
    checkpointing.enable_full(module)
    assert not checkpointing.is_active(module.eval())


def test_a_layer_left_out_is_noticed():
    module = materialised(small_model())
    checkpointing.enable_full(module)
    FAMILY.layers(module)[1].gradient_checkpointing = False
    with pytest.raises(ValueError, match="on for some layers and off for others"):
        checkpointing.is_active(module)
    with watch(module) as seen:
        run(module)
    assert not seen.seen(micro_steps=1)


def test_a_switch_without_effect_is_noticed():
    module = materialised(small_model())
    checkpointing.enable_full(module)
    for layer in FAMILY.layers(module):
        layer._gradient_checkpointing_func = lambda function, *arguments: function(*arguments)
    with watch(module) as seen:
        run(module)
    assert not seen.seen(micro_steps=1)


def test_model_without_checkpointable_layers_is_not_active():
    assert not checkpointing.is_active(torch.nn.Linear(1, 1))


def test_inside_fsdp2_and_inside_an_engine(single_process_group):
    from torch.distributed.fsdp import fully_shard

    module = materialised(small_model(tie_word_embeddings=True))
    checkpointing.enable_full(module)
    for layer in FAMILY.layers(module):
        fully_shard(layer)
    fully_shard(module)
    engine = torch.nn.Module()
    engine.module = module
    assert checkpointing.is_active(engine)
    assert len(FAMILY.layers(engine)) == 3
    with watch(engine) as seen:
        run(module)
    assert seen.seen(micro_steps=1)
