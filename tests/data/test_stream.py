"""Tensors of the micro-steps: the same work for every cut, padding without effect."""

import dataclasses
import json

import pytest
import torch

from autotune.contract.plan import Optimizer, Precision, Samples, Workload
from autotune.data.lengths import draw_lengths
from autotune.data.packing import IGNORED
from autotune.data.schedule import make_schedule
from autotune.data.stream import TokenStream
from autotune.data.tokens import synthetic_sample
from autotune.errors import RecordError
from autotune.models import loss
from autotune.models.family import family_of
from autotune.models.loss import token_loss_sum
from autotune.models.resolve import resolve_model
from autotune.models.weights import WeightSource, rebuild_buffers

MODEL = resolve_model("qwen3-tiny", load_weights=False)
FP32 = Precision(compute="fp32", master="fp32", accumulate="fp32", reduce="fp32")
LENGTHS = draw_lengths("ultrachat-like", num_samples=16, max_length=64, seed=4)
DRAWN = Samples(lengths=LENGTHS, max_length=64, seed=4, source="ultrachat-like")
CUTS = [
    {"batching": "padded", "micro_batch": 1, "max_tokens": None, "processes": 1},
    {"batching": "padded", "micro_batch": 4, "max_tokens": None, "processes": 2},
    {"batching": "sorted", "micro_batch": 2, "max_tokens": None, "processes": 4},
    {"batching": "padded", "micro_batch": None, "max_tokens": 64, "processes": 3},
    {"batching": "sorted", "micro_batch": None, "max_tokens": 100, "processes": 2},
    {"batching": "packed", "micro_batch": None, "max_tokens": 70, "processes": 2},
    {"batching": "packed", "micro_batch": None, "max_tokens": 151, "processes": 1},
]


def workload_of(samples: Samples = DRAWN, global_batch: int = 8) -> Workload:
    return Workload(
        model=MODEL,
        global_batch=global_batch,
        distinct_batches=len(samples.lengths) // global_batch,
        samples=samples,
        optimizer=Optimizer(lr=1e-5, weight_decay=0.0, gradient_clipping=1.0),
        precision=FP32,
    )


def streams(cut, workload=None) -> list[TokenStream]:
    workload = workload or workload_of()
    schedule = make_schedule(
        workload.samples,
        global_batch=workload.global_batch,
        distinct_batches=workload.distinct_batches,
        **cut,
    )
    return [TokenStream(workload, schedule, rank, 2048, "cpu") for rank in range(cut["processes"])]


@pytest.fixture(scope="module")
def tiny():
    """The real qwen3-tiny with its start weights."""
    module = family_of("qwen3").build(MODEL, dtype=torch.float32, kernels={})
    source = WeightSource.of(MODEL, module)
    module.to_empty(device="cpu")
    module.tie_weights()
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(source.tensor(name, parameter.shape, device="cpu"))
    rebuild_buffers(module)
    return module


def test_tokens_of_a_sample_do_not_depend_on_the_cut():
    for cut in CUTS[:5]:
        rows = {}
        for stream in streams(cut):
            for batch_index in range(2):
                for batch in stream.micro_batches(batch_index):
                    for row in range(batch.input_ids.shape[0]):
                        kept = (
                            batch.input_ids[row]
                            if batch.attention_mask is None
                            else batch.input_ids[row][batch.attention_mask[row].bool()]
                        )
                        if (batch.labels[row] != IGNORED).any():
                            rows[tuple(kept.tolist())] = rows.get(tuple(kept.tolist()), 0) + 1
        expected = [
            tuple(synthetic_sample(n, index=i, seed=4, vocab_size=2048).ids.tolist())
            for i, n in enumerate(LENGTHS)
        ]
        assert rows == dict.fromkeys(expected, 1)


@pytest.mark.parametrize("cut", CUTS)
def test_loss_and_gradient_of_an_iteration_are_the_same_for_every_cut(tiny, cut):
    """BUG-038: all cuts have the same real tokens, target tokens, loss and gradient."""
    family = family_of("qwen3")

    def iteration(cut):
        tiny.zero_grad()
        total = 0.0
        for stream in streams(cut):
            for batch in stream.micro_batches(1):
                summed = token_loss_sum(family.logits(tiny, batch), batch.labels)
                (summed / stream.target_tokens(1)).backward()
                total += summed.item() / stream.target_tokens(1)
        return total, [p.grad.clone() for p in tiny.parameters()]

    reference, gradients = iteration(CUTS[0])
    value, others = iteration(cut)
    assert value == pytest.approx(reference, rel=1e-6)
    for one, two in zip(gradients, others, strict=True):
        assert (one - two).norm() <= 2e-6 * one.norm() + 1e-9
    for stream in streams(cut):
        assert stream.target_tokens(1) == sum(LENGTHS[8:]) - 8
    counted = sum(
        int((batch.labels != IGNORED).sum())
        for stream in streams(cut)
        for batch in stream.micro_batches(1)
    )
    assert counted == sum(LENGTHS[8:]) - 8


