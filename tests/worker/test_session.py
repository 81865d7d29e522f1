"""A rank's record in every way that a trial can end. Real ranks, real engines, planted faults."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from support_trials import (
    BF16,
    NUMERICS,
    QUICK,
    launch,
    make_plan,
    measured,
    run_trial,
    start_trial,
)

from autotune.contract.failures import PHASES
from autotune.contract.folder import AttemptFolder
from autotune.contract.outcome import RankRecord
from autotune.contract.plan import Numerics, Plan, Racing
from autotune.launchers.base import JobStatus, RankExit
from autotune.search.judging import judge

pytestmark = pytest.mark.slow


def _failed(plan: Plan, path: Path, fault: str) -> list[RankRecord]:
    path.mkdir(parents=True, exist_ok=True)
    records = run_trial(plan, path, fault=f"faults:{fault}")
    assert all(record is not None for record in records)
    assert all(record.status == "failed" for record in records if record is not None)
    return [record for record in records if record is not None]


def _as(baseline: tuple[RankRecord, ...]) -> Numerics:
    """The gate of a trial that is compared with ``baseline``."""
    measured = baseline[0].measurement
    return dataclasses.replace(
        NUMERICS, reference=measured.checks, implementations=measured.implementations
    )


@pytest.fixture(scope="module")
def baseline(tmp_path_factory: pytest.TempPathFactory) -> tuple[RankRecord, ...]:
    path = tmp_path_factory.mktemp("baseline")
    return tuple(measured(run_trial(make_plan("fsdp2"), path), path))


def test_a_bound_of_the_worst_case_is_above_what_it_needs(
    baseline: tuple[RankRecord, ...], tmp_path: Path
) -> None:
    """Nothing is run for memory far from the limit; with nearly no room beside the margin it is."""
    plan = make_plan("fsdp2")
    assert plan.cut.worst_case_growth > 1.0
    probed = measured(
        run_trial(dataclasses.replace(plan, memory_margin_share=0.999), tmp_path), tmp_path
    )
    for left_out, run in zip(baseline, probed, strict=True):
        assert (left_out.measurement.worst_case_is_bound, run.measurement.worst_case_is_bound) == (
            True,
            False,
        )
        assert left_out.measurement.peak_worst_case_bytes > run.measurement.peak_worst_case_bytes
        assert left_out.phase_s["probe"] < run.phase_s["probe"]


def test_a_measured_rank_tells_everything(baseline: tuple[RankRecord, ...]) -> None:
    record = baseline[0]
    measurement = record.measurement
    assert set(record.phase_s) == set(PHASES)
    assert record.plan_digest == make_plan("fsdp2").digest
    assert len(measurement.warmup_s) == 4
    assert len(measurement.iteration_s) == 2
    # BUG-039: the reported seconds are those of the host's clock around the window.
    assert sum(measurement.iteration_s) <= measurement.window_s
    assert len(measurement.checks) == 3
    assert measurement.checks[0].loss == pytest.approx(math.log(2048), rel=0.01)
    assert measurement.final_loss < measurement.checks[0].loss
    assert 0 < measurement.peak_timed_bytes <= measurement.peak_worst_case_bytes
    assert measurement.peak_worst_case_bytes < measurement.memory_limit_bytes
    assert "sdpa" in measurement.implementations["attention"]
    assert "ScaledDotProductFlashAttention" in measurement.backward["attention"]
    assert set(measurement.backward) == {"attention", "norm", "mlp", "loss"}
    assert "SiluBackward0" in measurement.backward["mlp"]
    assert measurement.backward["loss"] == "LogSoftmaxBackward0 + MmBackward0 + NllLossBackward0"
    assert measurement.notes["threads"] >= 1
    assert set(measurement.read_back) >= {"workload.micro_batch", "fsdp2.layers_per_unit"}


def test_wrong_gradient_scale_is_caught_where_the_loss_cannot_tell(
    baseline: tuple[RankRecord, ...], tmp_path: Path
) -> None:
    plan = make_plan("fsdp2", numerics=_as(baseline))
    for record in _failed(plan, tmp_path, "gradients_four_times"):
        assert record.error.kind == "numerics"
        assert record.error.phase == "check"
        assert "gradient norm of check iteration 1" in record.error.message


def test_ranks_that_reduce_nothing_are_caught_without_a_baseline(tmp_path: Path) -> None:
    """The baseline itself may be the one that is broken."""
    for record in _failed(make_plan("ddp"), tmp_path, "ranks_reduce_nothing"):
        assert record.error.kind == "numerics"
        assert record.error.phase == "check"
        assert "iteration 1: the ranks disagree on the gradient norm" in record.error.message


def test_a_loss_that_is_a_fifth_off_is_caught(
    baseline: tuple[RankRecord, ...], tmp_path: Path
) -> None:
    """BUG-043: such a trial may be faster, and is never the best."""
    for record in _failed(make_plan("fsdp2", numerics=_as(baseline)), tmp_path, "loss_a_fifth_off"):
        assert record.error.kind == "numerics"
        assert "loss of check iteration 1" in record.error.message
        assert "0.2 apart" in record.error.message


@pytest.mark.parametrize("backend", ["zero3", "fsdp2", "ddp"])
@pytest.mark.parametrize("checkpointing", ["none", "full"])
def test_the_baselines_numbers_and_kernels_are_no_fault(
    backend: str, checkpointing: str, baseline: tuple[RankRecord, ...], tmp_path: Path
) -> None:
    changes = {"workload.activation_checkpointing": checkpointing}
    plan = make_plan(backend, changes=changes, numerics=_as(baseline))
    first, _ = measured(run_trial(plan, tmp_path), tmp_path)
    expected = {
        # ZeRO-3 puts a linear function of its own in place of torch's.
        kind: " + ".join(
            sorted(
                "LinearFunctionForZeroStage3Backward"
                if (backend, step) == ("zero3", "MmBackward0")
                else step
                for step in steps.split(" + ")
            )
        )
        for kind, steps in baseline[0].measurement.backward.items()
    }
    assert first.measurement.backward == expected


@pytest.mark.parametrize("checkpointing", ["none", "full"])
@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("attention_runs_forward_only", "runs forward only"),
        ("attention_forgets_keys", "is incomplete: no gradient reaches k_proj"),
    ],
)
def test_a_kernel_without_a_whole_backward_is_refused(
    fault: str, words: str, checkpointing: str, tmp_path: Path
) -> None:
    """Of the baseline too, where there are no other numbers to compare with."""
    changes = {"workload.activation_checkpointing": checkpointing}
    plan = make_plan("fsdp2", changes=changes, processes=1)
    (record,) = _failed(plan, tmp_path, fault)
    assert (record.error.kind, record.error.phase) == ("numerics", "check")
    assert "attention of layer 0 (" in record.error.message
    assert words in record.error.message


@pytest.mark.parametrize(
    ("fault", "kind", "words"),
    [
        ("adapters_are_passed_by", "numerics", "the adapter of model.layers.1.mlp.up_proj is not"),
        ("attention_forgets_keys", "numerics", "is incomplete: no gradient reaches k_proj"),
        ("weights_thaw", "not_in_effect", "lora trains 38,912 parameters, and the built model has"),
    ],
)
def test_adapters_that_are_not_all_that_is_trained_are_refused(
    fault: str, kind: str, words: str, tmp_path: Path
) -> None:
    pytest.importorskip("peft")
    plan = make_plan("fsdp2", processes=1, adapters={"rank": 4})
    (record,) = _failed(plan, tmp_path, fault)
    assert record.error.kind == kind, record.error.message
    assert words in record.error.message


def test_a_fallback_kernel_is_not_in_effect(
    baseline: tuple[RankRecord, ...], tmp_path: Path
) -> None:
    plan = make_plan("zero3", numerics=_as(baseline), processes=1)
    (record,) = _failed(plan, tmp_path, "eager_attention")
    assert record.error.kind == "not_in_effect"
    assert "attention is bound to transformers.models.qwen3." in record.error.message
    assert "eager_attention_forward, and to" in record.error.message
    assert "sdpa_attention_forward in the baseline" in record.error.message


def test_a_fallback_on_one_rank_of_the_baseline_is_not_in_effect(tmp_path: Path) -> None:
    plan = make_plan("fsdp2")
    measured(run_trial(plan, tmp_path, fault="faults:eager_attention_on_rank_1"), tmp_path)
    exits = tuple(RankExit(rank=rank, exit_code=0, signal=None) for rank in (0, 1))
    status = JobStatus(state="ended", phase="teardown", exits=exits, submitted_at=0.0, wall_s=1.0)
    outcome = judge(plan, AttemptFolder(tmp_path), status)
    assert outcome.failure.kind == "not_in_effect"
    assert "ranks 0 and 1 are bound to different kernels" in outcome.failure.reason


@pytest.mark.parametrize("backend", ["zero3", "fsdp2", "zero1", "zero2"])
@pytest.mark.parametrize(("fault", "ranks"), [("weight_is_nan", 2), ("gradient_is_nan", 1)])
def test_not_a_number_is_a_numerics_failure(
    backend: str, fault: str, ranks: int, tmp_path: Path
) -> None:
    """ZeRO-3 skips such an update and keeps the norm of the step before: not a valid number."""
    changes: dict[str, int] = {}
    if backend in ("zero1", "zero2"):
        backend, changes = "deepspeed", {"deepspeed.zero_stage": int(backend[-1])}
    for record in _failed(make_plan(backend, processes=ranks, changes=changes), tmp_path, fault):
        assert record.error.kind == "numerics"
        assert "not finite" in record.error.message


def test_numbers_that_go_wrong_after_the_check_are_caught(tmp_path: Path) -> None:
    measuring = dataclasses.replace(QUICK, window_iterations=8, window_s=1e4, interval_share=1e-9)
    plan = make_plan("zero3", measuring=measuring, processes=1)
    for record in _failed(plan, tmp_path, "gradient_is_nan_later"):
        assert record.error.kind == "numerics"
        assert record.error.phase == "measure"
        assert "iteration 7" in record.error.message


def test_another_stage_than_asked_for_is_not_in_effect(tmp_path: Path) -> None:
    """The stage is read from what the engine made, not from what it was told."""
    plan = make_plan("deepspeed", changes={"deepspeed.zero_stage": 2}, processes=1)
    for record in _failed(plan, tmp_path, "another_stage"):
        assert record.error.kind == "not_in_effect"
        assert "deepspeed.zero_stage was set to 2, but the engine has 1" in record.error.message


def test_a_value_that_is_not_in_effect_is_named(tmp_path: Path) -> None:
    """BUG-008: each tuned value is the one that the engine reports back."""
    plan = make_plan("zero3", changes={"zero3.reduce_bucket_size": 1_000_000}, processes=1)
    for record in _failed(plan, tmp_path, "other_bucket"):
        assert record.error.kind == "not_in_effect"
        assert record.error.phase == "build"
        assert "zero3.reduce_bucket_size" in record.error.message
        assert "1000000" in record.error.message
        assert "123" in record.error.message


def test_checkpointing_that_is_off_is_not_in_effect(tmp_path: Path) -> None:
    plan = make_plan("fsdp2", changes={"workload.activation_checkpointing": "full"}, processes=1)
    for record in _failed(plan, tmp_path, "checkpointing_lost"):
        assert record.error.kind == "not_in_effect"
        assert "activation_checkpointing" in record.error.message


def test_ranks_with_different_plans_do_not_start(tmp_path: Path) -> None:
    for record in _failed(make_plan("fsdp2"), tmp_path, "other_plan_on_rank_1"):
        assert record.error.kind == "infra"
        assert record.error.phase == "init"
        assert "rank" in record.error.message


@pytest.mark.parametrize(
    ("fault", "kind"), [("memory_error_on_rank_1", "oom_host"), ("crash_on_rank_1", "crash")]
)
def test_the_rank_that_failed_first_says_why(fault: str, kind: str, tmp_path: Path) -> None:
    first, second = _failed(make_plan("zero3"), tmp_path, fault)
    assert second.error.kind == kind
    assert first.error.kind == "infra"
    assert second.error.at <= first.error.at
    assert "Traceback" in second.error.traceback
    peak = second.error.peak_memory
    assert (peak is not None) is (kind == "oom_host")
    if peak is not None:
        assert 0 < peak.timed == peak.worst_case < peak.limit


def test_the_engines_refusal_is_incompatible(tmp_path: Path) -> None:
    plan = make_plan("zero3", changes={"zero3.reduce_bucket_size": 0}, processes=1)
    records = run_trial(plan, tmp_path)
    assert [record.error.kind for record in records] == ["incompatible"]
    assert "reduce_bucket_size" in records[0].error.message


def test_an_error_of_ours_is_no_refusal_of_the_engines(tmp_path: Path) -> None:
    """A refusal would be kept as the configuration's own property."""
    (record,) = _failed(make_plan("zero3", processes=1), tmp_path, "our_own_error")
    assert (record.error.kind, record.error.message) == ("crash", "the weights are gone")


