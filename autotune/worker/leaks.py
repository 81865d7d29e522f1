"""Do packed samples see each other? Asked of the built engine before anything is timed.

A leak raises no error, is often faster, and is not in the token counts: only the numbers show it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from typing import Any, Final

import torch

from autotune.backends.base import Engine
from autotune.contract.plan import Plan
from autotune.data.packing import IGNORED, Frame, MicroBatch, cut, packed_row
from autotune.data.tokens import Sample, synthetic_sample
from autotune.models.family import ModelFamily
from autotune.models.kernels import compiled
from autotune.worker.failures import NumericsError

SHORT: Final = 16
"""Tokens of the first two samples. Short ones, because what leaks then is a large share; no
multiple of the 64 tokens that a gated delta net takes together, so that a chunk has both."""
CHANGED: Final = 1e-5
"""Largest change of a hidden value, of the order of one, that other tokens in *another* sample may
cause: the same kernels run on the same shapes, so there is none in any number format. A gated delta
net that leaks changes it by 5e-3 where the start weights forget fast, a convolution by 0.3."""
NOISE: Final = 8.0
"""Where the same row is not computed alike twice (experts sum in any order), a change must be so
many times that to be a leak."""
ALONE: Final = {"fp32": 1e-4, "bf16": 5e-2}
"""Largest difference of a sample's hidden values from those of the same sample alone, as a share
of their norm: other kernels may run there."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Row:
    """A row, and the part of it that is looked at."""

    batch: MicroBatch
    seen: slice


def require_no_leak(plan: Plan, family: ModelFamily, engine: Engine, device: torch.device) -> None:
    """Run a packed row twice, with other tokens in its first sample, and its second alone.

    Looked at is what the output head reads, at every token after the first sample: a convolution
    reaches only as many tokens of the next sample as it is wide, less one. The rows have the
    trial's own shape and boundaries, and run as its micro-steps do; the sample alone has none, so
    it tells how it is computed without them.

    Every rank runs the same four forwards on the same tokens, without gradients. Compiled layers
    run as they were written: without gradients they would be compiled anew, into another program
    than the one that trains; the numerics gate compares that one.

    Raises:
        NumericsError: A token after the first sample is computed otherwise than before, or the
            second sample otherwise than alone, on any rank; the message names the first layer that
            lets samples see each other.
    """
    frame = Frame.of(plan.cut, plan.training.samples.lengths)
    size = min(SHORT, frame.longest, frame.length // 2)
    if size < 2:
        return  # a sample has at least two tokens: nothing can share a row
    vocabulary = family.vocab_size(plan.training.model.config)
    first, other, second, *rest = _samples(size, frame, vocabulary)
    after = slice(size, None)
    row = _Row(batch=packed_row([first, second, *rest], frame).to(device), seen=after)
    changed = _Row(batch=packed_row([other, second, *rest], frame).to(device), seen=after)
    with torch.no_grad(), compiled.as_written(family.layers(engine.module)):
        seen, again, otherwise = (_states(family, engine, one) for one in (row, row, changed))
        noise, moved = (_anywhere(_largest(seen, one)) for one in (again, otherwise))
        allowed = max(CHANGED, NOISE * noise)
        if not moved <= allowed:
            where = _first_leak(family, engine, row, changed, allowed)
            raise NumericsError(
                f"packed samples see each other{where}: other tokens in one sample changed hidden "
                f"values in the next by {moved:.3g}"
            )
        # Another shape: flex attention would be compiled again.
        with _uncompiled():
            alone = _states(family, engine, _alone(second, device))
        apart = _anywhere((seen[:size] - alone).norm() / alone.norm())
        if not apart <= ALONE[plan.training.precision.compute]:
            raise NumericsError(
                f"packed samples are not computed as alone: hidden values are {apart:.3g} of their "
                f"norm apart; one of {', '.join(_kinds(family, engine))}"
            )


def _samples(size: int, frame: Frame, vocabulary: int) -> list[Sample]:
    """Return three short samples, and longer ones that fill a row which begins with two of them."""
    rest = [tokens for tokens in cut(frame.length - 2 * size, frame.longest) if tokens > 1]
    return [
        synthetic_sample(tokens, index=-1000 - number, seed=0, vocab_size=vocabulary)
        for number, tokens in enumerate([size, size, size, *rest])
    ]


def _alone(sample: Sample, device: torch.device) -> _Row:
    """A row of one sample, without anything that says so."""
    labels = torch.full_like(sample.ids, IGNORED)
    labels[:-1] = sample.ids[1:]
    batch = MicroBatch(
        input_ids=sample.ids[None], attention_mask=None, position_ids=None, labels=labels[None]
    )
    return _Row(batch=batch.to(device), seen=slice(None))


def _uncompiled() -> contextlib.AbstractContextManager[object]:
    """Run compiled functions as they were written."""
    if "torch._dynamo" not in sys.modules:
        return contextlib.nullcontext()  # nothing is compiled, and the import takes seconds
    stance: contextlib.AbstractContextManager[object] = torch.compiler.set_stance("force_eager")
    return stance


def _states(family: ModelFamily, engine: Engine, row: _Row) -> torch.Tensor:
    """Return what the output head reads at each token that is looked at, in float32."""
    found: list[torch.Tensor] = []

    def keep(_module: torch.nn.Module, inputs: tuple[Any, ...]) -> None:
        found.append(inputs[0][0, row.seen].float().clone())

    _, head = family.embeddings(engine.module)
    handle = head.register_forward_pre_hook(keep)
    try:
        family.loss_sum(engine.model, row.batch)
    finally:
        handle.remove()
    (states,) = found
    return states


def _largest(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return (one - other).abs().max()


def _anywhere(value: torch.Tensor) -> float:
    """The largest of all ranks, for the next forward is a collective that all or none must run."""
    # What is not finite must not pass for equal.
    largest = torch.nan_to_num(value, nan=float("inf"))
    if torch.distributed.is_initialized():
        torch.distributed.all_reduce(largest, torch.distributed.ReduceOp.MAX)
    return float(largest)


def _first_leak(
    family: ModelFamily, engine: Engine, row: _Row, changed: _Row, tolerance: float
) -> str:
    """Name the first layer type and layer whose output differs after the first sample."""
    bound = family.implementations(engine.module)
    outputs = [_mixed(family, engine, each) for each in (row, changed)]
    for (kind, layer, one), (_, _, other) in zip(*outputs, strict=True):
        # What one layer adds is less than what becomes of it, and noise grows with depth.
        if not float(_largest(one, other)) <= tolerance / 10:
            return f" through {kind} of layer {layer} ({bound.get(kind, 'unknown')})"
    return f" through one of {', '.join(_kinds(family, engine))}"


def _mixed(family: ModelFamily, engine: Engine, row: _Row) -> list[tuple[str, int, torch.Tensor]]:
    """Collect layer type, layer and output of all that mixes tokens, at those looked at."""
    seen: list[tuple[str, int, torch.Tensor]] = []

    def keep(kind: str, layer: int, output: torch.Tensor) -> None:
        seen.append((kind, layer, output[0, row.seen].detach().float().clone()))

    with family.watching_mixers(engine.module, keep):
        family.loss_sum(engine.model, row.batch)
    return seen


def _kinds(family: ModelFamily, engine: Engine) -> list[str]:
    bound = family.implementations(engine.module)
    return [f"{kind} ({bound.get(kind, 'unknown')})" for kind in family.mixing_kinds(engine.module)]
