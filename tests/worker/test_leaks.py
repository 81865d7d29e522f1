"""BUG-049: packed samples that see each other are found before anything is timed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support_trials import BF16, make_plan, measured, run_trial

from autotune.contract.outcome import RankRecord

pytestmark = pytest.mark.slow

PACKED = {"workload.batching": "packed", "workload.max_tokens": 160}
MODELS = ("qwen3-tiny", "qwen3_moe-tiny", "qwen3_5-tiny")
OBEY = {"kernel.linear_attention": "fla", "kernel.convolution": "causal_conv1d"}
STAND_INS = "faults:packages_that_obey"
"""Stand-ins for the packages of the hybrid's kernels, which need a GPU."""


@pytest.fixture(autouse=True)
def _faults_on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    here = str(Path(__file__).parent)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([here, os.environ.get("PYTHONPATH", "")]))


@pytest.fixture(scope="module", params=MODELS)
def padded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, RankRecord]:
    path = tmp_path_factory.mktemp("padded")
    return request.param, measured(
        run_trial(make_plan("fsdp2", model_name=request.param), path), path
    )[0]


def packed(backend: str, model: str, **more: object) -> dict[str, object]:
    """Changes of a plan that packs, with kernels that obey boundaries."""
    return {**PACKED, **(OBEY if model == "qwen3_5-tiny" else {}), **more}


@pytest.mark.parametrize(
    ("backend", "more"),
    [
        ("fsdp2", {}),
        ("zero3", {"zero3.stage3_param_persistence_threshold": 0}),
        ("zero3", {"workload.activation_checkpointing": "full"}),
    ],
)
def test_packed_computes_what_padded_does(
    backend: str, more: dict[str, object], padded: tuple[str, RankRecord], tmp_path: Path
) -> None:
    model, expected = padded
    changes = packed(backend, model, **more)
    plan = make_plan(backend, model_name=model, changes=changes)
    assert plan.schedule.distinct_shapes == 1
    record = measured(run_trial(plan, tmp_path, fault=STAND_INS), tmp_path)[0]
    first, *later = record.measurement.checks
    first_expected, *later_expected = expected.measurement.checks
    assert first.loss == pytest.approx(first_expected.loss, rel=1e-5)
    assert first.grad_norm == pytest.approx(first_expected.grad_norm, rel=1e-5)
    for check, wanted in zip(later, later_expected, strict=True):
        assert check.loss == pytest.approx(wanted.loss, rel=1e-4)
        assert check.grad_norm == pytest.approx(wanted.grad_norm, rel=1e-3)
    for name, value in changes.items():
        assert record.measurement.read_back[name].actual == value


@pytest.mark.parametrize("padded", ["qwen3_5-tiny"], indirect=True)
def test_the_other_convolution_computes_the_same(
    padded: tuple[str, RankRecord], tmp_path: Path
) -> None:
    model, expected = padded
    changes = packed("fsdp2", model, **{"kernel.convolution": "fla"})
    plan = make_plan("fsdp2", model_name=model, changes=changes)
    record = measured(run_trial(plan, tmp_path, fault=STAND_INS), tmp_path)[0]
    first, wanted = record.measurement.checks[0], expected.measurement.checks[0]
    assert first.loss == pytest.approx(wanted.loss, rel=1e-5)
    assert first.grad_norm == pytest.approx(wanted.grad_norm, rel=1e-5)
    bound = record.measurement.implementations
    assert bound["convolution"] == "fla.modules.causal_conv1d.causal_conv1d"
    assert bound["linear attention"] == "fla.ops.gated_delta_rule.chunk_gated_delta_rule"


@pytest.mark.parametrize("model", ["qwen3-tiny", "qwen3_5-tiny"])
def test_bf16_packs_without_a_false_alarm(model: str, tmp_path: Path) -> None:
    plan = make_plan("fsdp2", model_name=model, changes=packed("fsdp2", model), precision=BF16)
    measured(run_trial(plan, tmp_path, fault=STAND_INS), tmp_path)


@pytest.mark.parametrize(
    ("backend", "model", "precision", "fault", "through"),
    [
        ("fsdp2", "qwen3-tiny", "fp32", "masks", "attention of layer 0"),
        ("fsdp2", "qwen3-tiny", "bf16", "masks", "attention of layer 0"),
        ("zero3", "qwen3-tiny", "fp32", "masks", "attention of layer 0"),
        ("fsdp2", "qwen3_5-tiny", "fp32", "masks", "attention of layer 3"),
        ("fsdp2", "qwen3_5-tiny", "fp32", "delta rule", "linear attention of layer 0"),
        ("fsdp2", "qwen3_5-tiny", "bf16", "delta rule", "linear attention of layer 0"),
        ("fsdp2", "qwen3_5-tiny", "fp32", "convolution", "convolution of layer 0"),
        ("fsdp2", "qwen3_5-tiny", "bf16", "convolution", "convolution of layer 0"),
        ("zero3", "qwen3_5-tiny", "fp32", "convolution", "convolution of layer 0"),
    ],
)
def test_a_part_without_boundaries_is_a_numerics_failure(
    backend: str, model: str, precision: str, fault: str, through: str, tmp_path: Path
) -> None:
    more = {"precision": BF16} if precision == "bf16" else {}
    plan = make_plan(backend, model_name=model, changes=packed(backend, model), **more)
    planted = f"faults:{fault.replace(' ', '_')}_without_boundaries"
    error = first_error(run_trial(plan, tmp_path, fault=planted))
    assert error.kind == "numerics"
    assert error.phase == "check"
    assert f"packed samples see each other through {through} (" in error.message
    if fault == "masks":
        assert "sdpa_attention_forward" in error.message


def test_a_leak_is_named_where_layers_are_compiled(tmp_path: Path) -> None:
    """Before anything is compiled: a leak costs no compilation."""
    plan = make_plan("fsdp2", changes={**PACKED, "kernel.compile": "layer"}, processes=1)
    records = run_trial(plan, tmp_path, fault="faults:masks_without_boundaries")
    error = first_error(records)
    assert error.kind == "numerics"
    assert "through attention of layer 0 (" in error.message


def first_error(records: list[RankRecord | None]):
    """The error of the rank that failed first."""
    return min((r for r in records if r is not None), key=lambda record: record.error.at).error


def test_a_leak_on_one_rank_ends_them_all(tmp_path: Path) -> None:
    """Naming the layer is a forward of its own, which the other ranks must run too."""
    plan = make_plan("fsdp2", changes=PACKED)
    records = run_trial(plan, tmp_path, fault="faults:masks_without_boundaries_on_rank_1")
    assert [record.error.kind for record in records] == ["numerics"] * 2


@pytest.mark.parametrize(
    ("changes", "kernel"),
    [
        ({}, "linear attention of layer 0"),
        ({"kernel.convolution": "fla"}, "linear attention of layer 0"),
        ({"kernel.linear_attention": "fla"}, "convolution of layer 0"),
    ],
)
def test_a_hybrid_forced_to_pack_is_found_leaking(
    changes: dict[str, str], kernel: str, tmp_path: Path
) -> None:
    """Such a configuration is not launched; if it were all the same, it would not be timed."""
    plan = make_plan("fsdp2", model_name="qwen3_5-tiny", changes={**PACKED, **changes})
    error = first_error(run_trial(plan, tmp_path, fault=STAND_INS))
    assert error.kind == "numerics"
    assert "packed samples see each other through" in error.message
    assert kernel in error.message or not changes
    assert "transformers.models.qwen3_5.modeling_qwen3_5." in error.message
