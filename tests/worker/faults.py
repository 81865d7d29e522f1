"""Faults that tests plant in a rank before it runs (``support_trials.rank_main``)."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import resource
import sys
import time
from pathlib import Path
from typing import Any


def _wrap_build(change: Any) -> None:
    """Run ``change(engine)`` after the backend has built its engine."""
    from autotune.backends.deepspeed import DeepSpeedBackend
    from autotune.backends.fsdp2 import Fsdp2Backend

    for backend in (DeepSpeedBackend, Fsdp2Backend):
        original = backend.build

        def build(self: Any, plan: Any, rank: Any, original: Any = original) -> Any:
            engine = original(self, plan, rank)
            change(engine)
            return engine

        backend.build = build


def gradients_four_times(rank: int) -> None:
    """The loss that is back-propagated is scaled, the loss that is reported is not."""

    def change(engine: Any) -> None:
        original = engine.backward
        engine.backward = lambda loss, *, last: original(loss * 4.0, last=last)

    _wrap_build(change)


def ranks_reduce_nothing(rank: int) -> None:
    """DDP's buckets come back as they were sent: every rank steps by its own gradients."""
    import torch

    from autotune.backends.ddp import DdpBackend

    original = DdpBackend.build

    def keep(state, bucket):  # torch refuses annotations of other types
        kept = torch.futures.Future()
        kept.set_result(bucket.buffer())
        return kept

    def build(self: Any, plan: Any, rank: Any) -> Any:
        engine = original(self, plan, rank)
        engine.model.register_comm_hook(None, keep)
        return engine

    DdpBackend.build = build


def weight_is_nan(rank: int) -> None:
    """One value of one weight on rank 1 is not a number."""

    def change(engine: Any) -> None:
        if rank == 1:
            parameter = next(iter(engine.module.parameters()))
            local = getattr(parameter, "ds_tensor", parameter)
            local = local.to_local() if hasattr(local, "to_local") else local
            local.detach().view(-1)[0] = float("nan")

    _wrap_build(change)


def gradient_is_nan(rank: int) -> None:
    """The forward pass is right, the gradients are not."""

    def change(engine: Any) -> None:
        original = engine.backward
        engine.backward = lambda loss, *, last: original(loss * float("nan"), last=last)

    _wrap_build(change)


def gradient_is_nan_later(rank: int) -> None:
    """As above, from the seventh iteration on, of eight micro-steps each (one rank)."""

    def change(engine: Any) -> None:
        original, calls = engine.backward, []

        def backward(loss: Any, *, last: bool) -> None:
            calls.append(1)
            scale = float("nan") if len(calls) > 6 * 8 else 1.0
            original(loss * scale, last=last)

        engine.backward = backward

    _wrap_build(change)


def other_bucket(rank: int) -> None:
    """What is applied is not what the plan says."""
    from autotune.backends.deepspeed import Zero3Backend

    original = Zero3Backend.render

    def render(self: Any, plan: Any) -> Any:
        rendered = original(self, plan)
        rendered["zero_optimization"]["reduce_bucket_size"] = 123
        return rendered

    Zero3Backend.render = render


def another_stage(rank: int) -> None:
    """The engine is built at stage 1, whatever the plan says."""
    from autotune.backends.deepspeed import DeepSpeedBackend

    original = DeepSpeedBackend.render

    def render(self: Any, plan: Any) -> Any:
        rendered = original(self, plan)
        rendered["zero_optimization"]["stage"] = 1
        return rendered

    DeepSpeedBackend.render = render


def checkpointing_lost(rank: int) -> None:
    def change(engine: Any) -> None:
        for module in engine.module.modules():
            if hasattr(module, "gradient_checkpointing"):
                module.gradient_checkpointing = False

    _wrap_build(change)


def other_plan_on_rank_1(rank: int) -> None:
    from autotune.contract.folder import AttemptFolder

    original = AttemptFolder.read_plan
    if rank == 1:
        AttemptFolder.read_plan = lambda self: dataclasses.replace(original(self), key="other")


def memory_error_on_rank_1(rank: int) -> None:
    def change(engine: Any) -> None:
        def backward(loss: Any, *, last: bool) -> None:
            raise MemoryError

        if rank == 1:
            engine.backward = backward

    _wrap_build(change)


