"""Kernels of gated delta nets and their convolution: bound, read back, told where samples end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from autotune.contract.plan import Optimizer, Precision, Samples, Workload
from autotune.data.lengths import draw_lengths
from autotune.data.schedule import make_schedule
from autotune.data.stream import TokenStream
from autotune.models.causal_lm import modeling_of
from autotune.models.family import family_of
from autotune.models.kernels import convolution, fla_package, linear_attention, table
from autotune.models.kernels.choice import Machine, unavailable
from autotune.models.resolve import resolve_model
from autotune.models.weights import WeightSource, rebuild_buffers

PACKAGES = Path(__file__).resolve().parents[1] / "packages"
MODEL = resolve_model("qwen3_5-tiny", load_weights=False)
FAMILY = family_of("qwen3_5")
LENGTHS = draw_lengths("ultrachat-like", num_samples=8, max_length=96, seed=4)
FP32 = Precision(compute="fp32", master="fp32", accumulate="fp32", reduce="fp32")
OBEYING = [
    {"linear_attention": "fla", "convolution": "causal_conv1d"},
    {"linear_attention": "fla", "convolution": "fla"},
]
LEAKING = [
    {},
    {"linear_attention": "torch", "convolution": "fla"},
    {"linear_attention": "fla", "convolution": "torch"},
]


@pytest.fixture
def stand_ins(monkeypatch):
    """The packages' stand-ins can be imported; the library's file is as it was afterwards."""
    from transformers.models.qwen3_5 import modeling_qwen3_5 as library

    monkeypatch.syspath_prepend(PACKAGES)
    for name in (linear_attention.NAME, convolution.NAME):
        monkeypatch.setattr(library, name, getattr(library, name))
    yield
    for name in list(sys.modules):
        if name.partition(".")[0] in ("fla", "causal_conv1d", "segmentwise"):
            del sys.modules[name]


def built(kernels) -> torch.nn.Module:
    """The real tiny hybrid with its start weights and these kernels."""
    module = FAMILY.build(MODEL, dtype=torch.float32, kernels=kernels)
    source = WeightSource.of(MODEL, module)
    module.to_empty(device="cpu")
    module.tie_weights()
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(source.tensor(name, parameter.shape, device="cpu"))
    rebuild_buffers(module)
    return module


def stream_of(batching, **cut) -> TokenStream:
    samples = Samples(lengths=LENGTHS, max_length=96, seed=4, source="ultrachat-like")
    schedule = make_schedule(
        samples, global_batch=8, distinct_batches=1, batching=batching, processes=1, **cut
    )
    workload = Workload(
        model=MODEL,
        global_batch=8,
        distinct_batches=1,
        samples=samples,
        optimizer=Optimizer(lr=1e-5, weight_decay=0.0, gradient_clipping=1.0),
        precision=FP32,
    )
    return TokenStream(workload, schedule, 0, 2048, "cpu")


def iteration(module, stream):
    """Loss and gradients of a whole global batch."""
    module.zero_grad()
    total = torch.zeros(())
    for batch in stream.micro_batches(0):
        loss = FAMILY.loss_sum(module, batch)
        loss.backward()
        total += loss.detach()
    return float(total), {name: p.grad.clone() for name, p in module.named_parameters()}


def packed_and_padded(kernels):
    reference = iteration(built({}), stream_of("padded", micro_batch=2, max_tokens=None))
    packed = iteration(built(kernels), stream_of("packed", micro_batch=None, max_tokens=96))
    return packed, reference


@pytest.mark.parametrize("kernels", OBEYING)
def test_packed_loss_and_gradient_are_those_of_padded_rows(kernels, stand_ins):
    (loss, gradients), (expected, others) = packed_and_padded(kernels)
    import segmentwise

    told = {(name, given) for name, given in segmentwise.CALLS}
    assert told == {("delta rule", True), (kernels["convolution"], True)}
    assert loss == pytest.approx(expected, rel=1e-6)
    for name, gradient in gradients.items():
        assert (gradient - others[name]).norm() <= 1e-4 * others[name].norm() + 1e-9, name


@pytest.mark.parametrize("kernels", LEAKING)
def test_a_kernel_without_boundaries_computes_something_else(kernels, stand_ins):
    """By little: the state forgets fast, and a gate on the loss alone might let it pass."""
    (loss, _), (expected, _) = packed_and_padded(kernels)
    assert loss != pytest.approx(expected, rel=3e-6)
    assert FAMILY.packing_refusal(MODEL.config, kernels) is not None


@pytest.mark.parametrize("kernels", [*OBEYING, *LEAKING[1:]])
def test_padded_rows_are_computed_alike_by_every_kernel(kernels, stand_ins):
    stream = stream_of("padded", micro_batch=2, max_tokens=None)
    loss, gradients = iteration(built(kernels), stream)
    expected, others = iteration(built({}), stream)
    assert loss == pytest.approx(expected, rel=1e-6)
    for name, gradient in gradients.items():
        assert (gradient - others[name]).norm() <= 1e-4 * others[name].norm() + 1e-9, name


def test_tables_of_chunks_are_made_once_for_each_row(stand_ins):
    """fla waits for the device to make one; the rows of a trial come again and again."""
    module = built(OBEYING[1])
    stream = stream_of("packed", micro_batch=None, max_tokens=96)
    for _ in range(2):
        iteration(module, stream)
    from fla.ops.utils.index import MADE

    rows = len(stream.micro_batches(0))
    assert rows > 1
    assert len(MADE) == 2 * rows  # one for the delta rule, one for the convolution


@pytest.mark.parametrize("kernels", [{}, *OBEYING, *LEAKING[1:]])
def test_what_is_bound_is_read_from_the_live_model(kernels, stand_ins):
    wanted = {"linear_attention": "torch", "convolution": "torch", **kernels}
    for again in (kernels, {}, kernels):  # whatever was bound before
        module = FAMILY.build(MODEL, dtype=torch.float32, kernels=again)
    bound = table.bound(FAMILY, module)
    assert {knob: bound[knob] for knob in wanted} == wanted
    file = modeling_of(module.model.layers[0].linear_attn)
    setattr(file, convolution.NAME, lambda *_, **__: None)
    assert table.bound(FAMILY, module)["convolution"] not in ("torch", "fla", "causal_conv1d")


def test_an_exports_apply_gives_a_trainers_model_fla_s_convolution(stand_ins):
    """transformers takes causal-conv1d alone by itself."""
    module = built({"linear_attention": "fla"})
    assert table.bound(FAMILY, module)["convolution"] == "torch"
    convolution.take_fla(module)
    assert table.bound(FAMILY, module)["convolution"] == "fla"


BIND = """
import json, sys, torch
from autotune.models.family import family_of
from autotune.models.kernels import table
from autotune.models.resolve import resolve_model
from transformers.models.qwen3_5 import modeling_qwen3_5 as library
from autotune.models.kernels import rebinding
names = ("torch_chunk_gated_delta_rule", "causal_conv1d_fn")
found = [rebinding.implementation(getattr(library, name)).__module__ for name in names]
family = family_of("qwen3_5")
for kernels in json.loads(sys.argv[1]):
    module = family.build(
        resolve_model("qwen3_5-tiny", load_weights=False), dtype=torch.float32, kernels=kernels
    )
    bound = table.bound(family, module)
    found.append([bound["linear_attention"], bound["convolution"]])
