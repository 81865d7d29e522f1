"""Is a kernel right here? One choice against the reference, before any trial is timed with it.

The plan of such a launch names the choice as the one value to verify; other kernels are the
reference's, save where rows are packed and those would let samples mix. A model with one layer of
each kind, at the real widths, runs forward and backward at the workload's longest row (and over
a packed row, where the space packs) three times:

* with the reference kernels in float32, each sample by itself: the truth. No mask, no padding and
  no boundary can be wrong there;
* with the reference kernels in the workload's format: how far rounding alone goes;
* with the choice in the workload's format, on the batch as a trial has it.

Compared are the loss, the hidden states and the gradient of every weight, by the norm of the
difference over the norm of the truth. A choice may be :data:`TIMES` as far off as the reference in
the same format is, for another order of rounding is as good, or :data:`FLOOR` where that is more:
float32 sums in another order stay far below 1e-4, bf16 operands give 1e-3 to 1e-2. A wrong kernel
is off by tenths, a leaking boundary too.

The vocabulary is cut to :data:`VOCABULARY`, since it is no shape of a layer; kernels of the loss
are compared once more at the whole one (:mod:`autotune.worker.kernel_losses`).
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import torch

from autotune.backends.base import RankContext
from autotune.backends.filling import fill
from autotune.backends.numberformats import TORCH_DTYPES
from autotune.contract.kernels import KernelCheck
from autotune.contract.plan import DType, Model, Plan
from autotune.data.packing import IGNORED, Frame, MicroBatch, packed_row
from autotune.data.tokens import Sample, synthetic_sample
from autotune.models.causal_lm import decoder
from autotune.models.family import ModelFamily, family_of
from autotune.models.kernels import choice as kernels
from autotune.models.kernels import table
from autotune.models.weights import WeightSource
from autotune.worker.failures import NotInEffectError
from autotune.worker.kernel_losses import compare_losses

TIMES: Final = 3.0
FLOOR: Final[Mapping[DType, float]] = {"fp32": 1e-4, "bf16": 1e-2}
VOCABULARY: Final = 4096
REFERENCE: Final = "the reference in float32"

Tensors = dict[str, torch.Tensor]
"""Name to what is compared, in float32."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """Samples, and the batch that a trial would make of them."""

    words: str
    samples: tuple[Sample, ...]
    batch: MicroBatch


@dataclasses.dataclass(frozen=True, kw_only=True)
class Difference:
    """How far one tensor is off."""

    tensor: str
    error: float
    allowed: float

    @property
    def share(self) -> float:
        """Of what is allowed; more than one does not pass."""
        return self.error / self.allowed


def check(plan: Plan, device: torch.device, beat: Callable[[], None]) -> KernelCheck:
    """Compare the choice that ``plan`` verifies with the reference.

    Raises:
        NotInEffectError: The built model does not run it.
    """
    (knob,) = plan.verify
    layer = table.of_knob(knob.partition(".")[2])
    assert layer is not None, knob
    asked = str(plan.config[knob])
    family = family_of(plan.training.model.family)
    model = reduced(family, plan.training.model)
    compute = plan.training.precision.compute
    reference = table.references()
    differences: list[Difference] = []
    cases = [_on(case, device) for case in _cases(plan, model)]
    # The reference first: patches reach every model that is built after them.
    truths = [_truth(family, model, reference, "fp32", device, case, beat) for case in cases]
    rounded = truths
    if compute != "fp32":
        rounded = [_truth(family, model, reference, compute, device, case, beat) for case in cases]
    static = plan.cut.distinct_shapes == 1
    module = _built(family, model, plan.kernels, compute, device, static)
    bound = table.bound(family, module)[layer.knob]
    if bound != asked:
        raise NotInEffectError(f"{knob} was set to {asked!r}, but the built model has {bound!r}")
    for case, truth, plain in zip(cases, truths, rounded, strict=True):
        found = _run(family, module, [case.batch], [_lengths(case)])
        beat()
        differences += differ(found, truth, plain, compute, f" ({case.words})")
    if layer.knob == "loss":
        differences += compare_losses(plan, module, device, compute, differ)
    worst = max(differences, key=lambda one: one.share)
    return KernelCheck(
        knob=knob,
        choice=asked,
        passed=worst.share <= 1.0,
        tensor=worst.tensor,
        error=worst.error if math.isfinite(worst.error) else None,
        allowed=worst.allowed,
        num_tensors=len(differences),
        cases=tuple(case.words for case in cases),
        reference=REFERENCE,
        versions=_versions(layer.choice(asked), device),
    )


def reduced(family: ModelFamily, model: Model) -> Model:
    """Return the model with one layer of each kind and a small vocabulary."""
    config = family.one_of_each(model.config)
    config["vocab_size"] = min(VOCABULARY, config["vocab_size"])
    config["pad_token_id"] = None
    count = sum(math.prod(one.shape) for one in family.parameters(config))
    # Real weights belong to the whole model: drawn ones are as good for this.
    return dataclasses.replace(model, config=config, weights=None, num_parameters=count)


def differ(
    found: Tensors, truth: Tensors, plain: Tensors, compute: DType, where: str
) -> list[Difference]:
    """Compare tensors by name.

    Args:
        found: Of the choice.
        truth: Of the reference in float32.
        plain: Of the reference in the format of ``found``.
        compute: That format.
        where: Added to each tensor's name.
    """
    assert found.keys() == truth.keys(), "the models have other weights"
    return [
        Difference(
            tensor=name + where,
            error=distance(found[name], truth[name]),
            allowed=_allowed(distance(plain[name], truth[name]), compute),
        )
        for name in truth
    ]


def _allowed(rounding: float, compute: DType) -> float:
    """A reference that is not finite in the format excuses nothing."""
    return max(FLOOR[compute], TIMES * rounding) if math.isfinite(rounding) else FLOOR[compute]


def distance(one: torch.Tensor, truth: torch.Tensor) -> float:
    """Return ‖one - truth‖ / ‖truth‖; infinite where a number is not finite."""
    size = torch.linalg.vector_norm(truth)
    error = float(torch.linalg.vector_norm(one - truth) / size) if size > 0 else math.inf
    if size == 0 and not bool(one.any()):
        return 0.0
    return error if math.isfinite(error) else math.inf


def _cases(plan: Plan, model: Model) -> Iterator[Case]:
    """The longest row beside one of half its length; and a packed row of the plan's."""
    vocabulary = model.config["vocab_size"]
    longest = plan.training.samples.max_length
    rows = _drawn([longest, max(2, longest // 2)], vocabulary)
    words = f"rows of {longest:,} and {len(rows[1].ids):,} tokens"
    yield Case(words=words, samples=rows, batch=_padded(rows, longest))
    if plan.cut.batching != "packed":
        return
    steps = [
        step for batch in plan.cut.batches for rank in batch.ranks for step in rank.micro_steps
    ]
    fullest = max(steps, key=lambda step: len(step.samples))
    lengths = [plan.training.samples.lengths[index] for index in fullest.samples]
    samples = _drawn(lengths, vocabulary)
    words = f"{len(lengths)} samples packed into {fullest.length:,} tokens"
    frame = Frame.of(plan.cut, plan.training.samples.lengths)
    yield Case(words=words, samples=samples, batch=packed_row(samples, frame))


def _drawn(lengths: Sequence[int], vocabulary: int) -> tuple[Sample, ...]:
    return tuple(
        synthetic_sample(length, index=-2000 - number, seed=0, vocab_size=vocabulary)
        for number, length in enumerate(lengths)
    )


def _padded(samples: Sequence[Sample], length: int) -> MicroBatch:
    """Each sample in a row of its own, padded on the right."""
    ids = torch.zeros(len(samples), length, dtype=torch.int64)
    mask = torch.zeros_like(ids)
    labels = torch.full_like(ids, IGNORED)
    for row, sample in enumerate(samples):
        end = len(sample.ids)
        ids[row, :end] = sample.ids
        mask[row, :end] = 1
        labels[row, : end - 1] = sample.ids[1:]
    return MicroBatch(
        input_ids=ids,
        attention_mask=None if bool(mask.all()) else mask,
        position_ids=None,
        labels=labels,
    )


def _on(case: Case, device: torch.device) -> Case:
    return dataclasses.replace(case, batch=case.batch.to(device))


def _lengths(case: Case) -> list[slice]:
    """Where the samples lie in the flattened batch."""
    rows, length = case.batch.input_ids.shape
    if rows == 1:
        ends = [0]
        for sample in case.samples:
            ends.append(ends[-1] + len(sample.ids))
        return [slice(a, b) for a, b in itertools.pairwise(ends)]
    return [
        slice(row * length, row * length + len(sample.ids))
        for row, sample in enumerate(case.samples)
    ]


def _truth(
    family: ModelFamily,
    model: Model,
    reference: Mapping[str, str],
    dtype: DType,
    device: torch.device,
    case: Case,
    beat: Callable[[], None],
) -> Tensors:
    """The reference kernels over each sample by itself."""
    module = _built(family, model, reference, dtype, device, static=False)
    batches = []
    for sample in case.samples:
        alone = Case(words="", samples=(sample,), batch=_padded((sample,), len(sample.ids)))
        batches.append(_on(alone, device).batch)
    found = _run(family, module, batches, [[slice(None)]] * len(batches))
    beat()
    return found


def _built(
    family: ModelFamily,
    model: Model,
    chosen: Mapping[str, str],
    dtype: DType,
    device: torch.device,
    static: bool,
) -> torch.nn.Module:
    module = family.build(model, dtype=TORCH_DTYPES[dtype], kernels=chosen, static_shapes=static)
    source = WeightSource.of(model, module)
    fill(module, source, RankContext(rank=0, local_rank=0, device=device))
    return module


def _run(
    family: ModelFamily,
    module: torch.nn.Module,
    batches: Sequence[MicroBatch],
    kept: Sequence[Sequence[slice]],
) -> Tensors:
    """Forward and backward of all batches; gradients are summed in float32."""
    hidden: list[torch.Tensor] = []
    norm: Any = decoder(module).norm
    handle = norm.register_forward_hook(lambda _m, _a, output: hidden.append(output.detach()))
    total = torch.zeros(())
    sums: Tensors = {}
    parts: list[torch.Tensor] = []
    try:
        for batch, slices in zip(batches, kept, strict=True):
            hidden.clear()
            loss = family.loss_sum(module, batch)
            torch.autograd.backward(loss)
            total = total + loss.detach().float().cpu()
            flat = hidden[0].flatten(0, -2)
            parts += [flat[part].float() for part in slices]
            for name, parameter in module.named_parameters():
                if parameter.grad is None:
                    continue
                sums[name] = parameter.grad.float() + sums.get(name, 0.0)
                parameter.grad = None
    finally:
        handle.remove()
    gradients = {f"gradient of {name}": value for name, value in sums.items()}
    missing = {
        f"gradient of {name}": torch.zeros_like(parameter, dtype=torch.float32)
        for name, parameter in module.named_parameters()
        if f"gradient of {name}" not in gradients
    }
    return {"loss": total, "hidden states": torch.cat(parts), **gradients, **missing}


def _versions(choice: kernels.Choice, device: torch.device) -> dict[str, str]:
    found = {"torch": str(torch.__version__)}
    for name in ("transformers", "triton", *choice.packages):
        version = kernels.version(name)
        if version is not None:
            found[name] = version
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        found["device"] = f"{torch.cuda.get_device_name(device)} ({major}.{minor})"
        found["cuda"] = str(torch.version.cuda)
    return found
