"""The cut: which samples each rank runs in which micro-step. A pure function.

Every cut runs each sample of a global batch exactly once, so all of them do the same work.

The micro-steps of a global batch are numbered in order and dealt out in turn: number ``k`` runs
on rank ``k % W`` as its micro-step ``k // W``. This is how data loaders of the Hugging Face stack
shard batches (``accelerate/data_loader.py``, ``BatchSamplerShard``). It also puts neighbours side
by side: in ``sorted`` order the micro-steps that run at the same time are about equally long,
and ranks that gather parameters together wait little for each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from autotune.contract.plan import (
    Batching,
    BatchSchedule,
    MicroStep,
    RankSchedule,
    Samples,
    Schedule,
)
from autotune.data import bins
from autotune.errors import InputError

PACKED_NEEDS_TOKENS: Final = (
    "batching packed needs max_tokens: a packed micro-step is one row, and micro_batch counts rows"
)
FILLER_TOKENS: Final = 8
"""Length of the one row that fills a rank's missing micro-step (less under a smaller limit), but
for packed ones."""


def make_schedule(
    samples: Samples,
    *,
    global_batch: int,
    distinct_batches: int,
    batching: Batching,
    micro_batch: int | None,
    max_tokens: int | None,
    processes: int,
) -> Schedule:
    """Cut the stream into micro-steps.

    Args:
        samples: ``distinct_batches · global_batch`` samples in stream order.
        global_batch: Samples per iteration.
        distinct_batches: Length of the cycle, in global batches.
        batching: ``padded`` keeps the stream's order within a global batch, ``sorted`` takes the
            longest first, ``packed`` puts several into one row of ``max_tokens`` tokens. Samples
            never leave their global batch.
        micro_batch: Rows per micro-step; or
        max_tokens: limit for rows × longest row of a micro-step, or for the sum of lengths where
            they are packed. Exactly one of the two is given.
        processes: Ranks.

    Raises:
        InputError: The cut is impossible; the message says why.
    """
    _check(samples, global_batch, distinct_batches, batching, micro_batch, max_tokens)
    if micro_batch is not None:
        check_divisible(global_batch, micro_batch, processes)
    batches = []
    for first in range(0, global_batch * distinct_batches, global_batch):
        order = _ordered(samples.lengths, range(first, first + global_batch), batching)
        if micro_batch is not None:
            groups = [order[i : i + micro_batch] for i in range(0, len(order), micro_batch)]
        else:
            assert max_tokens is not None
            if batching == "packed":
                groups = bins.pack(samples.lengths, order, max_tokens, processes)
            else:
                groups = _bins(samples.lengths, order, max_tokens)
        static = max_tokens if batching == "packed" else None
        steps = [_micro_step(samples.lengths, group, static) for group in groups]
        filler = _filler(samples.max_length, max_tokens, static)
        batches.append(_deal(steps, processes, filler))
    return Schedule(
        batching=batching,
        batches=tuple(batches),
        worst_case=worst_case(
            batching=batching,
            max_length=samples.max_length,
            micro_batch=micro_batch,
            max_tokens=max_tokens,
            global_batch=global_batch,
        ),
        padding_share=_padding_share(samples, batches),
        distinct_shapes=len({(step.rows, step.length) for step in _all_steps(batches)}),
    )


def check_divisible(global_batch: int, micro_batch: int, processes: int) -> None:
    """Refuse a cut by rows that does not come out even.

    Raises:
        InputError: ``global_batch`` is no multiple of ``micro_batch × processes``.
    """
    if micro_batch < 1 or processes < 1:
        raise InputError(f"micro_batch {micro_batch} × {processes} processes cuts nothing")
    if global_batch % (micro_batch * processes):
        raise InputError(
            f"global_batch {global_batch} is not divisible by micro_batch {micro_batch} × "
            f"{processes} processes = {micro_batch * processes}"
        )


def worst_case(
    *,
    batching: Batching,
    max_length: int,
    micro_batch: int | None,
    max_tokens: int | None,
    global_batch: int,
) -> MicroStep:
    """Return the largest micro-step that the cut allows on data of up to ``max_length`` tokens.

    By rows it is ``micro_batch`` rows of full length. By tokens it is the shape with the most
    tokens, the longer one of two that are equal (attention grows with the length). Packed, all
    have the same shape.
    """
    if batching == "packed":
        assert max_tokens is not None
        return MicroStep(samples=(), rows=1, length=max_tokens)
    if micro_batch is not None:
        return MicroStep(samples=(), rows=micro_batch, length=max_length)
    assert max_tokens is not None
    most_rows = max(1, min(global_batch, max_tokens))
    shapes = ((r, min(max_length, max_tokens // r)) for r in range(1, most_rows + 1))
    rows, length = max(shapes, key=lambda shape: (shape[0] * shape[1], shape[1]))
    return MicroStep(samples=(), rows=rows, length=length)


def _check(
    samples: Samples,
    global_batch: int,
    distinct_batches: int,
    batching: Batching,
    micro_batch: int | None,
    max_tokens: int | None,
) -> None:
    if (micro_batch is None) == (max_tokens is None):
        raise InputError("the cut is either micro_batch or max_tokens: give exactly one")
    if len(samples.lengths) != global_batch * distinct_batches:
        raise InputError(
            f"{distinct_batches} batches of {global_batch} samples need "
            f"{global_batch * distinct_batches} samples; there are {len(samples.lengths)}"
        )
    if batching == "packed" and max_tokens is None:
        raise InputError(PACKED_NEEDS_TOKENS)
    if batching not in ("padded", "sorted", "packed"):
        raise InputError(f"unknown batching {batching!r}", hint="known: padded, sorted, packed")
    longest = max(samples.lengths)
    if max_tokens is not None and longest > max_tokens:
        raise InputError(
            f"max_tokens {max_tokens} is less than the longest sample ({longest} tokens)",
            hint="raise max_tokens or lower max_length",
        )


def _ordered(lengths: Sequence[int], indices: Iterable[int], batching: Batching) -> list[int]:
    if batching == "sorted":
        # The longest first: memory is claimed at once and too large a cut fails early.
        return sorted(indices, key=lambda index: (-lengths[index], index))
    return list(indices)


def _bins(lengths: Sequence[int], order: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Fill one micro-step after the other, in order, while rows × longest stays in the limit."""
    bins: list[list[int]] = []
    longest = 0
    for index in order:
        longest = max(longest, lengths[index])
        if not bins or (len(bins[-1]) + 1) * longest > max_tokens:
            bins.append([])
            longest = lengths[index]
        bins[-1].append(index)
    return bins