def test_clearly_slower_than_the_best_stops_early(tmp_path: Path) -> None:
    measuring = dataclasses.replace(
        QUICK,
        window_iterations=1000,
        window_s=1000.0,
        interval_share=1e-9,
        racing=Racing(best_s_per_it=1e-6, noise_share=0.01),
    )
    records = measured(run_trial(make_plan("fsdp2", measuring=measuring), tmp_path), tmp_path)
    assert {record.status for record in records} == {"stopped_early"}
    assert len({len(record.measurement.iteration_s) for record in records}) == 1
    assert len(records[0].measurement.iteration_s) >= 4


def _await_phase(folder: AttemptFolder, phase: str) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            if json.loads(folder.heartbeat_file(0).read_text())["phase"] == phase:
                return
        except OSError:
            pass
        time.sleep(0.05)
    raise AssertionError(f"rank 0 never entered {phase}")


@pytest.mark.parametrize("fault", [None, "faults:rank_1_hangs"])
def test_sigterm_is_recorded_even_inside_a_collective(fault: str | None, tmp_path: Path) -> None:
    """BUG-072: entries are closed as interrupted."""
    measuring = dataclasses.replace(
        QUICK, window_iterations=10_000, window_s=1e4, interval_share=1e-9
    )
    folder = start_trial(make_plan("fsdp2", measuring=measuring), tmp_path)
    processes = launch(folder, 2, fault=fault)
    _await_phase(folder, "check" if fault else "measure")
    time.sleep(0.5)
    for process in processes:
        os.kill(process.pid, signal.SIGTERM)
    for process in processes:
        process.join(20)
        assert process.exitcode is not None
    for rank in range(2):
        record = folder.read_rank(rank)
        assert record.error.kind in ("interrupted", "infra")
    assert folder.read_rank(0).error.kind == "interrupted" or fault is None


