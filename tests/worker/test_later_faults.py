"""What goes wrong only after the check iterations: real ranks and engines, planted faults."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from support_trials import NUMERICS, QUICK, make_plan, measured, run_trial

from autotune.contract.folder import AttemptFolder
from autotune.contract.outcome import Outcome, RankRecord
from autotune.contract.plan import Numerics, Plan
from autotune.launchers.base import JobStatus, RankExit
from autotune.search.judging import judge

pytestmark = pytest.mark.slow

LONGER = dataclasses.replace(QUICK, window_iterations=8, window_s=1e4, interval_share=1e-9)


def _judged(plan: Plan, path: Path, fault: str | None) -> tuple[RankRecord, Outcome]:
    planted = None if fault is None else f"later_faults:{fault}"
    records = measured(run_trial(plan, path, fault=planted), path)
    exits = tuple(RankExit(rank=rank, exit_code=0, signal=None) for rank in (0, 1))
    status = JobStatus(state="ended", phase="teardown", exits=exits, submitted_at=0.0, wall_s=99.0)
    return records[0], judge(plan, AttemptFolder(path), status)


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Numerics:
    path = tmp_path_factory.mktemp("baseline")
    record, _ = _judged(make_plan("fsdp2", measuring=LONGER), path, None)
    first = record.measurement
    assert first is not None
    assert len(first.losses) == len(first.warmup_s) + len(first.iteration_s)
    assert first.losses[-1] == first.final_loss
    return dataclasses.replace(
        NUMERICS,
        reference=first.checks,
        implementations=first.implementations,
        losses=first.losses,
        grad_norms=first.grad_norms,
    )


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("loss_a_fifth_off_later", "the mean loss of iterations "),
        ("gradients_four_times_later", "the mean gradient norm of iterations "),
    ],
)
def test_numbers_that_leave_the_baselines_when_the_check_is_over(
    fault: str, words: str, gate: Numerics, tmp_path: Path
) -> None:
    """BUG-043: the loss path of a trial is the baseline's, not only its beginning."""
    plan = make_plan("fsdp2", measuring=LONGER, numerics=gate)
    _, outcome = _judged(plan, tmp_path, fault)
    assert outcome.failure is not None
    assert outcome.failure.kind == "numerics"
    assert outcome.failure.phase == "measure"
    assert outcome.failure.reason.startswith(words)
    assert outcome.failure.measured_s_per_it is not None


@pytest.mark.parametrize("backend", ["zero3", "fsdp2", "ddp"])
def test_the_baselines_path_and_values_are_no_fault(
    backend: str, gate: Numerics, tmp_path: Path
) -> None:
    changes = {"workload.activation_checkpointing": "full", "workload.micro_batch": 4}
    plan = make_plan(backend, measuring=LONGER, changes=changes, numerics=gate)
    _, outcome = _judged(plan, tmp_path, None)
    assert outcome.failure is None
    assert outcome.measurement.gaps["cycle_loss"].apart < 1e-3
    assert outcome.measurement.gaps["cycle_grad_norm"].apart < 1e-2


def test_a_value_that_the_engine_changes_on_its_way_is_not_in_effect(tmp_path: Path) -> None:
    changes = {"zero3.reduce_bucket_size": 1_000_000}
    plan = make_plan("zero3", measuring=LONGER, changes=changes)
    _, outcome = _judged(plan, tmp_path, "bucket_changed_on_the_way")
    assert outcome.failure is not None
    assert outcome.failure.kind == "not_in_effect"
    assert "zero3.reduce_bucket_size was set to 1000000" in outcome.failure.reason
    assert "has 77" in outcome.failure.reason


@pytest.mark.parametrize("stage", [2, 3])
def test_iterations_without_an_update_are_not_in_effect(stage: int, tmp_path: Path) -> None:
    """At this learning rate the losses are the same to five digits."""
    changes = {"deepspeed.zero_stage": stage}
    plan = make_plan("deepspeed", changes=changes, processes=1, lr=1e-8)
    (record,) = run_trial(plan, tmp_path, fault="later_faults:weights_that_stay")
    assert record is not None
    assert record.error is not None
    assert record.error.kind == "not_in_effect"
    assert "the optimizer updated the weights 0 times in " in record.error.message
