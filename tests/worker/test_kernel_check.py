"""BUG-054: a kernel beside its reference, in a real rank; wrong ones, planted, are told."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from support_trials import BF16, FP32, make_plan, run_trial

from autotune.contract.kernels import KernelCheck
from autotune.contract.outcome import RankRecord
from autotune.contract.plan import Plan
from autotune.worker import kernel_check


def check_plan(knob: str, choice: str, *, packed: bool = False, **more) -> Plan:
    changes = {knob: choice}
    if packed:
        changes |= {"workload.batching": "packed", "workload.max_tokens": 128}
    plan = make_plan("fsdp2", changes=changes, verify=(knob,), purpose="kernel", **more)
    alone = dataclasses.replace(plan.topology, processes=1, devices_per_node=1)
    return dataclasses.replace(plan, topology=alone)


def run(plan: Plan, path: Path, fault: str | None = None) -> RankRecord:
    path.mkdir(parents=True, exist_ok=True)
    named = None if fault is None else f"faults:{fault}"
    (record,) = run_trial(plan, path, fault=named, limit_s=300)
    assert record is not None
    return record


def checked(plan: Plan, path: Path, fault: str | None = None) -> KernelCheck:
    record = run(plan, path, fault)
    assert record.error is None, record.error.traceback
    assert record.kernel is not None
    return record.kernel


@pytest.mark.parametrize("precision", [FP32, BF16], ids=["fp32", "bf16"])
def test_the_chunked_loss_passes_at_the_whole_vocabulary(precision, tmp_path: Path) -> None:
    found = checked(check_plan("kernel.loss", "chunked", precision=precision), tmp_path)
    assert found.passed, found.reason
    assert found.error is not None
    assert found.error <= found.allowed
    # Loss, hidden states and each weight of one layer; and at the head: six more.
    assert found.num_tensors > 12
    assert found.versions["torch"]


def test_attention_with_boundaries_passes_over_padded_and_over_packed_rows(tmp_path: Path) -> None:
    """Its kernel needs a GPU; what leads to it and back is ours, and does not."""
    plan = check_plan("kernel.attention", "varlen", packed=True)
    found = checked(plan, tmp_path, "sdpa_in_disguise")
    assert found.passed, found.reason
    assert [("packed" in case) for case in found.cases] == [False, True]


@pytest.mark.slow
def test_a_compiled_layer_passes(tmp_path: Path) -> None:
    found = checked(check_plan("kernel.compile", "layer"), tmp_path)
    assert found.passed, found.reason


@pytest.mark.parametrize(
    ("fault", "tensor"),
    [
        ("chunked_loss_forgets_its_scale", "gradient of the head's"),
        ("chunked_loss_not_finite", "gradient of"),
        ("chunked_loss_of_fillers", "(all labels ignored)"),
    ],
)
def test_a_wrong_kernel_is_told_by_its_worst_tensor(
    fault: str, tensor: str, tmp_path: Path
) -> None:
    found = checked(check_plan("kernel.loss", "chunked"), tmp_path, fault)
    assert not found.passed
    assert tensor in found.tensor
    assert found.tensor in found.reason


def test_attention_that_lets_packed_samples_mix_is_told(tmp_path: Path) -> None:
    """It is right on rows of one sample: only the packed case can show it."""
    plan = check_plan("kernel.attention", "varlen", packed=True)
    found = checked(plan, tmp_path, "sdpa_that_ignores_boundaries")
    assert not found.passed
    assert "packed into 128 tokens" in found.tensor


def test_a_kernel_that_is_not_bound_is_not_in_effect(tmp_path: Path) -> None:
    record = run(check_plan("kernel.loss", "chunked"), tmp_path, "loss_falls_back")
    assert record.error is not None
    assert record.error.kind == "not_in_effect"


def test_a_kernel_that_crashes_leaves_its_error(tmp_path: Path) -> None:
    record = run(check_plan("kernel.loss", "chunked"), tmp_path, "chunked_loss_raises")
    assert record.error is not None
    assert record.error.phase == "check"
    assert "no backward for this shape" in record.error.message


def test_a_reference_that_is_not_finite_in_the_format_excuses_nothing() -> None:
    truth = {"loss": torch.ones(2)}
    broken = {"loss": torch.tensor([1.0, float("inf")])}
    right, wrong = ({"loss": torch.tensor([1.0, value])} for value in (1.001, 2.0))
    (one,) = kernel_check.differ(right, truth, broken, "bf16", "")
    (other,) = kernel_check.differ(wrong, truth, broken, "bf16", "")
    assert one.share <= 1.0 < other.share
