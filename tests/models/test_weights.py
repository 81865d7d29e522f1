"""Start values that come from names, and real weights read one at a time."""

import dataclasses
import json

import pytest
import torch
from safetensors.torch import save_file
from small_qwen3 import FAMILY, materialised, small_model, write_folder

from autotune.errors import InputError
from autotune.models.resolve import resolve_model
from autotune.models.weights import WeightSource, rebuild_buffers


def test_values_come_from_the_name_alone():
    model = small_model()
    module = FAMILY.build(model, dtype=torch.float32, kernels={})
    forwards = WeightSource.of(model, module)
    again = WeightSource.of(model, FAMILY.build(model, dtype=torch.bfloat16, kernels={}))
    names = [(name, p.shape) for name, p in module.named_parameters()]
    first = {name: forwards.tensor(name, shape, device="cpu") for name, shape in names}
    for name, shape in reversed(names):
        torch.manual_seed(hash(name) % 100)
        assert torch.equal(first[name], again.tensor(name, shape, device="cpu"))


def test_drawing_leaves_the_global_generator_alone():
    model = small_model()
    source = WeightSource.of(model, FAMILY.build(model, dtype=torch.float32, kernels={}))
    before = torch.get_rng_state()
    source.tensor("lm_head.weight", (96, 48), device="cpu")
    assert torch.equal(before, torch.get_rng_state())


def test_statistics_and_kinds_of_start():
    model = small_model(attention_bias=True, initializer_range=0.05)
    source = WeightSource.of(model, FAMILY.build(model, dtype=torch.float32, kernels={}))
    embedding = source.tensor("model.embed_tokens.weight", (96, 48), device="cpu")
    assert embedding.dtype == torch.float32
    assert embedding.std() == pytest.approx(0.05, rel=0.05)
    assert embedding.mean().abs() < 0.003
    norm = source.tensor("model.layers.0.self_attn.q_norm.weight", (16,), device="cpu")
    assert torch.equal(norm, torch.ones(16))
    bias = source.tensor("model.layers.0.self_attn.q_proj.bias", (64,), device="cpu")
    assert torch.equal(bias, torch.zeros(64))


def test_names_and_seeds_give_different_values():
    model, other = small_model(), small_model(seed=1)
    module = FAMILY.build(model, dtype=torch.float32, kernels={})
    source = WeightSource.of(model, module)
    q, k = "model.layers.0.mlp.gate_proj.weight", "model.layers.0.mlp.up_proj.weight"
    first = source.tensor(q, (80, 48), device="cpu")
    assert not torch.equal(first, source.tensor(k, (80, 48), device="cpu"))
    assert not torch.equal(first, WeightSource.of(other, module).tensor(q, (80, 48), device="cpu"))


def test_values_are_representable_in_bf16():
    model = small_model()
    source = WeightSource.of(model, FAMILY.build(model, dtype=torch.float32, kernels={}))
    value = source.tensor("lm_head.weight", (96, 48), device="cpu")
    assert torch.equal(value, value.bfloat16().float())


def test_tied_parameters_have_one_value_and_untied_ones_two():
    names = ("model.embed_tokens.weight", "lm_head.weight")
    for tied in (True, False):
        model = small_model(tie_word_embeddings=tied)
        source = WeightSource.of(model, FAMILY.build(model, dtype=torch.float32, kernels={}))
        one, two = (source.tensor(name, (96, 48), device="cpu") for name in names)
        assert torch.equal(one, two) is tied


def test_ties_are_known_after_to_empty_has_split_them():
    model = small_model(tie_word_embeddings=True)
    module = FAMILY.build(model, dtype=torch.float32, kernels={}).to_empty(device="cpu")
    source = WeightSource.of(model, module)
    assert source.canonical["lm_head.weight"] == "model.embed_tokens.weight"


def test_padding_row_starts_at_zero_as_in_the_library():
    model = small_model(pad_token_id=7)
    source = WeightSource.of(model, FAMILY.build(model, dtype=torch.float32, kernels={}))
    value = source.tensor("model.embed_tokens.weight", (96, 48), device="cpu")
    assert value[7].abs().sum() == 0
    assert value[8].abs().sum() > 0


def test_unknown_parameter():
    model = small_model()
    source = WeightSource.of(model, FAMILY.build(model, dtype=torch.float32, kernels={}))
    with pytest.raises(KeyError, match=r"lm_head\.wait"):
        source.tensor("lm_head.wait", (1,), device="cpu")


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "default", "rope_theta": 1e6},
        {"rope_type": "linear", "factor": 3.0},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    ],
    ids=lambda rope: rope["rope_type"],
)
def test_rebuilt_buffers_equal_those_of_a_model_built_normally(rope):
    from transformers import AutoModelForCausalLM

    model = small_model(rope_scaling=rope, max_position_embeddings=128)
    module = FAMILY.build(model, dtype=torch.float32, kernels={})
    normal = dict(AutoModelForCausalLM.from_config(module.config).named_buffers())
    module.to_empty(device="cpu")
    for buffer in module.buffers():
        buffer.fill_(torch.nan)
    rebuild_buffers(module)
    rebuilt = dict(module.named_buffers())
    assert set(rebuilt) == set(normal) != set()
    assert all(torch.equal(rebuilt[name], normal[name]) for name in normal)


def test_buffer_of_another_kind_is_not_left_undefined():
    module = torch.nn.Module()
    module.register_buffer("table", torch.zeros(3))
    with pytest.raises(NotImplementedError, match="table"):
        rebuild_buffers(module)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("shard_size", ["1GB", "20KB"])