print(json.dumps(found))
"""


def test_the_library_does_not_decide_what_is_bound():
    """It takes packages that it can import for all models; the knobs say it for this one."""
    asked = [*OBEYING, LEAKING[1], LEAKING[2], {"linear_attention": "torch"}]
    paths = [str(PACKAGES), str(Path(__file__).resolve().parents[2])]
    done = subprocess.run(
        [sys.executable, "-c", BIND, json.dumps(asked)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rule, convolution_, *bound = json.loads(done.stdout)
    assert rule.startswith("fla.")
    assert convolution_.startswith("causal_conv1d")
    assert bound == [
        [one.get("linear_attention", "torch"), one.get("convolution", "torch")] for one in asked
    ]


HOPPER = Machine(device="cuda", capability=(9, 0), compute="bf16")
AMPERE = Machine(device="cuda", capability=(8, 0), compute="bf16")


@pytest.mark.parametrize(
    ("machine", "triton", "tilelang", "reason"),
    [
        (HOPPER, "3.6.0", False, "computes wrong gradients on Hopper"),
        (HOPPER, "3.4.0+git1", False, "pip install tilelang"),
        (HOPPER, "3.6.0", True, None),
        (HOPPER, "3.3.1", False, None),
        (HOPPER, "3.7.1", False, None),
        (HOPPER, "3.7.0", False, "Triton 3.7.1 or later"),
        (AMPERE, "3.6.0", False, None),
    ],
)
def test_fla_is_left_out_where_its_gradients_would_be_wrong(
    machine, triton, tilelang, reason, monkeypatch, stand_ins
):
    """BUG-054: fla raises in the first backward there; it is told before any trial."""
    monkeypatch.setattr(fla_package, "version", {"triton": triton}.get)
    monkeypatch.setattr(fla_package, "_has_tilelang", lambda: tilelang)
    choice = linear_attention.LAYER.choice("fla")
    found = choice.unfit(machine)
    assert found is None if reason is None else reason in found
    assert convolution.LAYER.choice("fla").unfit(machine) is None


def test_what_is_missing_is_said_with_the_way_to_have_it():
    machine = Machine(device="cpu")
    rule, short = linear_attention.LAYER, convolution.LAYER
    assert unavailable(rule.choice("torch"), machine) is None
    assert unavailable(rule.choice("fla"), machine) == "it needs an NVIDIA GPU, and none is used"
    for choice, how in (
        (rule.choice("fla"), "pip install flash-linear-attention"),
        (short.choice("fla"), "pip install flash-linear-attention"),
        (short.choice("causal_conv1d"), "pip install causal-conv1d"),
    ):
        assert how in str(unavailable(choice, HOPPER))


def test_a_hybrid_is_packed_only_with_kernels_that_take_boundaries():
    for kernels in OBEYING:
        assert FAMILY.packing_refusal(MODEL.config, kernels) is None
    for kernels, named in zip(
        LEAKING,
        ("linear attention by torch", "linear attention by torch", "convolution by torch"),
        strict=True,
    ):
        assert named in str(FAMILY.packing_refusal(MODEL.config, kernels))
    plain = {**MODEL.config, "layer_types": ["full_attention"] * 4}
    assert FAMILY.packing_refusal(plain, {}) is None
