"""Folders of the two families as the library itself saves them, and as they are published."""

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    Qwen3_5Config,
    Qwen3_5ForConditionalGeneration,
)

from autotune.errors import InputError
from autotune.models.family import family_of
from autotune.models.presets import PRESETS
from autotune.models.resolve import resolve_model
from autotune.models.weights import WeightSource

VISION = {"depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2}


def experts():
    fields = {**PRESETS["qwen3_moe-tiny"], "mlp_only_layers": [1]}
    return AutoModelForCausalLM.from_config(
        AutoConfig.for_model(fields.pop("model_type"), **fields)
    )


def whole(tied):
    text = {**PRESETS["qwen3_5-tiny"]["text_config"], "tie_word_embeddings": tied}
    del text["model_type"]
    vision = {**VISION, "out_hidden_size": 128}
    config = Qwen3_5Config(text_config=text, vision_config=vision, tie_word_embeddings=tied)
    return Qwen3_5ForConditionalGeneration(config)


@pytest.mark.parametrize(
    ("make", "stored", "prefix"),
    [
        (experts, "model.layers.0.mlp.experts.7.up_proj.weight", "model."),
        (lambda: whole(True), "model.language_model.norm.weight", "model.language_model."),
        (lambda: whole(False), "model.language_model.norm.weight", "model.language_model."),
    ],
    ids=["experts", "multimodal", "multimodal untied"],
)
@pytest.mark.parametrize("shard_size", ["50GB", "1MB"])
def test_real_weights_are_those_of_the_library(make, stored, prefix, shard_size, tmp_path):
    saved = make().to(torch.bfloat16)
    saved.save_pretrained(tmp_path, max_shard_size=shard_size)
    held = [name for file in tmp_path.glob("*.safetensors") for name in load_file(file)]
    assert stored in held
    model = resolve_model(str(tmp_path), load_weights=True)
    module = family_of(model.family).build(model, dtype=torch.float32, kernels={})
    source = WeightSource.of(model, module)
    theirs = dict(saved.named_parameters())
    for name, parameter in module.named_parameters():
        expected = theirs[name.replace("model.", prefix, 1)].float()
        assert torch.equal(source.tensor(name, parameter.shape, device="cpu"), expected), name


def test_an_expert_that_is_missing_is_named_before_a_launch(tmp_path):
    experts().save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    gone = tensors.pop("model.layers.2.mlp.experts.3.gate_proj.weight")
    save_file(tensors, file)
    with pytest.raises(InputError, match=r"no tensor 'model\.layers\.2\.mlp\.experts\.3\.gate"):
        resolve_model(str(tmp_path), load_weights=True)
    wrong = {"model.layers.2.mlp.experts.3.gate_proj.weight": gone[:-1].contiguous()}
    save_file(tensors | wrong, file)
    with pytest.raises(InputError, match=r"shape \[95, 128\].*needs \[96, 128\]"):
        resolve_model(str(tmp_path), load_weights=True)