def test_a_full_disk_ends_with_the_environments_exit_code(tmp_path: Path) -> None:
    folder = start_trial(make_plan("fsdp2", processes=1), tmp_path)
    (process,) = launch(folder, 1, fault="faults:no_large_files")
    process.join(100)
    assert process.exitcode == 3
    assert folder.read_rank(0) is None
    assert not list(tmp_path.glob(".rank-0.json*"))


def test_a_rank_started_by_hand_runs_the_same_trial(
    baseline: tuple[RankRecord, ...], tmp_path: Path
) -> None:
    plan = make_plan("fsdp2", processes=1)
    start_trial(plan, tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "autotune.worker", "--folder", str(tmp_path), "--rank", "0"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    record = AttemptFolder(tmp_path).read_rank(0)
    check, expected = record.measurement.checks[0], baseline[0].measurement.checks[0]
    assert check.loss == pytest.approx(expected.loss, rel=1e-5)
    assert check.grad_norm == pytest.approx(expected.grad_norm, rel=1e-5)


def test_no_plan_is_recorded_too(tmp_path: Path) -> None:
    (process,) = launch(AttemptFolder(tmp_path), 1)
    process.join(60)
    assert process.exitcode == 1
    record: Any = AttemptFolder(tmp_path).read_rank(0)
    assert record.error.phase == "launch"


def test_the_optimizers_state_that_does_not_fit_is_out_of_memory(tmp_path: Path) -> None:
    """BUG-044: forward and backward of all eight micro-steps have passed by then."""
    plan = make_plan("fsdp2", changes={"workload.micro_batch": 1})
    assert plan.cut.micro_steps == 8
    for record in _failed(plan, tmp_path, "no_room_for_adam"):
        assert record.error.kind == "oom_host"
        assert (record.error.phase, record.error.iteration) == ("check", 0)
        assert record.error.peak_memory.timed > 0


@pytest.mark.parametrize(("asked", "units"), [(True, True), (False, False)])
def test_fsdp2_says_what_the_live_module_holds(asked: bool, units: bool, tmp_path: Path) -> None:
    """BUG-048: a flag for each unit and the root, all number formats, the groups."""
    changes = {"fsdp2.reshard_after_forward": asked, "fsdp2.layers_per_unit": 2}
    plan = make_plan("fsdp2", changes=changes, precision=BF16)
    record = measured(run_trial(plan, tmp_path), tmp_path)[0]
    notes, back = record.measurement.notes, record.measurement.read_back
    assert notes["fsdp2_groups"] == notes["fsdp2_units"] == 3
    assert notes["fsdp2_reshard_units"] == [units, units]
    assert notes["fsdp2_reshard_root"] is False
    held = {name: one.actual for name, one in back.items() if name.startswith("precision.")}
    assert held == {
        "precision.master": "fp32",
        "precision.compute": "bf16",
        "precision.reduce": "fp32",
        "precision.optimizer": "fp32",
    }


def test_a_number_format_that_is_silently_dropped_is_not_in_effect(tmp_path: Path) -> None:
    """BUG-048: the loss alone cannot tell in which format gradients cross ranks."""
    for record in _failed(make_plan("fsdp2", precision=BF16), tmp_path, "reduces_in_bf16"):
        assert record.error.kind == "not_in_effect"
        assert "precision.reduce was set to 'fp32', but the engine has 'bf16'" in (
            record.error.message
        )
