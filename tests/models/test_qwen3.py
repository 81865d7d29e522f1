"""Qwen3: configurations of other people's folders, counted and built."""

import pytest
import torch
from small_qwen3 import FAMILY, SMALL, Inputs, materialised, small_model
from torch.utils.flop_counter import FlopCounterMode

from autotune.contract.plan import Model
from autotune.errors import InputError
from autotune.models import qwen3_shape
from autotune.models.presets import PRESETS

TINY = PRESETS["qwen3-tiny"]
VARIANTS = {
    "plain": {},
    "tied": {"tie_word_embeddings": True},
    "bias": {"attention_bias": True},
    "bias tied": {"attention_bias": True, "tie_word_embeddings": True},
    "one kv head": {"num_key_value_heads": 1},
    "null kv heads": {"num_key_value_heads": None},
    "wide heads": {"head_dim": 64},
    "old rope": {"rope_theta": 1e6, "rope_scaling": None},
    "linear": {"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_theta": 5e5},
    "dynamic": {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
    "yarn": {
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 32768,
        },
        "max_position_embeddings": 131072,
        "rope_theta": 1e6,
    },
    "llama3": {
        "rope_parameters": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
            "rope_theta": 5e5,
        }
    },
    "sliding": {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1},
    "layer types": {
        "use_sliding_window": True,
        "sliding_window": 4,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
    "pad token": {"pad_token_id": 5},
    "odd": {"bos_token_id": "x", "architectures": 3, "torch_dtype": "int4", "use_cache": True},
    "dropout": {"attention_dropout": 0.5},
}


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS.keys())
def test_formula_counts_what_the_library_builds_and_it_runs(changes):
    model = small_model(**changes)
    module = FAMILY.build(model, dtype=torch.float32, kernels={})
    assert {p.device.type for p in module.parameters()} == {"meta"}
    library = {name: tuple(p.shape) for name, p in module.named_parameters()}
    assert {p.names[0]: p.shape for p in FAMILY.parameters(model.config)} == library
    assert sum(p.numel() for p in module.parameters()) == model.num_parameters
    module = materialised(model)
    logits = FAMILY.logits(module, Inputs(torch.arange(12)[None]))
    assert logits.shape == (1, 12, 96)
    logits.square().mean().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in module.parameters())


def test_tied_embeddings_are_counted_once():
    untied, tied = small_model(), small_model(tie_word_embeddings=True)
    assert untied.num_parameters - tied.num_parameters == 96 * 48


def test_absent_head_dim_is_the_librarys_128_and_not_a_quotient():
    config = {key: value for key, value in SMALL.items() if key != "head_dim"}
    completed = FAMILY.complete(config, "config.json")
    model = Model(name="x", family="qwen3", config=completed, num_parameters=0)
    module = FAMILY.build(model, dtype=torch.float32, kernels={})
    assert completed["head_dim"] == 128
    shapes = {p.names[0]: p.shape for p in FAMILY.parameters(completed)}
    assert shapes == {name: tuple(p.shape) for name, p in module.named_parameters()}


