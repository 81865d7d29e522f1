"""The tensors of each micro-step, made once and kept on the device.

Loading data is not what is tuned: all tensors of the cycle are there before timing starts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Final, Protocol

import torch

from autotune.contract.plan import MicroStep, Samples, Schedule, Workload
from autotune.data.tokens import Sample, read_token_file, synthetic_sample

IGNORED: Final = -100
"""Label of a position without loss; the ``ignore_index`` of torch's cross-entropy."""


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


def packed_row(samples: Sequence[Sample], length: int) -> MicroBatch:
    """Lay samples behind one another in one row of ``length`` tokens.

    Position ids restart at each sample: they are the boundaries that attention reads. What is
    left at the end is a segment of its own, with token 0 and ignored labels. There is no
    attention mask: with one, the library would not look for boundaries.
    """
    ids = torch.zeros(1, length, dtype=torch.int64)
    labels = torch.full_like(ids, IGNORED)
    positions = torch.zeros_like(ids)
    start = 0
    for sample in samples:
        end = start + len(sample.ids)
        ids[0, start:end] = sample.ids
        labels[0, start : end - 1] = torch.where(sample.trained, sample.ids, IGNORED)[1:]
        positions[0, start:end] = torch.arange(len(sample.ids))
        start = end
    positions[0, start:] = torch.arange(length - start)
    return MicroBatch(input_ids=ids, attention_mask=None, position_ids=positions, labels=labels)


def padded_rows(samples: Sequence[Sample], length: int, rows: int | None = None) -> MicroBatch:
    """Lay each sample in a row of its own, padded on the right to ``length`` tokens.

    Args:
        samples: One a row.
        length: At least as long as the longest of them.
        rows: Number of rows, the last ones empty; by default one for each sample.
    """
    ids = torch.zeros(rows or len(samples), length, dtype=torch.int64)
    mask = torch.zeros_like(ids)
    labels = torch.full_like(ids, IGNORED)
    for row, sample in enumerate(samples):
        end = len(sample.ids)
        ids[row, :end] = sample.ids
        mask[row, :end] = 1
        labels[row, : end - 1] = torch.where(sample.trained, sample.ids, IGNORED)[1:]
    whole = bool(mask.all())
    return MicroBatch(
        input_ids=ids, attention_mask=None if whole else mask, position_ids=None, labels=labels
    )


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
        if self._schedule.batching == "packed":
            # One sample alone would need no mask, and so less memory than two.
            half = step.length // 2
            lengths = [step.length - half, half] if half else [step.length]
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
        rows = [self._tokens.sample(index) for index in step.samples]
        if not rows:
            ids = torch.zeros(step.rows, step.length, dtype=torch.int64)
            labels = torch.full_like(ids, IGNORED)
            return self._on_device(ids, None, labels)
        return self._collate(rows, step)

    def _collate(self, rows: Sequence[Sample], step: MicroStep) -> MicroBatch:
        if self._schedule.batching != "packed":
            padded = padded_rows(rows, step.length, step.rows)
            return self._on_device(padded.input_ids, padded.attention_mask, padded.labels)
        packed = packed_row(rows, step.length)
        return self._on_device(packed.input_ids, None, packed.labels, packed.position_ids)

    def _on_device(
        self,
        ids: torch.Tensor,
        mask: torch.Tensor | None,
        labels: torch.Tensor,
        positions: torch.Tensor | None = None,
    ) -> MicroBatch:
        return MicroBatch(
            input_ids=ids.to(self._device),
            attention_mask=None if mask is None else mask.to(self._device),
            position_ids=None if positions is None else positions.to(self._device),
            labels=labels.to(self._device),
        )


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