def _micro_step(lengths: Sequence[int], group: Sequence[int], static: int | None) -> MicroStep:
    """One micro-step; ``static`` is the length of a packed row, whatever it holds."""
    if static is not None:
        return MicroStep(samples=tuple(group), rows=1, length=static)
    return MicroStep(
        samples=tuple(group), rows=len(group), length=max(lengths[index] for index in group)
    )


def _filler(max_length: int, max_tokens: int | None, static: int | None) -> MicroStep:
    """One row without a loss. Packed, it has the shape of all others.

    The other ranks run a whole row meanwhile, so it costs no time, and a shape of its own would
    be compiled for.
    """
    length = static or min(FILLER_TOKENS, max_length, max_tokens or max_length)
    return MicroStep(samples=(), rows=1, length=length)


def _deal(steps: Sequence[MicroStep], processes: int, filler: MicroStep) -> BatchSchedule:
    """Deal the micro-steps out in turn; every rank gets as many, fillers at the end."""
    missing = -len(steps) % processes
    dealt = [*steps, *[filler] * missing]
    return BatchSchedule(
        ranks=tuple(
            RankSchedule(micro_steps=tuple(dealt[rank::processes])) for rank in range(processes)
        )
    )


def _all_steps(batches: Iterable[BatchSchedule]) -> list[MicroStep]:
    return [step for batch in batches for rank in batch.ranks for step in rank.micro_steps]


def _padding_share(samples: Samples, batches: Sequence[BatchSchedule]) -> float:
    inputs = sum(step.rows * step.length for step in _all_steps(batches))
    return 1.0 - sum(samples.lengths) / inputs
