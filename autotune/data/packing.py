"""Packed rows: samples behind one another in one row, and where each of them begins and ends.

Every row of a trial has the same shape, and so has all that goes with it: a kernel that compiles,
or tunes itself, for a shape does so once.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Final

import torch

from autotune.contract.plan import Schedule
from autotune.data.tokens import Sample

IGNORED: Final = -100
"""Label of a position without loss; the ``ignore_index`` of torch's cross-entropy."""
PROBED: Final = 2
"""Samples that a row of the leak test, and of the memory probe, holds beyond its filling."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Boundaries:
    """Where the samples of a packed row begin and end, in the forms that kernels take."""

    cu_seq_lens: torch.Tensor
    """int32: 0, then the end of each segment. The row's end is repeated, as segments of no token,
    up to a length that all rows of a trial share. Flash attention's ``cu_seqlens``."""
    max_length: int
    """No segment of any row of the trial is longer (tokens)."""
    seq_idx: torch.Tensor
    """int32, 1 × length: the number, from 0, of the segment that a token belongs to."""

    def to(self, device: torch.device) -> Boundaries:
        """Return the same on ``device``."""
        return dataclasses.replace(
            self, cu_seq_lens=self.cu_seq_lens.to(device), seq_idx=self.seq_idx.to(device)
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class MicroBatch:
    """The inputs of one forward and backward on one rank."""

    input_ids: torch.Tensor
    """int64, rows × length, padded on the right with token 0."""
    attention_mask: torch.Tensor | None
    """int64, 1 for real tokens; ``None`` where no row is padded, which lets the model use its
    plain causal kernel, as it does when a collator's mask is all ones."""
    position_ids: torch.Tensor | None
    """int64, rows × length: each sample's own, from 0, in a packed micro-step, and again from 0
    in what pads its end. ``None``: counted from 0 in each row."""
    labels: torch.Tensor
    """int64, rows × length, already shifted: the label of a position is the next token, or
    :data:`IGNORED`: at a sample's last token, at padding, in a filler, before untrained tokens."""
    boundaries: Boundaries | None = None
    """Those of a packed row; ``None`` where each row is one sample."""

    def to(self, device: torch.device) -> MicroBatch:
        """Return the same on ``device``."""
        mask, positions, ends = self.attention_mask, self.position_ids, self.boundaries
        return MicroBatch(
            input_ids=self.input_ids.to(device),
            attention_mask=None if mask is None else mask.to(device),
            position_ids=None if positions is None else positions.to(device),
            labels=self.labels.to(device),
            boundaries=None if ends is None else ends.to(device),
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Frame:
    """What all packed rows of a trial have in common, on every rank."""

    length: int
    """Tokens of a row."""
    longest: int
    """Tokens of the longest segment: the longest sample's. Padding is cut to such segments too,
    because attention's cost grows with their squares."""
    segments: int
    """The most segments that a row has."""

    @classmethod
    def of(cls, schedule: Schedule, lengths: Sequence[int]) -> Frame:
        """Return the frame of a packed schedule of samples of these lengths."""
        length = schedule.worst_case.length
        longest = min(max(lengths), length)
        rows = [
            step.samples
            for batch in schedule.batches
            for rank in batch.ranks
            for step in rank.micro_steps
        ]
        counts = [
            len(row) + len(cut(length - sum(lengths[index] for index in row), longest))
            for row in rows
        ]
        return cls(
            length=length,
            longest=longest,
            segments=max([*counts, PROBED + len(cut(length, longest))]),
        )


def cut(tokens: int, longest: int) -> list[int]:
    """Cut ``tokens`` into the fewest segments of at most ``longest``, nearly equal ones."""
    if tokens <= 0:
        return []
    number = -(-tokens // longest)
    return [tokens // number + (place < tokens % number) for place in range(number)]


def packed_row(samples: Sequence[Sample], frame: Frame) -> MicroBatch:
    """Lay samples behind one another in one row.

    What is left at the end is segments of their own, with token 0 and ignored labels. Position
    ids restart at each segment: masks that are made of them (sdpa, flex attention) keep segments
    apart by that, where no attention mask is given; kernels of their own read the boundaries.
    """
    ids = torch.zeros(1, frame.length, dtype=torch.int64)
    labels = torch.full_like(ids, IGNORED)
    start = 0
    for sample in samples:
        end = start + len(sample.ids)
        ids[0, start:end] = sample.ids
        labels[0, start : end - 1] = torch.where(sample.trained, sample.ids, IGNORED)[1:]
        start = end
    segments = [len(sample.ids) for sample in samples] + cut(frame.length - start, frame.longest)
    assert len(segments) <= frame.segments
    assert max(segments) <= frame.longest
    return MicroBatch(
        input_ids=ids,
        attention_mask=None,
        position_ids=torch.cat([torch.arange(tokens) for tokens in segments])[None],
        labels=labels,
        boundaries=_boundaries(segments, frame),
    )


def _boundaries(segments: Sequence[int], frame: Frame) -> Boundaries:
    ends = list(itertools.accumulate(segments, initial=0))
    ends += [frame.length] * (frame.segments + 1 - len(ends))
    numbers = torch.arange(len(segments), dtype=torch.int32)
    return Boundaries(
        cu_seq_lens=torch.tensor(ends, dtype=torch.int32),
        max_length=frame.longest,
        seq_idx=torch.repeat_interleave(numbers, torch.tensor(segments))[None],
    )
