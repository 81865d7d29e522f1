"""Do packed samples see each other? Asked of the built engine before anything is timed.

A leak raises no error, is often faster, and is not in the token counts: only the numbers show it.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, Final

import torch
from torch.nn import functional

from autotune.backends.base import Engine
from autotune.contract.plan import Plan
from autotune.data.stream import IGNORED, MicroBatch, packed_row
from autotune.data.tokens import synthetic_sample
from autotune.models.family import ModelFamily
from autotune.worker.failures import NumericsError

SHORT: Final = 16
"""Tokens of the first two samples. Short ones, because what leaks then is a large share."""
CHANGED: Final = {"fp32": 1e-5, "bf16": 1e-3}
"""Largest change of a token's loss that other tokens in *another* sample may cause. The same
kernel runs on the same shapes, so there is none but for the order in which experts sum."""
ALONE: Final = {"fp32": 1e-4, "bf16": 5e-2}
"""Largest difference of a token's loss from that of its sample alone, where another kernel may
run. A leak through freshly drawn weights changes losses by about 1e-2."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Row:
    """A packed row, and the part of it that is looked at."""

    batch: MicroBatch
    seen: slice


def require_no_leak(plan: Plan, family: ModelFamily, engine: Engine, device: torch.device) -> None:
    """Run a packed row with and without other tokens in its first sample, and its second alone.

    Every rank runs the same three forwards on the same tokens, without gradients.

    Raises:
        NumericsError: A token after the first sample has another loss than before, or one of the
            second another than alone, on any rank; the message names the first layer that lets
            samples see each other.
    """
    length = plan.cut.worst_case.length
    if length < 4:
        return  # two samples have at least two tokens each: nothing can share a row
    size = min(SHORT, length // 2)
    vocabulary = family.vocab_size(plan.training.model.config)
    sizes = (size, size, size, length - 2 * size)
    first, other, second, rest = (
        synthetic_sample(tokens, index=-1000 - number, seed=0, vocab_size=vocabulary)
        for number, tokens in enumerate(sizes)
    )
    tail = [rest] if len(rest.ids) > 1 else []
    after = slice(size, None)
    row = _Row(batch=_on(packed_row([first, second, *tail], length), device), seen=after)
    changed = _Row(batch=_on(packed_row([other, second, *tail], length), device), seen=after)
    alone = _Row(batch=_on(packed_row([second], size), device), seen=slice(size))
    precision = plan.training.precision.compute
    with torch.no_grad():
        losses, changed_losses, alone_losses = (
            _losses(family, engine, each) for each in (row, changed, alone)
        )
        moved = _largest_anywhere(losses, changed_losses)
        if moved > CHANGED[precision]:
            where = _first_leak(family, engine, row, changed, CHANGED[precision])
            raise NumericsError(
                f"packed samples see each other{where}: other tokens in one sample changed a "
                f"token's loss in the next by {moved:.3g}"
            )
        moved = _largest_anywhere(losses[:size], alone_losses)
        if moved > ALONE[precision]:
            raise NumericsError(
                f"packed samples are not computed as alone: a token's loss differs by {moved:.3g}; "
                f"token mixers: {', '.join(_kinds(family, engine))}"
            )


def _losses(family: ModelFamily, engine: Engine, row: _Row) -> torch.Tensor:
    """Return the loss of each token that is looked at; where none is asked for it is zero."""
    logits = family.logits(engine.model, row.batch)[0, row.seen]
    labels = row.batch.labels[0, row.seen]
    return functional.cross_entropy(logits.float(), labels, ignore_index=IGNORED, reduction="none")


def _largest(one: torch.Tensor, other: torch.Tensor) -> float:
    difference = (one - other).abs().max()
    # What is not finite must not pass for equal.
    return float(torch.nan_to_num(difference, nan=float("inf")))


def _largest_anywhere(one: torch.Tensor, other: torch.Tensor) -> float:
    """The same on every rank, for the next forward is a collective that all or none must run."""
    largest = torch.tensor(_largest(one, other), device=one.device)
    if torch.distributed.is_initialized():
        torch.distributed.all_reduce(largest, torch.distributed.ReduceOp.MAX)
    return float(largest)


def _first_leak(
    family: ModelFamily, engine: Engine, row: _Row, changed: _Row, tolerance: float
) -> str:
    """Name the first token mixer whose output differs after the first sample."""
    mixers = family.mixers(engine.module)
    outputs = []
    for each in (row, changed):
        with _recorded([module for _, module in mixers], each.seen) as seen:
            family.logits(engine.model, each.batch)
        outputs.append(seen)
    for number, (kind, _) in enumerate(mixers):
        one, other = (seen.get(number) for seen in outputs)
        # Hidden states are of the order of one and differ more than the losses made of them.
        if one is not None and other is not None and _largest(one, other) > tolerance / 10:
            bound = family.implementations(engine.module).get(kind, "unknown")
            return f" through {kind} of layer {number} ({bound})"
    return ""


@contextlib.contextmanager
def _recorded(modules: Sequence[torch.nn.Module], part: slice) -> Iterator[dict[int, torch.Tensor]]:
    """Collect what ``modules`` return at the tokens of ``part``."""
    seen: dict[int, torch.Tensor] = {}

    def keep(number: int) -> Any:
        def hook(_module: torch.nn.Module, _inputs: Any, output: Any) -> None:
            hidden = output[0] if isinstance(output, tuple) else output
            seen[number] = hidden[0, part].detach().float().clone()

        return hook

    handles = [module.register_forward_hook(keep(number)) for number, module in enumerate(modules)]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def _kinds(family: ModelFamily, engine: Engine) -> list[str]:
    bound = family.implementations(engine.module)
    kinds = dict.fromkeys(kind for kind, _ in family.mixers(engine.module))
    return [f"{kind} ({bound.get(kind, 'unknown')})" for kind in kinds]


def _on(batch: MicroBatch, device: torch.device) -> MicroBatch:
    positions = batch.position_ids
    return MicroBatch(
        input_ids=batch.input_ids.to(device),
        attention_mask=None,
        position_ids=None if positions is None else positions.to(device),
        labels=batch.labels.to(device),
    )
