"""Qwen3.5 (gated delta nets) and Qwen3 with experts: configurations, counts, starts, kernels."""

import json
import math

import pytest
import torch
from small_qwen3 import Inputs
from torch.utils.flop_counter import FlopCounterMode

from autotune.contract.plan import Model
from autotune.errors import InputError
from autotune.models import qwen3_5_shape
from autotune.models.family import family_of, find_family
from autotune.models.presets import PRESETS
from autotune.models.resolve import resolve_model
from autotune.models.weights import WeightSource, rebuild_buffers

MOE = PRESETS["qwen3_moe-tiny"]
HYBRID = PRESETS["qwen3_5-tiny"]["text_config"]


def model_of(base, **changes) -> Model:
    config = {**base, **changes}
    family = find_family(config, "config.json")
    completed = family.complete(config, "config.json")
    count = sum(math.prod(one.shape) for one in family.parameters(completed))
    return Model(name="x", family=family.name, config=completed, num_parameters=count)


def materialised(model: Model) -> torch.nn.Module:
    module = family_of(model.family).build(model, dtype=torch.float32, kernels={})
    source = WeightSource.of(model, module)
    module.to_empty(device="cpu")
    module.tie_weights()
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(source.tensor(name, parameter.shape, device="cpu"))
    rebuild_buffers(module)
    return module


VARIANTS = {
    "experts": (MOE, {}),
    "experts untied bias": (MOE, {"tie_word_embeddings": False, "attention_bias": True}),
    "experts every second": (MOE, {"decoder_sparse_step": 2}),
    "experts some dense": (MOE, {"mlp_only_layers": [0, 3]}),
    "experts by the other name": (MOE, {"num_local_experts": 4}),
    "experts in a window": (MOE, {"use_sliding_window": True, "sliding_window": 5}),
    "one expert each": (MOE, {"num_experts_per_tok": 1, "norm_topk_prob": False}),
    "hybrid": (HYBRID, {}),
    "hybrid untied bias": (HYBRID, {"tie_word_embeddings": False, "attention_bias": True}),
    "hybrid all linear": (HYBRID, {"layer_types": ["linear_attention"] * 4}),
    "hybrid all attention": (HYBRID, {"layer_types": ["full_attention"] * 4}),
    "hybrid odd": (HYBRID, {"linear_conv_kernel_dim": 3, "linear_value_head_dim": 16}),
    "hybrid sections": (
        HYBRID,
        {"rope_parameters": {"rope_type": "default", "mrope_section": [2, 1, 1]}},
    ),
}


@pytest.mark.parametrize(("base", "changes"), VARIANTS.values(), ids=VARIANTS.keys())
def test_formula_counts_what_the_library_builds_and_it_runs(base, changes):
    model = model_of(base, **changes)
    family = family_of(model.family)
    meta = family.build(model, dtype=torch.float32, kernels={})
    assert {p.device.type for p in meta.parameters()} == {"meta"}
    assert sum(p.numel() for p in meta.parameters()) == model.num_parameters
    named = {one.names[0]: one.shape for one in family.parameters(model.config)}
    assert named == {name: tuple(p.shape) for name, p in meta.named_parameters()}
    module = materialised(model)
    logits = family.logits(module, Inputs(torch.arange(200)[None]))
    assert logits.shape == (1, 200, 2048)
    logits.square().mean().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in module.parameters())


@pytest.mark.parametrize("base", [MOE, HYBRID], ids=["experts", "hybrid"])
def test_unnamed_fields_have_the_librarys_defaults(base):
    from transformers import AutoConfig

    completed = model_of({"model_type": base["model_type"]}).config
    library = AutoConfig.for_model(completed["model_type"])
    ours = {"use_cache", "rope_parameters", "router_aux_loss_coef", "head_dim", "model_type"}
    for name in set(completed) - ours:
        assert completed[name] == getattr(library, name), name
    width = getattr(library, "head_dim", None) or library.hidden_size // library.num_attention_heads
    assert completed["head_dim"] == width
    for name in ("rope_type", "rope_theta"):
        assert completed["rope_parameters"][name] == library.rope_parameters[name]


def test_a_multimodal_config_is_read_from_its_text_section(tmp_path):
    """BUG-060: hidden_size stands only under text_config."""
    text = {**HYBRID}
    del text["tie_word_embeddings"]
    whole = {"model_type": "qwen3_5", "text_config": text, "vision_config": {"depth": 3}}
    for tied in (True, False):
        folder = tmp_path / str(tied)
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps({**whole, "tie_word_embeddings": tied}))
        model = resolve_model(str(folder), load_weights=False)
        assert model.family == "qwen3_5"
        assert model.config["hidden_size"] == 128
        assert model.config["tie_word_embeddings"] is tied
    assert model_of(HYBRID).config == resolve_model("qwen3_5-tiny", load_weights=False).config


@pytest.mark.parametrize(
    ("base", "changes", "message"),
    [
        (MOE, {"num_experts_per_tok": 9}, "num_experts_per_tok 9 is more than num_experts 8"),
        (MOE, {"mlp_only_layers": [4]}, "mlp_only_layers must be a list of layers from 0 to 3"),
        (MOE, {"moe_intermediate_size": 0}, "moe_intermediate_size must be a whole number"),
        (HYBRID, {"linear_num_value_heads": 3}, "no multiple of linear_num_key_heads 2"),
        (HYBRID, {"layer_types": ["sliding_attention"] * 4}, "layer_types must be a list of"),
        (HYBRID, {"layer_types": ["full_attention"]}, "layer_types names 1 layers"),
        (HYBRID, {"rope_parameters": {"rope_type": "yarn"}}, "must be default"),
        (HYBRID, {"rope_parameters": {"partial_rotary_factor": 0.1}}, "even number"),
        (HYBRID, {"rope_parameters": {"mrope_section": [1]}}, "three whole numbers"),
        (HYBRID, {"quantization_config": {"a": 1}}, "quantization_config is set"),
    ],
)
def test_wrong_field_is_refused_before_any_trial(base, changes, message):
    with pytest.raises(InputError, match=message):
        model_of(base, **changes)


