"""Kernels are the model's: an export has them as code beside it, and says so."""

from __future__ import annotations

import sys
import types
from pathlib import Path

import pytest
from accelerate_exports import exported
from study_factory import StudyBuilder

KERNELS = {
    "kernel.attention": "sdpa",
    "kernel.norm": "torch",
    "kernel.rope": "torch",
    "kernel.mlp": "torch",
    "kernel.loss": "torch",
    "kernel.compile": "none",
    "kernel.linear_attention": "torch",
    "kernel.convolution": "torch",
}


@pytest.fixture
def study(tmp_path: Path) -> StudyBuilder:
    return StudyBuilder(tmp_path)


def code_of(study: StudyBuilder, backend: str = "fsdp2", **kernels: str) -> tuple[str, str]:
    config = KERNELS | {f"kernel.{name}": choice for name, choice in kernels.items()}
    result = exported(study, backend, config=config)
    names = [name for name in result.files if name.endswith("_kernels.py")]
    return (result.files[names[0]] if names else ""), "\n".join(result.notes)


def test_the_librarys_own_kernels_need_no_code(study: StudyBuilder, unasked: None) -> None:
    code, notes = code_of(study)
    assert code == ""
    assert "kernel" not in notes


def test_liger_is_called_with_every_switch_as_measured(
    study: StudyBuilder, unasked: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, notes = code_of(study, attention="flex_attention", norm="liger", mlp="liger")
    assert "kernel.attention=flex_attention, kernel.norm=liger, kernel.mlp=liger" in notes
    assert "attn_implementation" in notes
    seen: list[dict[str, object]] = []
    package = types.ModuleType("liger_kernel")
    inner = types.ModuleType("liger_kernel.transformers")
    inner.apply_liger_kernel_to_qwen3 = lambda **named: seen.append(named)
    monkeypatch.setitem(sys.modules, "liger_kernel", package)
    monkeypatch.setitem(sys.modules, "liger_kernel.transformers", inner)
    names: dict[str, object] = {}
    exec(compile(code, "acc_kernels.py", "exec"), names)
    model = object()
    assert names["ATTN_IMPLEMENTATION"] == "flex_attention"
    assert names["apply"](model) is model
    assert seen == [
        {
            "rms_norm": True,
            "rope": False,
            "swiglu": True,
            "cross_entropy": False,
            "fused_linear_cross_entropy": False,
            "model": model,
        }
    ]


@pytest.mark.parametrize("backend", ["fsdp2", "ddp", "zero3"])
def test_every_engines_export_has_the_code(
    study: StudyBuilder, unasked: None, backend: str
) -> None:
    code, notes = code_of(study, backend, loss="chunked")
    assert "take_labels(model)" in code
    assert "needs the package" in notes
    compile(code, "acc_kernels.py", "exec")


def test_varlen_is_registered_by_the_code(study: StudyBuilder, unasked: None) -> None:
    code, _ = code_of(study, attention="varlen", compile="layer")
    assert "ATTN_IMPLEMENTATION = 'autotune_varlen'" in code
    names: dict[str, object] = {}
    exec(compile(code, "acc_kernels.py", "exec"), names)
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    assert "autotune_varlen" in ALL_ATTENTION_FUNCTIONS
    assert "torch.compile(layer.forward, dynamic=" in code


def test_kernels_that_packages_bring_are_named(study: StudyBuilder, unasked: None) -> None:
    code, notes = code_of(study, linear_attention="fla", convolution="causal_conv1d")
    assert code == ""
    assert "kernel.linear_attention=fla, kernel.convolution=causal_conv1d" in notes
