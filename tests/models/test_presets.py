"""Presets have the published sizes: counted by our formulas, and in the library's own model."""

import pytest
import torch

from autotune.models.family import family_of
from autotune.models.presets import PRESETS
from autotune.models.resolve import resolve_model

PUBLISHED = {
    # Billions, as the model cards round them: all parameters, and those without embeddings (both
    # tables where they are not tied).
    "qwen3-0.6b": ("0.6", "0.44"),
    "qwen3-1.7b": ("1.7", "1.4"),
    "qwen3-4b": ("4.0", "3.6"),
    "qwen3-8b": ("8.2", "6.95"),
    "qwen3-14b": ("14.8", "13.2"),
    "qwen3-32b": ("32.8", "31.2"),
    "qwen3-30b-a3b": ("30.5", "29.9"),
    "qwen3-235b-a22b": ("235", "234"),
    # Qwen3.5's cards give the name's number only, for the whole model; its vision part is a few
    # hundred million.
    "qwen3_5-0.8b": ("0.8", None),
    "qwen3_5-2b": ("2", None),
    "qwen3_5-4b": ("4", None),
    "qwen3_5-9b": ("9", None),
    "qwen3_5-27b": ("27", None),
}
ACTIVE = {"qwen3-30b-a3b": 3.3, "qwen3-235b-a22b": 22.0}
"""Billions of parameters that a token is computed with, embeddings included; the cards cut off what
follows (3.35, 22.2)."""
TIED = ("qwen3-0.6b", "qwen3-1.7b", "qwen3-4b", "qwen3_5-0.8b", "qwen3_5-2b", "qwen3_5-4b")


def billions(number: float, like: str) -> str:
    """The number with as many decimals as the published one has."""
    return f"{number / 1e9:.{len(like.partition('.')[2])}f}"


def test_every_preset_has_a_published_size_but_the_tiny_ones():
    assert {name for name in PRESETS if not name.endswith("-tiny")} == PUBLISHED.keys()


@pytest.mark.parametrize("name", PRESETS)
def test_preset_counts_what_the_library_builds_on_the_meta_device(name):
    model = resolve_model(name, load_weights=False)
    family = family_of(model.family)
    module = family.build(model, dtype=torch.bfloat16, kernels={})
    assert {p.device.type for p in module.parameters()} == {"meta"}
    library = {name: tuple(p.shape) for name, p in module.named_parameters()}
    assert {p.names[0]: p.shape for p in family.parameters(model.config)} == library
    assert model.num_parameters == sum(p.numel() for p in module.parameters())
    embedding, head = family.embeddings(module)
    assert (head.weight is embedding.weight) == (name in TIED or name.endswith("-tiny"))


@pytest.mark.parametrize("name", PUBLISHED)
def test_preset_has_the_published_number_of_parameters(name):
    model = resolve_model(name, load_weights=False)
    total, without = PUBLISHED[name]
    assert billions(model.num_parameters, total) == total
    if without is not None:
        tables = 1 if name in TIED else 2
        embeddings = tables * model.config["vocab_size"] * model.config["hidden_size"]
        assert billions(model.num_parameters - embeddings, without) == without


@pytest.mark.parametrize("name", ACTIVE)
def test_active_experts_have_the_published_number_of_parameters(name):
    model = resolve_model(name, load_weights=False)
    config = model.config
    expert = 3 * config["hidden_size"] * config["moe_intermediate_size"]
    idle = config["num_hidden_layers"] * (config["num_experts"] - config["num_experts_per_tok"])
    active = (model.num_parameters - idle * expert) / 1e9
    assert ACTIVE[name] <= active < ACTIVE[name] * 1.02


def test_the_hybrid_presets_have_an_attention_layer_in_four():
    for name in PRESETS:
        if name.startswith("qwen3_5"):
            kinds = resolve_model(name, load_weights=False).config["layer_types"]
            assert kinds == [*["linear_attention"] * 3, "full_attention"] * (len(kinds) // 4)
