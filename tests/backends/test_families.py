"""Every model family under every backend: two real ranks, the same numbers, its own kernels."""

from __future__ import annotations

from pathlib import Path

import pytest
from support_trials import make_plan, measured, run_trial

from autotune.contract.outcome import RankRecord

MODELS = ("qwen3_moe-tiny", "qwen3_5-tiny")


def _run(backend: str, model: str, path: Path, **more: object) -> RankRecord:
    plan = make_plan(backend, model_name=model, global_batch=8, max_length=48, **more)
    first, second = measured(run_trial(plan, path), path)
    assert first.measurement.checks == second.measurement.checks
    return first


@pytest.fixture(scope="module", params=MODELS)
def reference(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, RankRecord]:
    path = tmp_path_factory.mktemp("reference")
    return request.param, _run("fsdp2", request.param, path)


@pytest.mark.parametrize(
    "changes",
    [
        {"zero3.stage3_param_persistence_threshold": 0},
        {"workload.micro_batch": 4, "workload.activation_checkpointing": "full"},
        {"workload.max_tokens": 100, "workload.batching": "sorted"},
        {"deepspeed.zero_stage": 1, "workload.max_tokens": 64},
        {"deepspeed.zero_stage": 2, "workload.activation_checkpointing": "full"},
    ],
    ids=["partition all", "checkpointing", "by tokens", "stage 1", "stage 2"],
)
def test_zero_computes_what_fsdp2_does(
    changes: dict[str, object], reference: tuple[str, RankRecord], tmp_path: Path
) -> None:
    model, expected = reference
    backend = "deepspeed" if "deepspeed.zero_stage" in changes else "zero3"
    record = _run(backend, model, tmp_path, changes=changes)
    first, *later = record.measurement.checks
    first_expected, *later_expected = expected.measurement.checks
    assert first.loss == pytest.approx(first_expected.loss, rel=1e-5)
    assert first.grad_norm == pytest.approx(first_expected.grad_norm, rel=1e-5)
    for check, wanted in zip(later, later_expected, strict=True):
        assert check.loss == pytest.approx(wanted.loss, rel=1e-4)
        assert check.grad_norm == pytest.approx(wanted.grad_norm, rel=1e-3)
    assert record.measurement.implementations == expected.measurement.implementations
    # Only stage 3 gathers weights, so only there are experts gathered as a whole.
    experts = model == "qwen3_moe-tiny" and backend == "zero3"
    leaves = ["Qwen3MoeSparseMoeBlock"] if experts else None
    assert record.measurement.notes.get("z3_leaf_modules") == leaves


def test_each_layer_type_says_what_it_is_bound_to(reference: tuple[str, RankRecord]) -> None:
    """BUG-052: the implementation of each layer type, as the live model has it."""
    model, record = reference
    bound = record.measurement.implementations
    assert bound["attention"].endswith("sdpa_attention_forward")
    if model == "qwen3_moe-tiny":
        assert bound["experts"].endswith("grouped_mm_experts_forward")
        assert "mlp" not in bound
    else:
        assert bound["linear attention"].endswith("torch_chunk_gated_delta_rule")
        assert bound["convolution"].endswith("causal_conv1d_fn")
        assert "Qwen3_5RMSNormGated" in bound["norm"]
