"""Kernels are the model's: an export has them as code beside it, and says so."""

from __future__ import annotations

import dataclasses
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo
from accelerate_exports import exported
from study_factory import StudyBuilder, make_plan

from autotune.knobs.kernels import COMPILED_VARIANTS

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
    assert "torch.compile(forward, dynamic=" in code


@pytest.mark.parametrize(("linear", "convolution"), [("fla", "causal_conv1d"), ("torch", "torch")])
def test_kernels_that_packages_bring_are_named(
    study: StudyBuilder, unasked: None, linear: str, convolution: str
) -> None:
    """Torch's functions too: the library would take a package that production has."""
    workload = make_plan().training
    hybrid = {**workload.model.config, "layer_types": ["linear_attention", "full_attention"]}
    model = dataclasses.replace(workload.model, config=hybrid)
    kernels = {"kernel.linear_attention": linear, "kernel.convolution": convolution}
    result = exported(
        study,
        "fsdp2",
        config=KERNELS | kernels,
        workload=dataclasses.replace(workload, model=model),
    )
    assert not [name for name in result.files if name.endswith("_kernels.py")]
    said = f"kernel.linear_attention={linear}, kernel.convolution={convolution}"
    assert any(said in note for note in result.notes)


def test_compiled_layers_have_the_trials_limit_of_variants(
    study: StudyBuilder, unasked: None
) -> None:
    """Past dynamo's own limit of eight, layers would run as they are without a word."""
    code, _ = code_of(study, compile="layer")
    names: dict[str, Any] = {}
    exec(compile(code, "acc_kernels.py", "exec"), names)
    with torch._dynamo.config.patch(recompile_limit=8):
        names["apply"](decoder_of())
        assert torch._dynamo.config.recompile_limit == COMPILED_VARIANTS


def test_compiled_layers_run_the_forward_of_the_class_that_fsdp2_gives_them(
    study: StudyBuilder, unasked: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """transformers 5.24 checkpoints in the outermost class's forward alone."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    class Layer(GradientCheckpointingLayer):
        def forward(self, hidden: torch.Tensor) -> torch.Tensor:
            return hidden * hidden

    code, _ = code_of(study, compile="layer")
    names: dict[str, Any] = {}
    exec(compile(code, "acc_kernels.py", "exec"), names)
    monkeypatch.setattr(torch, "compile", lambda function, dynamic: function)
    layer, recomputed = Layer(), []
    names["apply"](decoder_of(layer))
    layer.__class__ = type("FSDPLayer", (Layer,), {})
    layer.gradient_checkpointing = True

    def checkpoint(function: Any, *args: Any, **named: Any) -> Any:
        recomputed.append(function)
        return function(*args, **named)

    layer._gradient_checkpointing_func = checkpoint
    layer(torch.ones(2, requires_grad=True))
    assert len(recomputed) == 1


def decoder_of(*layers: Any) -> Any:
    decoder = types.SimpleNamespace(layers=list(layers))
    return types.SimpleNamespace(get_decoder=lambda: decoder)
