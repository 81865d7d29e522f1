"""Which attention a model's class supports: read from the library's text and tried on the class."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from small_qwen3 import small_model
from test_hybrid_and_experts import HYBRID, MOE, model_of

from autotune.models.family import family_of
from autotune.models.kernels import attention, library
from autotune.models.kernels.choice import KernelRefusedError

FAMILIES = {"qwen3": None, "qwen3_moe": MOE, "qwen3_5": HYBRID}


@pytest.mark.parametrize("family", [*FAMILIES, "llama", "gpt_oss"])
def test_what_is_read_is_what_the_class_says(family: str) -> None:
    found = library.causal_class(family)
    assert found is not None
    real = getattr(__import__("transformers"), found.name)
    assert found.switches == {name: getattr(real, name) for name in found.switches}
    assert set(attention.SWITCHES.values()) <= found.switches.keys()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("choice", ["sdpa", "flex_attention", "varlen"])
def test_a_choice_is_refused_where_the_library_refuses_to_build_with_it(
    family: str, choice: str
) -> None:
    base = FAMILIES[family]
    model = small_model() if base is None else model_of(base)
    assert model.family == family

    def build() -> None:
        family_of(family).build(model, dtype=torch.float32, kernels={"attention": choice})

    reason = attention.LAYER.refused(family, choice)
    if reason is None:
        build()
    else:
        assert (family, choice) == ("qwen3_5", "flex_attention")
        assert "Qwen3_5ForCausalLM of transformers" in reason
        with pytest.raises(KernelRefusedError, match="does not support"):
            build()


ROOT = """
class PreTrainedModel(nn.Module, Mixin):
    _supports_sdpa: bool = False  # by default
    _supports_flash_attn: bool = False
    _supports_flex_attn: bool = False
"""
OWN = """
class XLayer(nn.Module):
    _supports_sdpa = False

class XPreTrainedModel(PreTrainedModel):
    _supports_sdpa = True  # it does

    _supports_flash_attn = True

    def forward(self):
        return self._supports_flash_attn == False
    _supports_flex_attn = is_there()

class XForCausalLM(
    XPreTrainedModel, Generation
):
    _supports_flash_attn = False
"""


@pytest.mark.parametrize(
    ("root", "own", "found"),
    [
        # A computed switch is not known.
        (ROOT, OWN, {"_supports_sdpa": True, "_supports_flash_attn": False}),
        (ROOT, OWN.replace("(PreTrainedModel)", "(Elsewhere)"), None),
        (ROOT, OWN.replace("ForCausalLM", "ForSomethingElse"), None),
        (ROOT, f"{OWN}class YForCausalLM(XPreTrainedModel):\n    pass\n", None),
        ("", OWN, None),
    ],
)
def test_what_the_text_does_not_say_is_not_known(
    root: str, own: str, found: dict[str, bool] | None, tmp_path: Path
) -> None:
    (tmp_path / "models" / "x").mkdir(parents=True)
    (tmp_path / "modeling_utils.py").write_text(root)
    (tmp_path / "models" / "x" / "modeling_x.py").write_text(own)
    one = library.read_class(tmp_path, "x")
    assert (None if one is None else one.switches) == found
    assert library.read_class(tmp_path, "y") is None


def test_an_unknown_family_and_a_missing_library_refuse_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert attention.LAYER.refused("no_such_family", "flex_attention") is None
    monkeypatch.setattr(library, "causal_class", lambda family: None)
    assert attention.LAYER.refused("qwen3_5", "flex_attention") is None
