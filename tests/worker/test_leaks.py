"""BUG-049: packed samples that see each other are found before anything is timed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support_trials import BF16, make_plan, measured, run_trial

from autotune.contract.outcome import RankRecord

PACKED = {"workload.batching": "packed", "workload.max_tokens": 160}
MODELS = ("qwen3-tiny", "qwen3_moe-tiny")


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
    plan = make_plan(backend, model_name=model, changes={**PACKED, **more})
    assert plan.schedule.distinct_shapes <= 2
    record = measured(run_trial(plan, tmp_path), tmp_path)[0]
    first, *later = record.measurement.checks
    first_expected, *later_expected = expected.measurement.checks
    assert first.loss == pytest.approx(first_expected.loss, rel=1e-5)
    assert first.grad_norm == pytest.approx(first_expected.grad_norm, rel=1e-5)
    for check, wanted in zip(later, later_expected, strict=True):
        assert check.loss == pytest.approx(wanted.loss, rel=1e-4)
        assert check.grad_norm == pytest.approx(wanted.grad_norm, rel=1e-3)
    for name, value in PACKED.items():
        assert record.measurement.read_back[name].actual == value


def test_bf16_packs_without_a_false_alarm(tmp_path: Path) -> None:
    plan = make_plan("fsdp2", changes=PACKED, precision=BF16)
    measured(run_trial(plan, tmp_path), tmp_path)


@pytest.mark.parametrize("backend", ["fsdp2", "zero3"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_mask_without_boundaries_is_a_numerics_failure(
    backend: str, precision: str, tmp_path: Path
) -> None:
    if (backend, precision) == ("zero3", "bf16"):
        pytest.skip("one engine is enough in bf16")
    more = {"precision": BF16} if precision == "bf16" else {}
    plan = make_plan(backend, changes=PACKED, **more)
    records = run_trial(plan, tmp_path, fault="faults:boundaries_lost")
    first = min((r for r in records if r is not None), key=lambda record: record.error.at)
    assert first.error.kind == "numerics"
    assert first.error.phase == "check"
    assert "packed samples see each other through attention of layer 0" in first.error.message
    assert "sdpa_attention_forward" in first.error.message


def test_a_leak_on_one_rank_ends_them_all(tmp_path: Path) -> None:
    """Naming the layer is a forward of its own, which the other ranks must run too."""
    plan = make_plan("fsdp2", changes=PACKED)
    records = run_trial(plan, tmp_path, fault="faults:boundaries_lost_on_rank_1")
    assert [record.error.kind for record in records] == ["numerics"] * 2


def test_a_hybrid_forced_to_pack_is_found_leaking(tmp_path: Path) -> None:
    """Its space drops the choice; if it came through all the same, it would not be timed."""
    plan = make_plan("fsdp2", model_name="qwen3_5-tiny", changes=PACKED)
    records = run_trial(plan, tmp_path)
    first = min((r for r in records if r is not None), key=lambda record: record.error.at)
    assert first.error.kind == "numerics"
    assert "through linear attention of layer 0" in first.error.message
    assert "torch_chunk_gated_delta_rule" in first.error.message
