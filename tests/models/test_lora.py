"""Adapters: which layers have one, how they start, and that nothing else is trained."""

import dataclasses

import pytest
import torch
from adapted import adapters, built, filled
from small_qwen3 import Inputs
from torch.utils.flop_counter import FlopCounterMode

from autotune.contract.plan import Model
from autotune.errors import InputError
from autotune.models import lora
from autotune.models.family import family_of
from autotune.models.presets import PRESETS
from autotune.models.resolve import resolve_model
from autotune.models.weights import WeightSource

TINY = ("qwen3-tiny", "qwen3_moe-tiny", "qwen3_5-tiny")
TARGETS = {
    "qwen3-tiny": "down_proj gate_proj k_proj o_proj q_proj up_proj v_proj",
    "qwen3_moe-tiny": "k_proj o_proj q_proj v_proj",
    "qwen3_5-tiny": "down_proj gate_proj in_proj_a in_proj_b in_proj_qkv in_proj_z k_proj o_proj "
    "out_proj q_proj up_proj v_proj",
}


@pytest.mark.parametrize("name", TINY)
def test_all_linear_is_every_linear_layer_of_the_decoder(name):
    assert adapters(resolve_model(name, load_weights=False)).targets == tuple(TARGETS[name].split())


def test_adapters_are_counted_by_hand():
    found = adapters(resolve_model("qwen3-tiny", load_weights=False), rank=4)
    # Four layers of hidden size 128, 4 heads and 2 key heads of 32, ffn 384.
    attention = (128 + 128) + 2 * (64 + 128) + (128 + 128)
    mlp = 2 * (384 + 128) + (128 + 384)
    assert found.num_parameters == 4 * 4 * (attention + mlp) == 38_912
    few = adapters(resolve_model("qwen3-tiny", load_weights=False), targets=("q_proj",))
    assert few.num_parameters == 4 * 4 * 256


def test_a_name_that_is_no_linear_layer_is_refused():
    model = resolve_model("qwen3-tiny", load_weights=False)
    for name in ("qproj", "lm_head", "embed_tokens", "norm", "proj"):
        with pytest.raises(InputError, match=f"{name} is the name of no linear layer") as caught:
            adapters(model, targets=("q_proj", name))
        assert "known: down_proj, gate_proj" in caught.value.hint
    assert adapters(model, targets=("self_attn.q_proj",)).num_parameters == 4 * 4 * 256


@pytest.mark.parametrize("name", PRESETS)
def test_a_model_has_as_many_linear_layers_as_the_library(name):
    model = resolve_model(name, load_weights=False)
    family = family_of(model.family)
    module = family.build(model, dtype=torch.bfloat16, kernels={})
    library = {
        path: (layer.out_features, layer.in_features)
        for path, layer in module.named_modules()
        if isinstance(layer, torch.nn.Linear) and path != "lm_head"
    }
    assert family.linear_layers(model.config) == library


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated")  # peft asks for it
@pytest.mark.parametrize("name", TINY)
@pytest.mark.parametrize("targets", [None, ("q_proj", "v_proj")], ids=["all", "two"])
def test_peft_adapts_the_same_layers(name, targets):
    peft = pytest.importorskip("peft")
    model = resolve_model(name, load_weights=False)
    ours = built(model, adapters(model, targets=targets))
    chosen = "all-linear" if targets is None else list(targets)
    if name == "qwen3_moe-tiny" and targets is None:
        chosen = TARGETS[name].split()  # peft's word takes the experts' tensors in too
    theirs = peft.get_peft_model(
        family_of(model.family).build(model, dtype=torch.float32, kernels={}),
        peft.LoraConfig(r=4, lora_alpha=8, target_modules=chosen),
        low_cpu_mem_usage=True,
    )
    shapes = {n: p.shape for n, p in ours.named_parameters() if p.requires_grad}
    prefix = "base_model.model."
    expected = {
        n.removeprefix(prefix): p.shape for n, p in theirs.named_parameters() if p.requires_grad
    }
    assert shapes == expected
    assert sum(shape.numel() for shape in shapes.values()) == (
        adapters(model, targets=targets).num_parameters
    )
    assert lora.peft_arguments(adapters(model)) == {
        "r": 4,
        "lora_alpha": 8,
        "lora_dropout": 0.0,
        "target_modules": TARGETS[name].split(),
        "bias": "none",
    }


@pytest.mark.parametrize("name", TINY)
def test_frozen_weights_are_those_without_adapters_and_the_model_begins_as_without(name):
    pytest.importorskip("peft")
    model = resolve_model(name, load_weights=False)
    plain, adapted = filled(model, None), filled(model, adapters(model))
    theirs = dict(plain.named_parameters())
    frozen = {n: p for n, p in adapted.named_parameters() if not p.requires_grad}
    assert {lora.base_name(n) for n in frozen} == theirs.keys()
    assert all(torch.equal(p, theirs[lora.base_name(n)]) for n, p in frozen.items())
    family, batch = family_of(model.family), Inputs(torch.arange(12)[None])
    assert torch.equal(family.logits(plain, batch), family.logits(adapted, batch))


