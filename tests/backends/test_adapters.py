"""Adapters beside frozen weights: every engine trains the same, and only them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support_trials import BF16, make_plan, measured, run_trial

from autotune.contract.outcome import RankRecord

pytest.importorskip("peft")

ADAPTERS = {"rank": 4, "alpha": 8.0}
STAGES = {"zero1": 1, "zero2": 2}


def _run(engine: str, path: Path, changes: dict[str, Any] | None = None, **more: Any) -> RankRecord:
    changes = dict(changes or {})
    backend = engine
    if engine in STAGES:
        backend, changes["deepspeed.zero_stage"] = "deepspeed", STAGES[engine]
    plan = make_plan(backend, changes=changes, adapters=ADAPTERS, **more)
    records = measured(run_trial(plan, path), path)
    assert len({record.measurement.checks for record in records}) == 1
    return records[0]


def _same(one: RankRecord, other: RankRecord) -> None:
    first, *later = one.measurement.checks
    first_expected, *later_expected = other.measurement.checks
    assert first.loss == pytest.approx(first_expected.loss, rel=1e-5)
    assert first.grad_norm == pytest.approx(first_expected.grad_norm, rel=1e-5)
    for check, wanted in zip(later, later_expected, strict=True):
        assert check.loss == pytest.approx(wanted.loss, rel=1e-4)
        assert check.grad_norm == pytest.approx(wanted.grad_norm, rel=1e-3)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> RankRecord:
    return _run("fsdp2", tmp_path_factory.mktemp("reference"))


CASES: list[tuple[str, dict[str, Any]]] = [
    ("zero3", {}),
    (
        "zero3",
        {
            "zero3.stage3_param_persistence_threshold": 0,
            "zero3.stage3_prefetch_bucket_size": 0,
            "zero3.reduce_bucket_size": 1,
            "workload.micro_batch": 4,
        },
    ),
    ("zero1", {"workload.micro_batch": 1}),
    ("zero2", {"workload.max_tokens": 64}),
    ("ddp", {"ddp.bucket_cap_mb": 1, "workload.max_tokens": 64}),
    ("ddp", {"ddp.static_graph": True, "workload.micro_batch": 8}),
    (
        "fsdp2",
        {
            "fsdp2.reshard_after_forward": False,
            "fsdp2.layers_per_unit": 2,
            "fsdp2.forward_prefetch": 1,
            "workload.micro_batch": 8,
        },
    ),
    ("fsdp2", {"workload.max_tokens": 64}),
]


@pytest.mark.parametrize(("engine", "changes"), CASES)
def test_every_engine_trains_the_same_adapters(
    engine: str, changes: dict[str, Any], reference: RankRecord, tmp_path: Path
) -> None:
    _same(_run(engine, tmp_path, changes), reference)


@pytest.mark.parametrize("engine", ["zero3", "zero2", "fsdp2", "ddp"])
def test_frozen_weights_do_not_hinder_recomputation(
    engine: str, reference: RankRecord, tmp_path: Path
) -> None:
    """BUG-036: nothing below the first adapter needs a gradient."""
    _same(_run(engine, tmp_path, {"workload.activation_checkpointing": "full"}), reference)


@pytest.mark.parametrize("engine", ["zero3", "fsdp2"])
def test_recomputation_by_autograd_reaches_every_adapter(
    engine: str, reference: RankRecord, tmp_path: Path
) -> None:
    """Without a gradient to its input the first layer would train none of its adapters."""
    changes = {"workload.activation_checkpointing": "full", "workload.use_reentrant": True}
    _same(_run(engine, tmp_path, changes), reference)


def test_the_model_begins_as_without_adapters_and_learns_less(
    reference: RankRecord, tmp_path: Path
) -> None:
    path = tmp_path / "full"
    full, _ = measured(run_trial(make_plan("fsdp2"), path), path)
    first, *_, last = reference.measurement.checks
    assert first.loss == pytest.approx(full.measurement.checks[0].loss, rel=1e-6)
    assert first.grad_norm < 0.5 * full.measurement.checks[0].grad_norm
    assert full.measurement.checks[-1].loss < last.loss < first.loss


@pytest.mark.parametrize("engine", ["zero3", "ddp"])
def test_one_rank_computes_the_same(engine: str, reference: RankRecord, tmp_path: Path) -> None:
    record = _run(engine, tmp_path, processes=1, clipping=0.0)
    one, two = record.measurement.checks[0], reference.measurement.checks[0]
    assert one.loss == pytest.approx(two.loss, rel=1e-5)
    assert one.grad_norm == pytest.approx(two.grad_norm, rel=1e-5)


@pytest.fixture(scope="module")
def rounded(tmp_path_factory: pytest.TempPathFactory) -> RankRecord:
    return _run("fsdp2", tmp_path_factory.mktemp("bf16"), precision=BF16)


@pytest.mark.parametrize("engine", ["zero3", "zero1", "ddp"])
def test_bf16_keeps_float32_masters_of_adapters_only(
    engine: str, rounded: RankRecord, tmp_path: Path
) -> None:
    record = _run(engine, tmp_path, precision=BF16)
    one, other = record.measurement.checks[0], rounded.measurement.checks[0]
    assert one.loss == pytest.approx(other.loss, rel=1e-4)
    assert one.grad_norm == pytest.approx(other.grad_norm, rel=2e-3)


def test_formats_of_frozen_and_trained_weights_are_read_back(rounded: RankRecord) -> None:
    found = {
        name: entry.actual
        for name, entry in rounded.measurement.read_back.items()
        if name.startswith("precision.")
    }
    assert found == {
        "precision.master": "fp32",
        "precision.compute": "bf16",
        "precision.reduce": "fp32",
        "precision.optimizer": "fp32",
    }


@pytest.mark.parametrize("model", ["qwen3_moe-tiny", "qwen3_5-tiny"])
def test_other_families_train_the_same_adapters(model: str, tmp_path: Path) -> None:
    more = {"model_name": model, "global_batch": 8, "max_length": 48}
    one, other = (_run(engine, tmp_path / engine, **more) for engine in ("zero3", "fsdp2"))
    _same(one, other)
    assert one.measurement.implementations == other.measurement.implementations
