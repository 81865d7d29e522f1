"""The tensors of each micro-step, made once and kept on the device.

Loading data is not what is tuned: all tensors of the cycle are there before timing starts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Protocol

import torch

from autotune.contract.plan import MicroStep, Samples, Schedule, Workload
from autotune.data.packing import IGNORED, Frame, MicroBatch, cut, packed_row
from autotune.data.tokens import Sample, read_token_file, synthetic_sample


class TokenStream:
    """One rank's micro-batches of each global batch in the cycle.

    Tokens depend on the sample's number alone, never on the cut.
    """

    def __init__(
        self,
        workload: Workload,
        schedule: Schedule,
        rank: int,
        vocab_size: int,
        device: torch.device | str,
    ) -> None:
        self._workload = workload
        self._schedule = schedule
        self._rank = rank
        self._vocab_size = vocab_size
        self._device = torch.device(device)
        self._tokens = _token_source(workload.samples, vocab_size)
        packed = schedule.batching == "packed"
        self._frame = Frame.of(schedule, workload.samples.lengths) if packed else None
        self._batches: dict[int, list[MicroBatch]] = {}
        self._targets: dict[int, int] = {}

    def prepare(self) -> None:
        """Make the tensors of the whole cycle now, so that no iteration waits for them."""
        for batch_index in range(len(self._schedule.batches)):
            self.micro_batches(batch_index)
            self.target_tokens(batch_index)

    def micro_batches(self, batch_index: int) -> list[MicroBatch]:
        """Return this rank's micro-batches of iteration ``batch_index`` (any, taken modulo B)."""
        index = batch_index % len(self._schedule.batches)
        if index not in self._batches:
            steps = self._schedule.batches[index].ranks[self._rank].micro_steps
            self._batches[index] = [self._micro_batch(step) for step in steps]
        return self._batches[index]

    def target_tokens(self, batch_index: int) -> int:
        """Return N: the tokens of the whole global batch, all ranks, that have a loss."""
        index = batch_index % len(self._schedule.batches)
        if index not in self._targets:
            self._targets[index] = sum(
                self._tokens.num_targets(sample) for sample in self._samples_of(index)
            )
        return self._targets[index]

    def worst_case(self) -> MicroBatch:
        """Return the largest micro-batch that the cut allows, full of drawn tokens and labels."""
        step = self._schedule.worst_case
        lengths = [step.length] * step.rows
        if self._frame is not None:
            # One sample alone would need no mask, and so less memory than two.
            lengths = cut(step.length, min(self._frame.longest, -(-step.length // 2)))
        rows = [
            synthetic_sample(length, index=-1 - row, seed=0, vocab_size=self._vocab_size)
            for row, length in enumerate(lengths)
        ]
        return self._collate(rows, step)

    def _samples_of(self, batch_index: int) -> range:
        size = self._workload.global_batch
        first = (batch_index % len(self._schedule.batches)) * size
        return range(first, first + size)

    def _micro_batch(self, step: MicroStep) -> MicroBatch:
        return self._collate([self._tokens.sample(index) for index in step.samples], step)

    def _collate(self, rows: Sequence[Sample], step: MicroStep) -> MicroBatch:
        if self._frame is not None:
            return packed_row(rows, self._frame).to(self._device)
        ids = torch.zeros(step.rows, step.length, dtype=torch.int64)
        mask = torch.zeros_like(ids) if rows else torch.ones_like(ids)  # a filler is plain
        labels = torch.full_like(ids, IGNORED)
        for row, sample in enumerate(rows):
            length = len(sample.ids)
            ids[row, :length] = sample.ids
            mask[row, :length] = 1
            labels[row, : length - 1] = torch.where(sample.trained, sample.ids, IGNORED)[1:]
        batch = MicroBatch(
            input_ids=ids,
            attention_mask=None if bool(mask.all()) else mask,
            position_ids=None,
            labels=labels,
        )
        return batch.to(self._device)


class _Tokens(Protocol):
    def sample(self, index: int) -> Sample:
        """Tokens of one sample of the stream."""

    def num_targets(self, index: int) -> int:
        """Its tokens, from the second on, that have a loss."""


@dataclasses.dataclass(frozen=True)
class _Synthetic:
    samples: Samples
    vocab_size: int

    def sample(self, index: int) -> Sample:
        return synthetic_sample(
            self.samples.lengths[index],
            index=index,
            seed=self.samples.seed,
            vocab_size=self.vocab_size,
        )

    def num_targets(self, index: int) -> int:
        return self.samples.lengths[index] - 1


@dataclasses.dataclass(frozen=True)
class _Tokenised:
    samples: tuple[Sample, ...]

    def sample(self, index: int) -> Sample:
        return self.samples[index]

    def num_targets(self, index: int) -> int:
        return int(self.samples[index].trained[1:].sum())


def _token_source(samples: Samples, vocab_size: int) -> _Tokens:
    if samples.token_file is None:
        return _Synthetic(samples, vocab_size)
    return _Tokenised(read_token_file(samples, vocab_size))
