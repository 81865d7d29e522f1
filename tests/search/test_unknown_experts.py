"""What is said of experts under ZeRO-3 before the first launch (BUG-035)."""

from __future__ import annotations

import pytest
from support_trials import make_plan

from autotune.models.qwen3_moe import Qwen3MoeFamily
from autotune.search.experts import unknown_experts
from autotune.space.loader import parse_space

TEXT = "version: 1\nbackend: {}\nworkload: {{model: {}, global_batch: 16}}\nparams:\n"


def said(backend: str = "zero3", model: str = "qwen3_moe-tiny") -> str | None:
    space = parse_space(
        TEXT.format(backend, model) + "  micro_batch: {choices: [1, 2]}\n", file="space.yaml"
    )
    return unknown_experts(space, make_plan("ddp", model_name=model).training)


def test_experts_that_the_family_names_need_no_word() -> None:
    assert said() is None
    assert said(model="qwen3-tiny") is None


def test_a_family_that_names_no_class_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Qwen3MoeFamily, "leaf_classes", ())
    text = said()
    assert text is not None
    assert "the family qwen3_moe names no class of experts" in text
    assert "ends as hang" in text
    assert said(backend="fsdp2") is None


def test_a_class_that_transformers_does_not_have_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Qwen3MoeFamily, "leaf_classes", ("Qwen3MoeOtherBlock",))
    text = said(backend="deepspeed")
    assert text is not None
    assert "has no class Qwen3MoeOtherBlock for qwen3_moe" in text
