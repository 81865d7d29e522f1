"""The flat buffer that is made on the device is the one that DeepSpeed makes."""

from __future__ import annotations

import torch
from deepspeed.runtime.zero import stage3
from deepspeed.runtime.zero.utils import defragment

from autotune.backends import deepspeed_flattening


def shards() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    sizes = (5, 1, 12, 3)
    return [torch.randn(size, generator=generator, dtype=torch.float64) for size in sizes]


def test_buffer_and_order_are_those_of_deepspeed() -> None:
    ours, theirs = shards(), shards()

    buffer = deepspeed_flattening.flatten(ours)

    assert torch.equal(buffer, defragment(theirs))
    assert [t.storage_offset() for t in ours] == [t.storage_offset() for t in theirs]


def test_each_tensor_becomes_a_part_of_the_buffer() -> None:
    tensors, before = shards(), shards()

    buffer = deepspeed_flattening.flatten(tensors)

    assert all(torch.equal(*pair) for pair in zip(tensors, before, strict=True))
    buffer.zero_()
    assert not any(tensor.any() for tensor in tensors)


def test_the_engines_own_function_is_back_afterwards() -> None:
    before = stage3.defragment

    with deepspeed_flattening.on_device():
        assert stage3.defragment is not before

    assert stage3.defragment is before


def test_what_lies_in_host_memory_is_left_to_the_engine() -> None:
    with deepspeed_flattening.on_device():
        buffer = stage3.defragment(shards())

    assert torch.equal(buffer, defragment(shards()))