def test_the_first_matrix_is_drawn_by_name_and_the_second_is_zero():
    pytest.importorskip("peft")
    model = resolve_model("qwen3-tiny", load_weights=False)
    trained = {
        n: p for n, p in filled(model, adapters(model)).named_parameters() if p.requires_grad
    }
    firsts = {n: p for n, p in trained.items() if ".lora_A." in n}
    seconds = [p for n, p in trained.items() if ".lora_B." in n]
    assert len(firsts) == len(seconds) == 4 * 7
    assert not any(p.any() for p in seconds)
    for name, first in firsts.items():
        bound = first.shape[1] ** -0.5
        assert first.abs().max() <= bound * 1.01  # rounded to bf16
        assert first.detach().std() == pytest.approx(bound / 3**0.5, rel=0.1), name
        assert torch.equal(first, first.bfloat16().float())
    assert len({p.detach().sum().item() for p in firsts.values()}) == len(firsts)
    other = filled(dataclasses.replace(model, seed=1), adapters(model))
    assert not any(torch.equal(p, firsts[n]) for n, p in other.named_parameters() if n in firsts)


def test_what_is_frozen_is_held_in_the_compute_format():
    pytest.importorskip("peft")
    model = resolve_model("qwen3-tiny", load_weights=False)
    module = built(model, adapters(model), dtype=torch.bfloat16)
    kinds = {(p.requires_grad, p.dtype, p.device.type) for p in module.parameters()}
    assert kinds == {(True, torch.float32, "meta"), (False, torch.bfloat16, "meta")}
    assert {buffer.dtype for buffer in module.buffers()} == {torch.float32}
    module = built(model, adapters(model), dtype=torch.bfloat16, trained=torch.bfloat16)
    assert {p.dtype for p in module.parameters()} == {torch.bfloat16}


def test_real_weights_stay_beside_drawn_adapters(tmp_path):
    pytest.importorskip("peft")
    preset = resolve_model("qwen3-tiny", load_weights=False)
    saved = filled(preset, None)
    with torch.no_grad():
        for parameter in saved.parameters():
            parameter.add_(0.5)
    saved.to(torch.bfloat16).save_pretrained(tmp_path)
    model = resolve_model(str(tmp_path), load_weights=True)
    module = built(model, adapters(model))
    source = WeightSource.of(model, module)
    drawn = WeightSource.of(preset, module)
    theirs = {n: p.float() for n, p in saved.named_parameters()}
    for name, parameter in module.named_parameters():
        value = source.tensor(name, parameter.shape, device="cpu")
        expected = (
            drawn.tensor(name, parameter.shape, device="cpu")
            if parameter.requires_grad
            else theirs[lora.base_name(name)]
        )
        assert torch.equal(value, expected), name


def matmuls(module: torch.nn.Module, model: Model, length: int) -> int:
    if model.family == "qwen3_moe":
        module.set_experts_implementation("eager")  # a loop of products, which torch counts
    # As everywhere but below the first adapter, the gradient of every layer's input is needed.
    module.enable_input_require_grads()
    with FlopCounterMode(display=False) as counter:
        family_of(model.family).logits(module, Inputs(torch.arange(length)[None])).sum().backward()
    counts = counter.get_flop_counts()["Global"]
    return sum(n for op, n in counts.items() if op in (torch.ops.aten.mm, torch.ops.aten.addmm))


@pytest.mark.parametrize("name", TINY)
def test_frozen_weights_need_two_products_and_adapters_three(name):
    """torch counts the products; attention, states and the convolution are none of them."""
    pytest.importorskip("peft")
    model = resolve_model(name, load_weights=False)
    family, found = family_of(model.family), adapters(model)
    full = family.flops_per_token(model.config, [20])
    few = family.flops_per_token(model.config, [20], found.num_parameters)
    none = family.flops_per_token(model.config, [20], 0)
    assert few - none == 6 * found.num_parameters
    elements = (full - none) / 2
    convolution = 3 * 2 * (2 * 2 * 32 + 4 * 32) * 4 if name == "qwen3_5-tiny" else 0
    counted = matmuls(filled(model, found), model, 20)
    products = 4 * elements - 2 * convolution + 6 * found.num_parameters
    assert counted == pytest.approx(20 * products, rel=1e-12)
    counted = matmuls(filled(model, None), model, 20)
    assert counted == pytest.approx(20 * (6 * elements - 3 * convolution), rel=1e-12)


def test_flops_of_adapters_by_hand():
    """Qwen3 8 B, rank 16 at q_proj and v_proj, samples of 1,024 tokens."""
    model = resolve_model("qwen3-8b", load_weights=False)
    found = adapters(model, rank=16, targets=("q_proj", "v_proj"))
    assert found.num_parameters == 36 * 16 * ((4096 + 4096) + (4096 + 1024))
    layer = 2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 12288
    frozen = 36 * layer + 151936 * 4096
    attention = 36 * 12 * 32 * 128 * (1025 / 2)
    expected = 4 * frozen + 6 * found.num_parameters + attention
    family = family_of("qwen3")
    measured = family.flops_per_token(model.config, [1024, 1024], found.num_parameters)
    assert measured == pytest.approx(expected, rel=1e-12)
    everything = family.flops_per_token(model.config, [1024])
    assert everything == pytest.approx(6 * frozen + attention, rel=1e-12)