def test_starts_are_the_librarys():
    model = model_of(HYBRID)
    source = WeightSource.of(
        model, family_of("qwen3_5").build(model, dtype=torch.float32, kernels={})
    )
    mixer = "model.layers.0.linear_attn."
    assert torch.equal(source.tensor(mixer + "dt_bias", (4,), device="cpu"), torch.ones(4))
    assert torch.equal(source.tensor(mixer + "norm.weight", (32,), device="cpu"), torch.ones(32))
    norm = source.tensor("model.layers.0.input_layernorm.weight", (128,), device="cpu")
    assert torch.equal(norm, torch.zeros(128))
    rates = source.tensor(mixer + "A_log", (1000,), device="cpu").exp()
    assert 0.01 < rates.min() < 0.5
    assert 15 < rates.max() < 16.1
    again = source.tensor(mixer + "A_log", (1000,), device="cpu").exp()
    other = source.tensor("model.layers.1.linear_attn.A_log", (1000,), device="cpu").exp()
    assert torch.equal(rates, again)
    assert not torch.equal(rates, other)


@pytest.mark.parametrize("base", [MOE, HYBRID], ids=["experts", "hybrid"])
def test_rebuilt_buffers_equal_those_of_a_model_built_normally(base):
    from transformers import AutoModelForCausalLM

    model = model_of(base)
    module = family_of(model.family).build(model, dtype=torch.float32, kernels={})
    normal = dict(AutoModelForCausalLM.from_config(module.config).named_buffers())
    module.to_empty(device="cpu")
    rebuild_buffers(module)
    rebuilt = dict(module.named_buffers())
    assert set(rebuilt) == set(normal) != set()
    assert all(torch.equal(rebuilt[name], normal[name]) for name in normal)


def counted_matmuls(model: Model, length: int) -> int:
    module = materialised(model)
    if model.family == "qwen3_moe":
        # The loop over experts runs plain matrix products, which torch counts.
        module.set_experts_implementation("eager")
    family = family_of(model.family)
    with FlopCounterMode(display=False) as counter:
        family.logits(module, Inputs(torch.arange(length)[None])).sum().backward()
    counts = counter.get_flop_counts()["Global"]
    return sum(n for op, n in counts.items() if op in (torch.ops.aten.mm, torch.ops.aten.addmm))


def test_only_active_experts_count():
    model = model_of(MOE, mlp_only_layers=[1])
    family = family_of("qwen3_moe")
    attention = 4 * 12 * 4 * 32 * sum(range(1, 21)) / 20
    expected = 20 * (family.flops_per_token(model.config, [20]) - attention)
    assert counted_matmuls(model, 20) == pytest.approx(expected, rel=1e-12)
    more = model_of(MOE, mlp_only_layers=[1], num_experts=16)
    router = 6 * 3 * 128 * 8
    difference = family.flops_per_token(more.config, [20]) - family.flops_per_token(
        model.config, [20]
    )
    assert difference == pytest.approx(router)


def test_linear_attention_costs_the_same_at_every_length():
    model = model_of(HYBRID)
    family = family_of("qwen3_5")
    convolution = 6 * 3 * (2 * 2 * 32 + 4 * 32) * 4
    state = 3 * 18 * 4 * 32 * 32
    attention = 12 * 4 * 32 * sum(range(1, 21)) / 20
    expected = 20 * (family.flops_per_token(model.config, [20]) - attention - state - convolution)
    assert counted_matmuls(model, 20) == pytest.approx(expected, rel=1e-12)
    linear = model_of(HYBRID, layer_types=["linear_attention"] * 4).config
    short, long = (family.flops_per_token(linear, [n]) for n in (10, 1000))
    assert short == long
    assert qwen3_5_shape.flops_per_token(model.config, []) == 0.0


def test_a_kernel_that_took_the_place_of_the_fallback_is_named(monkeypatch):
    """BUG-052: the wrapper keeps the torch function's name; what it closed over is the truth."""
    from transformers.integrations.hub_kernels import use_kernel_func_from_hub_with_fallback
    from transformers.models.qwen3_5 import modeling_qwen3_5 as modeling

    model = model_of(HYBRID)
    family = family_of("qwen3_5")
    module = family.build(model, dtype=torch.float32, kernels={})
    assert family.implementations(module)["convolution"].endswith(".causal_conv1d_fn")
    wrapper = use_kernel_func_from_hub_with_fallback("sqrt", "math")(modeling.causal_conv1d_fn)
    assert wrapper.__name__ == "causal_conv1d_fn"
    monkeypatch.setattr(modeling, "causal_conv1d_fn", wrapper)
    assert family.implementations(module)["convolution"] == "math.sqrt"


def test_the_balancing_loss_is_off():
    module = family_of("qwen3_moe").build(model_of(MOE), dtype=torch.float32, kernels={})
    assert module.config.output_router_logits is False
