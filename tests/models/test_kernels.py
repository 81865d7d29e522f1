"""The table of kernels: what can run where, what is bound, and that it is read from the model."""

import sys
import types

import pytest
import torch
from small_qwen3 import FAMILY, small_model
from test_hybrid_and_experts import HYBRID, MOE, model_of

from autotune.knobs import kernels as knobs
from autotune.models.family import family_of
from autotune.models.kernels import table
from autotune.models.kernels.choice import (
    KernelNotBoundError,
    KernelRefusedError,
    Machine,
    unavailable,
    version,
)

GPU = Machine(device="cuda", capability=(9, 0), compute="bf16")


def built(model, **kernels):
    family = family_of(model.family)
    module = family.build(model, dtype=torch.float32, kernels=kernels)
    return family, module


@pytest.mark.parametrize("layer", table.LAYERS, ids=lambda layer: layer.knob)
def test_table_and_knobs_name_the_same_choices(layer):
    knob = next(one for one in knobs.KNOBS if one.name == layer.knob)
    assert tuple(choice.name for choice in layer.choices) == knob.choices
    assert knob.default in (None, layer.choices[0].name)
    assert layer.reference in knob.choices


@pytest.mark.parametrize(
    ("knob", "choice", "machine", "words"),
    [
        ("attention", "sdpa", Machine(device="cpu"), None),
        ("attention", "varlen", Machine(device="cpu"), "needs an NVIDIA GPU"),
        ("attention", "varlen", GPU, None),
        (
            "attention",
            "varlen",
            Machine(device="cuda", capability=(7, 5), compute="bf16"),
            "needs compute capability 8.0, and the GPU has 7.5",
        ),
        (
            "attention",
            "varlen",
            Machine(device="cuda", capability=(9, 0), compute="fp32"),
            "computes in bf16, and the workload in fp32",
        ),
        ("attention", "flash_attention_2", GPU, "flash_attn is not installed; to have it: pip"),
        ("attention", "hub_flash_attention_2", GPU, "kernels is not installed; to have it: pip"),
        ("norm", "liger", GPU, "not installed; to have it: pip install liger-kernel"),
        ("loss", "chunked", Machine(device="cpu"), None),
    ],
)
def test_a_choice_that_cannot_run_says_why_and_what_to_do(knob, choice, machine, words):
    """BUG-052. None of these packages is installed where the tests run."""
    assert version("flash_attn") is None
    found = unavailable(table.of_knob(knob).choice(choice), machine)
    assert (found is None) if words is None else (words in found)


def test_without_a_compiler_nothing_is_compiled(monkeypatch):
    monkeypatch.setenv("PATH", "")
    compiled = table.of_knob("compile").choice("layer")
    assert "no C++ compiler" in unavailable(compiled, Machine(device="cpu"))
    for choice in (compiled, table.of_knob("attention").choice("flex_attention")):
        assert "triton is not installed" in unavailable(choice, GPU)


# Of torch's own compiler, when it is first imported.
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.parametrize("base", [None, MOE, HYBRID], ids=["qwen3", "qwen3_moe", "qwen3_5"])
def test_what_is_bound_is_read_from_the_live_model(base):
    model = small_model() if base is None else model_of(base)
    family, module = built(model)
    found = table.bound(family, module)
    defaults = {layer.knob: layer.choices[0].name for layer in table.LAYERS}
    if base is not HYBRID:
        del defaults["linear_attention"], defaults["convolution"]
    assert {knob: found[knob] for knob in defaults} == defaults
    # transformers has no flex attention for hybrids.
    attention = "sdpa" if base is HYBRID else "flex_attention"
    family, module = built(model, attention=attention, loss="chunked", compile="layer")
    assert table.bound(family, module) == {
        **found,
        "attention": attention,
        "loss": "chunked",
        "compile": "layer",
    }
    # Somebody changes it behind our back.
    module.set_attn_implementation("sdpa")
    del module.model.layers[0].forward
    found = table.bound(family, module)
    assert (found["attention"], found["compile"]) == ("sdpa", "some layers")