def no_room_for_adam(rank: int) -> None:
    """Weights, gradients and activations fit; the optimizer's state, made last, does not."""

    def change(engine: Any) -> None:
        def step(*_: Any, **__: Any) -> None:
            raise MemoryError("exp_avg")

        engine._optimizer.step = step

    _wrap_build(change)


def reduces_in_bf16(rank: int) -> None:
    """The library drops the wish to reduce in float32, and says nothing."""
    from torch.distributed import fsdp

    original = fsdp.MixedPrecisionPolicy

    def policy(**wishes: Any) -> Any:
        return original(**{**wishes, "reduce_dtype": None})

    fsdp.MixedPrecisionPolicy = policy


def crash_on_rank_1(rank: int) -> None:
    def change(engine: Any) -> None:
        def backward(loss: Any, *, last: bool) -> None:
            raise ZeroDivisionError("planted")

        if rank == 1:
            engine.backward = backward

    _wrap_build(change)


def rank_1_hangs(rank: int) -> None:
    def change(engine: Any) -> None:
        if rank == 1:
            engine.step = lambda: time.sleep(600)

    _wrap_build(change)


def no_large_files(rank: int) -> None:
    """Files cannot grow beyond a heartbeat, as on a full disk."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (300, 300))


def packages_that_obey(rank: int) -> None:
    """Stand-ins for packages whose kernels need a GPU, which obey boundaries."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "packages"))


def masks_without_boundaries(rank: int) -> None:
    """The library's masks are plainly causal: position ids no longer separate samples."""
    from transformers import masking_utils

    packages_that_obey(rank)
    masking_utils.find_packed_sequence_indices = lambda position_ids: None


def masks_without_boundaries_on_rank_1(rank: int) -> None:
    """One rank alone sees the leak."""
    if rank == 1:
        masks_without_boundaries(rank)


def delta_rule_without_boundaries(rank: int) -> None:
    """The package's kernel takes boundaries and does not obey them."""
    packages_that_obey(rank)
    import segmentwise

    original = segmentwise.delta_rule

    def leaking(*args: Any, cu_seqlens: Any, **named: Any) -> Any:
        return original(*args, cu_seqlens=None, **named)

    segmentwise.delta_rule = leaking


def convolution_without_boundaries(rank: int) -> None:
    """As above; what leaks are the last three tokens of a sample into the first of the next."""
    packages_that_obey(rank)
    import segmentwise

    original = segmentwise.convolution

    def leaking(*args: Any) -> Any:
        *others, _ends, name = args
        return original(*others, None, name)

    segmentwise.convolution = leaking


def our_own_error(rank: int) -> None:
    """What our own code around the engine raises is of a type that the engine refuses with."""
    from autotune.backends import deepspeed_engine

    def fail(*_: Any) -> Any:
        raise ValueError("the weights are gone")

    deepspeed_engine.fill = fail
    deepspeed_engine._set_leaves = fail


def loss_a_fifth_off(rank: int) -> None:
    """The loss, and so every gradient, is 20 % too small."""
    from autotune.models.kernels import cross_entropy

    original = cross_entropy.token_loss_sum
    cross_entropy.token_loss_sum = lambda logits, labels: original(logits, labels) * 0.8