def test_every_published_number_is_filled_in_so_that_a_plan_hides_no_default():
    from transformers import Qwen3Config

    completed = FAMILY.complete({"model_type": "qwen3"}, "config.json")
    library = Qwen3Config()
    for name in set(completed) - {"use_cache", "rope_parameters"}:
        assert completed[name] == getattr(library, name), name
    assert completed["rope_parameters"] == dict(library.rope_parameters)
    assert completed["use_cache"] is False


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": 0}, "hidden_size must be a whole number, 1 or more; found 0"),
        ({"hidden_size": "128"}, "hidden_size must be a whole number"),
        ({"hidden_size": True}, "hidden_size must be a whole number"),
        ({"num_hidden_layers": 2.0}, "num_hidden_layers must be a whole number"),
        ({"num_attention_heads": 5}, "num_attention_heads 5 is no multiple of"),
        ({"head_dim": 15}, "head_dim must be even"),
        ({"head_dim": None}, "head_dim must be a whole number"),
        ({"hidden_act": "swosh"}, "hidden_act must be one of"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings must be true or false"),
        ({"initializer_range": -1}, "initializer_range must be a positive number"),
        ({"rope_scaling": {"type": "magic"}}, "rope type 'magic' is not one of"),
        ({"rope_scaling": {"type": "linear"}}, "rope type linear needs factor"),
        ({"rope_scaling": 4}, "rope_scaling must be an object"),
        ({"rope_theta": "1e6"}, "rope_theta must be a positive number"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor must be 1"),
        ({"layer_types": ["full_attention"]}, "layer_types names 1 layers"),
        ({"layer_types": ["sliding_attention"] * 3}, "no sliding window is in use"),
        ({"layer_types": ["linear_attention"] * 3}, "layer_types must be a list of"),
        ({"pad_token_id": 96}, "pad_token_id must be below vocab_size"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config is set"),
    ],
)
def test_wrong_field_is_refused_before_any_trial(changes, message):
    with pytest.raises(InputError, match=message) as caught:
        small_model(**changes)
    assert str(caught.value).startswith("config.json: ")


def test_missing_field_says_what_it_counts_as():
    config = {**SMALL, "num_attention_heads": 4}
    del config["num_key_value_heads"]
    with pytest.raises(InputError, match="no multiple of num_key_value_heads 32"):
        FAMILY.complete(config, "config.json")


def test_dropout_and_cache_are_off_in_the_live_model():
    module = FAMILY.build(
        small_model(attention_dropout=0.5, use_cache=True), dtype=torch.float32, kernels={}
    )
    assert module.training
    assert module.config.use_cache is False
    assert {layer.self_attn.attention_dropout for layer in FAMILY.layers(module)} == {0.0}


def test_build_leaves_the_plan_as_it_was():
    model = small_model(rope_scaling={"type": "linear", "factor": 2.0})
    before = repr(model)
    FAMILY.build(model, dtype=torch.bfloat16, kernels={})
    assert repr(model) == before


def test_dtype_of_the_build():
    module = FAMILY.build(small_model(), dtype=torch.bfloat16, kernels={})
    assert {p.dtype for p in module.parameters()} == {torch.bfloat16}


def test_layers_and_embeddings():
    module = FAMILY.build(small_model(tie_word_embeddings=True), dtype=torch.float32, kernels={})
    assert [type(layer).__name__ for layer in FAMILY.layers(module)] == ["Qwen3DecoderLayer"] * 3
    embedding, head = FAMILY.embeddings(module)
    assert embedding.weight is head.weight


def test_implementations_name_what_the_live_modules_are_bound_to():
    module = FAMILY.build(small_model(), dtype=torch.float32, kernels={})
    bound = FAMILY.implementations(module)
    assert bound["attention"].endswith("sdpa_attention_forward")
    assert bound["norm"].endswith("Qwen3RMSNorm.forward")
    assert bound["mlp"].endswith("Qwen3MLP.forward")
    assert bound["loss"] == "autotune.models.kernels.cross_entropy.whole_loss_sum"
    layer = FAMILY.layers(module)[1]
    layer.mlp.forward = type(module.model.norm).forward.__get__(layer.mlp)
    assert "Qwen3RMSNorm" in FAMILY.implementations(module)["mlp"]
    module.set_attn_implementation("eager")
    assert "sdpa" not in FAMILY.implementations(module)["attention"]


def test_matmul_flops_are_those_that_torch_counts():
    model = small_model()
    module = materialised(model)
    with FlopCounterMode(display=False) as counter:
        FAMILY.logits(module, Inputs(torch.arange(20)[None])).sum().backward()
    counts = counter.get_flop_counts()["Global"]
    matmul = sum(n for op, n in counts.items() if op in (torch.ops.aten.mm, torch.ops.aten.addmm))
    keys = sum(range(1, 21))
    attention = 3 * 12 * 4 * 16 * keys / 20
    expected = 20 * (FAMILY.flops_per_token(model.config, [20]) - attention)
    assert matmul == pytest.approx(expected, rel=1e-12)


def test_attention_flops_follow_the_mask():
    config = small_model(
        use_sliding_window=True, sliding_window=4, max_window_layers=1, num_hidden_layers=3
    ).config
    layer, head = qwen3_shape.matmul_parameters(config)
    lengths = [3, 11, 50]
    seen = {None: 0, 4: 0}
    for length in lengths:
        for query in range(length):
            seen[None] += query + 1
            seen[4] += min(query + 1, 4)
    keys = seen[None] + 2 * seen[4]
    expected = 6 * (3 * layer + head) + 12 * 4 * 16 * keys / sum(lengths)
    assert FAMILY.flops_per_token(config, lengths) == pytest.approx(expected, rel=1e-12)


def test_longer_samples_cost_more_per_token():
    config = FAMILY.complete(TINY, "preset")
    short, long = (FAMILY.flops_per_token(config, [n]) for n in (10, 1000))
    assert long - short == pytest.approx(4 * 12 * 4 * 32 * (1001 - 11) / 2)


def test_longrope_needs_lists_of_half_the_head():
    rope = {"rope_type": "longrope", "short_factor": [1.0] * 7, "long_factor": [1.0] * 8}
    with pytest.raises(InputError, match="short_factor as a list of 8 positive numbers"):
        small_model(rope_scaling=rope)