def test_real_weights_give_the_librarys_own_logits(tmp_path, tied, shard_size):
    from transformers import AutoModelForCausalLM

    folder = tmp_path / "my model;x"
    write_folder(folder, tie_word_embeddings=tied)
    torch.manual_seed(3)
    template = small_model(tie_word_embeddings=tied)
    config = FAMILY.build(template, dtype=torch.float32, kernels={}).config
    saved = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    saved.save_pretrained(folder, max_shard_size=shard_size)
    assert (folder / "model.safetensors.index.json").exists() is (shard_size == "20KB")

    model = resolve_model(str(folder), load_weights=True)
    assert model.weights == str(folder)
    ids = torch.arange(10)[None]
    with torch.no_grad():
        ours = materialised(model)(input_ids=ids).logits
        theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)(ids).logits
    assert torch.equal(ours, theirs)


def with_weights(folder, **changes):
    """A model whose weights are those of ``folder``, as a rank gets it: nobody checked them."""
    return dataclasses.replace(small_model(**changes), weights=str(folder))


def test_missing_and_misshaped_tensors_are_named(tmp_path):
    save_file({"model.norm.weight": torch.ones(47)}, tmp_path / "model.safetensors")
    model = with_weights(tmp_path)
    source = WeightSource.of(model, FAMILY.build(model, dtype=torch.float32, kernels={}))
    with pytest.raises(InputError, match=r"'model.norm.weight' has shape \[47\].*needs \[48\]"):
        source.tensor("model.norm.weight", (48,), device="cpu")
    with pytest.raises(InputError, match=r"no tensor 'lm_head\.weight'"):
        source.tensor("lm_head.weight", (96, 48), device="cpu")


def test_tied_weight_stored_under_its_other_name(tmp_path):
    write_folder(tmp_path, tie_word_embeddings=True)
    tensors = whole(tie_word_embeddings=True)
    value = tensors["lm_head.weight"] = tensors.pop("model.embed_tokens.weight")
    save_file(tensors, tmp_path / "model.safetensors")
    model = resolve_model(str(tmp_path), load_weights=True)
    source = WeightSource.of(model, FAMILY.build(model, dtype=torch.float32, kernels={}))
    found = source.tensor("model.embed_tokens.weight", (96, 48), device="cpu")
    assert torch.equal(found, value.float())


def test_damaged_file_is_named(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"not a tensor file")
    model = with_weights(tmp_path)
    with pytest.raises(InputError, match=r"model\.safetensors cannot be read"):
        WeightSource.of(model, FAMILY.build(model, dtype=torch.float32, kernels={}))


def test_index_that_names_a_tensor_its_file_lacks(tmp_path):
    save_file({"a": torch.ones(1)}, tmp_path / "one.safetensors")
    index = {"weight_map": {"model.norm.weight": "one.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    model = with_weights(tmp_path)
    source = WeightSource.of(model, FAMILY.build(model, dtype=torch.float32, kernels={}))
    with pytest.raises(InputError, match=r"one\.safetensors lacks the tensor"):
        source.tensor("model.norm.weight", (48,), device="cpu")


def whole(**changes):
    """Tensors of every parameter, in bf16."""
    parameters = FAMILY.parameters(small_model(**changes).config)
    return {p.names[0]: torch.randn(p.shape).bfloat16() for p in parameters}


def _without(name):
    def change(folder, tensors):
        del tensors[name]
        save_file(tensors, folder / "model.safetensors")

    return change


def _replaced(name, value):
    def change(folder, tensors):
        save_file({**tensors, name: value}, folder / "model.safetensors")

    return change


def _raw(content):
    return lambda folder, tensors: (folder / "model.safetensors").write_bytes(content)


def _cut_short(folder, tensors):
    save_file(tensors, folder / "model.safetensors")
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[:-1])


def _index_that_lies(folder, tensors):
    save_file(tensors, folder / "one.safetensors")
    save_file({"a": torch.ones(1)}, folder / "two.safetensors")
    files = dict.fromkeys(tensors, "one.safetensors") | {"lm_head.weight": "two.safetensors"}
    index = {"weight_map": files}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_without("model.layers.2.mlp.up_proj.weight"),
         r"no tensor 'model\.layers\.2\.mlp\.up_proj\.weight'"),
        (_replaced("model.norm.weight", torch.ones(47)), r"shape \[47\].*needs \[48\]"),
        (_replaced("model.norm.weight", torch.ones(48, dtype=torch.int8)), "format I8"),
        (_raw(b""), "damaged or no safetensors file"),
        (_raw(b"xx"), "damaged or no safetensors file"),
        (_raw(b"\xff" * 100), "its first bytes are no header's length"),
        (_raw((2).to_bytes(8, "little") + b"[]"), "damaged or no safetensors file"),
        (_raw((8).to_bytes(8, "little") + b'{"a": 1}'), "damaged or no safetensors file"),
        (_cut_short, "it ends before its data does"),
        (_index_that_lies, r"no tensor 'lm_head\.weight'"),
    ],
)  # fmt: skip
def test_weights_that_do_not_fit_are_known_before_a_launch(change, words, tmp_path):
    write_folder(tmp_path)
    change(tmp_path, whole())
    with pytest.raises(InputError, match=words):
        resolve_model(str(tmp_path), load_weights=True)
    assert resolve_model(str(tmp_path), load_weights=False).weights is None