def _wrap_attention(change: Any) -> None:
    """The library's function for attention becomes ``change`` of it, under the same name."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS as FUNCTIONS

    original = FUNCTIONS["sdpa"]
    FUNCTIONS["sdpa"] = functools.wraps(original)(change(original))


def attention_runs_forward_only(rank: int) -> None:
    """A kernel that autograd knows nothing of."""

    def change(original: Any) -> Any:
        def kernel(*args: Any, **kwargs: Any) -> Any:
            output, weights = original(*args, **kwargs)
            return output.detach(), weights

        return kernel

    _wrap_attention(change)


def attention_forgets_keys(rank: int) -> None:
    """A kernel whose backward gives queries and values a gradient, and keys none."""

    def change(original: Any) -> Any:
        def kernel(module: Any, query: Any, key: Any, *args: Any, **kwargs: Any) -> Any:
            return original(module, query, key.detach(), *args, **kwargs)

        return kernel

    _wrap_attention(change)


def adapters_are_passed_by(rank: int) -> None:
    """A fused kernel that multiplies with the weights alone."""
    from autotune.models import lora

    def change(engine: Any) -> None:
        for name in lora.adapters(engine.module):
            if name.endswith("layers.1.mlp.up_proj"):
                layer = engine.module.get_submodule(name)
                layer.forward = layer.base_layer.forward

    _wrap_build(change)


def weights_thaw(rank: int) -> None:
    """An engine that trains what the workload froze."""
    from autotune.backends import fsdp2_engine

    def attach(module: Any, workload: Any, *, trained: Any) -> None:
        original(module, workload, trained=trained)
        module.model.norm.weight.requires_grad_(True)

    original = fsdp2_engine.lora.attach
    fsdp2_engine.lora.attach = attach


def eager_attention(rank: int) -> None:
    """The model falls back to plain matrix products; its numbers stay the same."""
    from autotune.models.causal_lm import causal_model

    def change(engine: Any) -> None:
        causal_model(engine.module).config._attn_implementation = "eager"

    _wrap_build(change)


def eager_attention_on_rank_1(rank: int) -> None:
    """One rank alone falls back."""
    if rank == 1:
        eager_attention(rank)


def loss_falls_back(rank: int) -> None:
    """What was asked for is not there, and another function takes its place without a word."""
    from autotune.models.kernels import cross_entropy

    cross_entropy.chunked_loss_sum = cross_entropy.whole_loss_sum


def chunked_loss_forgets_its_scale(rank: int) -> None:
    """Its backward takes no notice of what the loss is multiplied with."""
    import torch

    from autotune.models.kernels import cross_entropy

    original = cross_entropy._of_logits
    cross_entropy._of_logits = lambda hidden, weight, labels, gradient: original(
        hidden, weight, labels, torch.ones_like(gradient)
    )


def chunked_loss_not_finite(rank: int) -> None:
    """One gradient in a thousand is NaN."""
    from autotune.models.kernels import cross_entropy

    original = cross_entropy._of_logits

    def broken(*args: Any) -> Any:
        found = original(*args).clone()
        found.view(-1)[::1000] = float("nan")
        return found

    cross_entropy._of_logits = broken


def chunked_loss_of_fillers(rank: int) -> None:
    """Ignored labels count a little."""
    from autotune.models.kernels import cross_entropy

    original = cross_entropy.chunked_loss_sum
    cross_entropy.chunked_loss_sum = functools.wraps(original)(
        lambda hidden, weight, labels: original(hidden, weight, labels) + 1e-7 * hidden.sum()
    )


def chunked_loss_raises(rank: int) -> None:
    """It runs forward only."""
    from autotune.models.kernels import cross_entropy

    def broken(*args: Any) -> Any:
        raise RuntimeError("no backward for this shape")

    cross_entropy._of_logits = broken


def sdpa_in_disguise(rank: int) -> None:
    """``varlen`` is a function that any machine has: torch's attention, told where samples end."""
    from autotune.models.kernels import varlen

    varlen._varlen = lambda: _segmentwise


def sdpa_that_ignores_boundaries(rank: int) -> None:
    """As above, and causal over the whole row."""
    sdpa_in_disguise(rank)
    from autotune.models.kernels import varlen

    varlen._varlen = lambda: _over_the_whole_row


def _segmentwise(
    query: Any,
    key: Any,
    value: Any,
    ends: Any,
    _key_ends: Any,
    _longest: int,
    _longest_key: int,
    *,
    window_size: tuple[int, int],
    scale: float | None,
    enable_gqa: bool,
) -> Any:
    """The signature of ``torch.nn.attention.varlen.varlen_attn``; tokens × heads × size."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    assert window_size == (-1, 0)
    bounds = ends.tolist()
    parts = []
    for start, end in itertools.pairwise(bounds):
        mine = [each[start:end].transpose(0, 1)[None] for each in (query, key, value)]
        found = scaled_dot_product_attention(
            *mine, is_causal=True, scale=scale, enable_gqa=enable_gqa
        )
        parts.append(found[0].transpose(0, 1))
    return torch.cat(parts)


@functools.wraps(_segmentwise)
def _over_the_whole_row(
    query: Any, key: Any, value: Any, ends: Any, *rest: Any, **named: Any
) -> Any:
    return _segmentwise(query, key, value, ends[[0, -1]], *rest, **named)
