"""Does a gradient come to every adapter? Asked of a rank with work, and of one without."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from autotune.data.packing import IGNORED, MicroBatch
from autotune.models.family import family_of
from autotune.worker.failures import NumericsError
from autotune.worker.gradients import GradientWatch

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))
from adapted import adapters, filled
from small_qwen3 import small_model

pytest.importorskip("peft")


def watched(*, labels: bool, cut_off: bool = False) -> GradientWatch:
    """One forward and backward of a row of eight tokens."""
    model = small_model()
    module = filled(model, adapters(model))
    ids = torch.arange(8)[None]
    told = ids.roll(-1) if labels else torch.full_like(ids, IGNORED)
    batch = MicroBatch(input_ids=ids, attention_mask=None, position_ids=None, labels=told)
    if cut_off:
        layer = module.model.layers[0].self_attn.q_proj
        layer.forward = layer.base_layer.forward  # as a fused kernel that reads the weight alone
    watch = GradientWatch(family_of("qwen3"), module)
    with watch.watching():
        family_of("qwen3").loss_sum(module, batch).backward()
    return watch


def test_every_adapter_is_trained() -> None:
    watched(labels=True).require_gradients()


def test_a_rank_whose_rows_are_all_fillers_trains_no_adapter_and_is_right() -> None:
    watched(labels=False).require_gradients()


def test_an_adapter_that_is_passed_by_is_told() -> None:
    with pytest.raises(NumericsError, match=r"q_proj is not trained: it was not computed"):
        watched(labels=True, cut_off=True).require_gradients()