def test_padding_changes_no_token_loss(tiny):
    family = family_of("qwen3")
    with torch.no_grad():
        for batch in streams(CUTS[1])[0].micro_batches(0):
            assert batch.attention_mask is not None
            together = family.logits(tiny, batch)
            for row, length in enumerate(batch.attention_mask.sum(1).tolist()):
                alone = dataclasses.replace(
                    batch, input_ids=batch.input_ids[row : row + 1, :length], attention_mask=None
                )
                difference = (family.logits(tiny, alone)[0] - together[row, :length]).abs().max()
                assert difference < 1e-5


def test_labels_are_the_next_tokens():
    batch = streams(CUTS[1])[0].micro_batches(0)[0]
    assert batch.attention_mask is not None
    for row, length in enumerate(batch.attention_mask.sum(1).tolist()):
        ids, labels = batch.input_ids[row], batch.labels[row]
        assert torch.equal(labels[: length - 1], ids[1:length])
        assert (labels[length - 1 :] == IGNORED).all()
        assert (ids[length:] == 0).all()


def test_a_packed_row_holds_whole_samples_with_positions_and_a_tail_of_its_own(tmp_path):
    """BUG-051: every per-token tensor covers the padding too, which is a segment of its own."""
    samples = write_tokens(tmp_path / "tokens.json", ENTRIES)
    cut = {"batching": "packed", "micro_batch": None, "max_tokens": 10, "processes": 2}
    stream, other = streams(cut, workload_of(samples, global_batch=2))
    (batch,) = stream.micro_batches(0)
    none = IGNORED
    assert batch.input_ids.tolist() == [[5, 6, 7, 8, 9, 10, 11, 0, 0, 0]]
    assert batch.position_ids.tolist() == [[0, 1, 2, 3, 0, 1, 2, 0, 1, 2]]
    assert batch.labels.tolist() == [[6, 7, 8, none, none, 11, none, none, none, none]]
    assert batch.attention_mask is None
    assert batch.boundaries.seq_idx.tolist() == [[0, 0, 0, 0, 1, 1, 1, 2, 2, 2]]
    assert batch.boundaries.cu_seq_lens.tolist() == [0, 4, 7, 10, 10, 10]
    assert batch.boundaries.max_length == 4
    assert {batch.boundaries.seq_idx.dtype, batch.boundaries.cu_seq_lens.dtype} == {torch.int32}
    assert stream.target_tokens(0) == 4
    (filler,) = other.micro_batches(0)
    assert filler.labels.unique().tolist() == [none]
    assert filler.boundaries.cu_seq_lens.tolist() == [0, 4, 7, 10, 10, 10]
    worst = stream.worst_case()
    assert worst.position_ids.tolist() == [[0, 1, 2, 3, 0, 1, 2, 0, 1, 2]]
    assert (worst.labels != none).sum() == 7


@pytest.mark.parametrize("cut", [cut for cut in CUTS if cut["batching"] == "packed"])
def test_all_packed_rows_of_a_trial_have_one_shape(cut):
    """A kernel that compiles for a shape does so once, fillers and the memory probe included."""
    rows = [
        batch
        for stream in streams(cut)
        for batch in (*stream.micro_batches(0), *stream.micro_batches(1), stream.worst_case())
    ]
    shapes = {
        (
            tuple(row.input_ids.shape),
            tuple(row.labels.shape),
            tuple(row.position_ids.shape),
            tuple(row.boundaries.seq_idx.shape),
            tuple(row.boundaries.cu_seq_lens.shape),
            row.boundaries.max_length,
        )
        for row in rows
    }
    assert len(shapes) == 1
    for row in rows:
        lengths = row.boundaries.cu_seq_lens.diff()
        assert int(lengths.max()) <= row.boundaries.max_length == max(LENGTHS)
        starts = row.boundaries.cu_seq_lens[row.boundaries.seq_idx[0].long()]
        assert torch.equal(torch.arange(cut["max_tokens"]) - starts, row.position_ids[0])


