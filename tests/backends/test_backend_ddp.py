"""What DDP is told, what cannot hold, and its anchors: pure functions."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from support_trials import BF16, FP32, make_plan

from autotune.backends.ddp import DdpBackend
from autotune.contract.plan import Precision, Topology

BACKEND = DdpBackend()
WORKLOAD = make_plan("ddp").workload


def _topology(processes: int) -> Topology:
    return Topology(processes=processes, device="cpu", devices_per_node=processes)


@pytest.mark.parametrize(
    ("cut", "processes", "words"),
    [
        ({"workload.micro_batch": 2}, 2, "makes 4, and 8 would make 1"),
        ({"workload.micro_batch": 8}, 1, "makes 2, and 16 would make 1"),
        ({"workload.micro_batch": None, "workload.max_tokens": 4096}, 2, "max_tokens"),
    ],
)
def test_a_static_graph_needs_one_micro_step(
    cut: dict[str, Any], processes: int, words: str
) -> None:
    config = {"ddp.static_graph": True, **cut}
    assert words in str(BACKEND.validate(config, WORKLOAD, _topology(processes)))
    config["ddp.static_graph"] = False
    assert BACKEND.validate(config, WORKLOAD, _topology(processes)) is None


@pytest.mark.parametrize(("rows", "processes"), [(8, 2), (16, 1), (4, 4)])
def test_one_micro_step_allows_a_static_graph(rows: int, processes: int) -> None:
    config = {"ddp.static_graph": True, "workload.micro_batch": rows}
    assert BACKEND.validate(config, WORKLOAD, _topology(processes)) is None


@pytest.mark.parametrize(
    ("precision", "words"),
    [
        (FP32, None),
        (BF16, None),
        (Precision(compute="bf16", master="bf16", accumulate="bf16", reduce="bf16"), None),
        (dataclasses.replace(BF16, reduce="bf16"), "reduce bf16"),
        (dataclasses.replace(BF16, accumulate="bf16"), "accumulate bf16"),
        (Precision(compute="fp32", master="bf16", accumulate="bf16", reduce="bf16"), "twice"),
    ],
)
def test_gradients_have_the_format_of_the_weights(precision: Precision, words: str | None) -> None:
    workload = dataclasses.replace(WORKLOAD, precision=precision)
    refused = BACKEND.validate({}, workload, _topology(2))
    assert refused is None if words is None else words in str(refused)


def test_anchors_are_valid_and_start_from_the_defaults() -> None:
    defaults = {knob.full_name: knob.default for knob in BACKEND.knobs}
    anchors = BACKEND.anchors(WORKLOAD)
    assert anchors["engine_defaults"] == defaults
    for values in anchors.values():
        assert values.keys() == defaults.keys()
        config = {**values, "workload.micro_batch": 1}
        assert BACKEND.validate(config, WORKLOAD, _topology(2)) is None


def test_rendering_is_explicit() -> None:
    changes = {"ddp.bucket_cap_mb": 7, "ddp.gradient_as_bucket_view": True}
    rendered = BACKEND.render(make_plan("ddp", changes=changes, precision=BF16, clipping=0.5))
    assert rendered["ddp"] == {
        "bucket_cap_mb": 7,
        "gradient_as_bucket_view": True,
        "static_graph": False,
        "find_unused_parameters": False,
        "broadcast_buffers": True,
    }
    assert rendered["precision"]["bf16_copy"] is True
    assert rendered["master_dtype"] == "fp32"
    assert rendered["gradient_clipping"] == 0.5
    assert BACKEND.render(make_plan("ddp"))["precision"]["bf16_copy"] is False


def test_the_default_bucket_is_torchs_own_rule() -> None:
    """A stated 25 would lose the first bucket of 1 MiB."""
    assert BACKEND.render(make_plan("ddp"))["ddp"]["bucket_cap_mb"] is None