def test_another_build_of_the_asked_attention_is_not_taken_for_it():
    """BUG-052: transformers puts a hub's kernel under flash attention's own function."""
    family, module = built(small_model())
    name = "kernels-community/another-flash"
    module.config._attn_implementation = name
    from transformers.integrations.flash_attention import flash_attention_forward
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register(name, flash_attention_forward)
    assert table.bound(family, module)["attention"] == name


def test_an_attention_that_the_library_refuses_is_incompatible():
    with pytest.raises(KernelRefusedError, match="refuses attention flash_attention_2"):
        built(small_model(), attention="flash_attention_2")


def liger(monkeypatch, **functions):
    """Liger's module with these functions; the package itself cannot be imported without Triton."""
    package = types.ModuleType("liger_kernel")
    inner = types.ModuleType("liger_kernel.transformers")
    patches = types.ModuleType("liger_kernel.transformers.monkey_patch")
    patches.MODEL_TYPE_TO_APPLY_LIGER_FN = functions
    for module in (package, inner, patches):
        monkeypatch.setitem(sys.modules, module.__name__, module)


def patching_norms(rope=True, rms_norm=True, swiglu=True, model=None):
    assert (rope, rms_norm, swiglu) == (False, True, False)
    for norm in [module for module in model.modules() if "RMSNorm" in type(module).__name__]:

        def forward(self, hidden):
            return hidden

        forward.__module__, forward.__qualname__ = "liger_kernel.x", "LigerRMSNorm.forward"
        norm.forward = types.MethodType(forward, norm)


def patching_nothing(rope=True, rms_norm=True, swiglu=True, model=None):
    pass


def refusing(rope=True, rms_norm=True, swiglu=True, model=None):
    raise NotImplementedError("not available for this model")


def test_only_the_asked_layer_type_is_patched(monkeypatch):
    liger(monkeypatch, qwen3=patching_norms)
    family, module = built(small_model(), norm="liger")
    found = table.bound(family, module)
    assert (found["norm"], found["mlp"], found["rope"]) == ("liger", "torch", "torch")


@pytest.mark.parametrize(
    ("functions", "error", "words"),
    [
        ({"qwen3": patching_nothing}, KernelNotBoundError, "changes nothing: no norm of the model"),
        ({"qwen3": refusing}, KernelRefusedError, "cannot change rms_norm: NotImplementedError"),
        ({"llama": patching_norms}, KernelRefusedError, "for qwen3 does not exist"),
        ({"qwen3": lambda rope, model: None}, KernelRefusedError, "has no rms_norm"),
    ],
)
def test_a_patch_that_does_nothing_is_detected_and_refused(monkeypatch, functions, error, words):
    """BUG-054."""
    liger(monkeypatch, **functions)
    with pytest.raises(error, match=words):
        built(small_model(), norm="liger")


@pytest.mark.parametrize("loss", ["torch", "chunked"])
def test_without_targets_the_model_gives_logits_and_with_them_the_summed_loss(loss):
    from small_qwen3 import Inputs, materialised

    from autotune.models.kernels.cross_entropy import token_loss_sum

    module = materialised(small_model(), loss=loss)
    ids = torch.randint(96, (2, 9), generator=torch.Generator().manual_seed(3))
    batch = Inputs(ids)
    logits = FAMILY.logits(module, batch)
    assert logits.shape == (2, 9, 96)
    found = FAMILY.loss_sum(module, batch).detach()
    assert found.dtype == torch.float32
    assert float(found) == pytest.approx(float(token_loss_sum(logits, ids).detach()), rel=1e-6)


def test_layers_of_each_kind_are_kept_for_a_comparison():
    moe = model_of(MOE, num_hidden_layers=6, mlp_only_layers=[0, 5])
    reduced = family_of("qwen3_moe").one_of_each(moe.config)
    _, module = built(model_of({**MOE, **reduced}))
    assert [hasattr(layer.mlp, "experts") for layer in module.model.layers] == [False, True]
    hybrid = family_of("qwen3_5").one_of_each(model_of(HYBRID).config)
    assert hybrid["layer_types"] == ["linear_attention", "full_attention"]
    assert hybrid["num_hidden_layers"] == 2