def test_a_row_of_one_whole_sample_is_probed_as_two():
    """One sample alone would need no mask, and so less memory than two."""
    samples = Samples(lengths=(64, 64), max_length=64, seed=0, source="x")
    cut = {"batching": "packed", "micro_batch": None, "max_tokens": 64, "processes": 1}
    (stream,) = streams(cut, workload_of(samples, global_batch=2))
    assert stream.worst_case().boundaries.cu_seq_lens.tolist()[:3] == [0, 32, 64]


def test_rows_without_padding_need_no_mask():
    assert all(batch.attention_mask is None for batch in streams(CUTS[0])[0].micro_batches(0))


def test_filler_has_no_labels_and_no_loss(tiny):
    cut = {"batching": "padded", "micro_batch": None, "max_tokens": 64, "processes": 8}
    fillers = [
        batch
        for stream in streams(cut)
        for batch in stream.micro_batches(0)
        if not (batch.labels != IGNORED).any()
    ]
    assert fillers
    tiny.zero_grad()
    value = token_loss_sum(family_of("qwen3").logits(tiny, fillers[0]), fillers[0].labels)
    value.backward()
    assert value.item() == 0
    assert all(p.grad is not None and not p.grad.any() for p in tiny.parameters())


def test_cycle_repeats_and_tensors_are_made_once():
    stream = streams(CUTS[1])[0]
    stream.prepare()
    assert stream.micro_batches(0) is stream.micro_batches(2)
    assert stream.target_tokens(3) == stream.target_tokens(1)


def test_worst_case_is_full_of_labels():
    batch = streams(CUTS[1])[0].worst_case()
    assert batch.input_ids.shape == (4, 64)
    assert batch.attention_mask is None
    assert (batch.labels[:, :-1] != IGNORED).all()
    assert int(batch.input_ids.max()) < 2048


def test_seed_and_index_decide_the_tokens():
    one = synthetic_sample(20, index=3, seed=0, vocab_size=2048).ids
    assert torch.equal(one, synthetic_sample(20, index=3, seed=0, vocab_size=2048).ids)
    assert not torch.equal(one, synthetic_sample(20, index=4, seed=0, vocab_size=2048).ids)
    assert not torch.equal(one, synthetic_sample(20, index=3, seed=1, vocab_size=2048).ids)


def test_ignored_label_is_the_losses():
    assert IGNORED == loss.IGNORED


def write_tokens(path, entries) -> Samples:
    import hashlib

    path.write_text(json.dumps({"samples": entries}))
    return Samples(
        lengths=tuple(len(entry["ids"]) for entry in entries),
        max_length=8,
        seed=0,
        source="chat.jsonl",
        token_file=str(path),
        token_file_sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
    )


ENTRIES = [
    {"ids": [5, 6, 7, 8], "trained": [[0, 4]]},
    {"ids": [9, 10, 11], "trained": [[2, 3]]},
]
TWO_ROWS = {"batching": "padded", "micro_batch": 2, "max_tokens": None, "processes": 1}


def test_tokenised_samples_train_only_on_their_spans(tmp_path):
    samples = write_tokens(tmp_path / "tokens.json", ENTRIES)
    (stream,) = streams(TWO_ROWS, workload_of(samples, global_batch=2))
    (batch,) = stream.micro_batches(0)
    assert batch.input_ids.tolist() == [[5, 6, 7, 8], [9, 10, 11, 0]]
    assert batch.attention_mask is not None
    assert batch.attention_mask.tolist() == [[1, 1, 1, 1], [1, 1, 1, 0]]
    assert batch.labels.tolist() == [[6, 7, 8, IGNORED], [IGNORED, 11, IGNORED, IGNORED]]
    assert stream.target_tokens(0) == 4


def test_token_file_that_was_changed_is_refused(tmp_path):
    samples = write_tokens(tmp_path / "tokens.json", ENTRIES)
    (tmp_path / "tokens.json").write_text('{"samples": []}')
    with pytest.raises(RecordError, match="was changed after the plan was made"):
        streams(TWO_ROWS, workload_of(samples, global_batch=2))


def test_token_ids_outside_the_vocabulary_are_refused(tmp_path):
    entries = [{"ids": [5, 2048], "trained": [[0, 2]]}] * 2
    samples = write_tokens(tmp_path / "tokens.json", entries)
    with pytest.raises(RecordError, match="outside the vocabulary"):
        streams(TWO_ROWS, workload_of(samples, global_batch=2))
