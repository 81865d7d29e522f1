"""Newer knobs of the engines on two real ranks: in effect, and the same numbers without them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from support_trials import make_plan, measured, run_trial

from autotune.contract.outcome import RankRecord
from autotune.knobs import environment

GLOBAL_BATCH = 12
"""Three micro-steps an iteration: a first, a middle and a last one."""
HERE = str(Path(__file__).resolve().parent)
SELECTIVE = {"workload.activation_checkpointing": "selective"}
REENTRANT = {"workload.activation_checkpointing": "full", "workload.use_reentrant": True}


def _run(backend: str, changes: dict[str, Any], path: Path, **more: Any) -> RankRecord:
    """A trial whose changes are all read back as live values."""
    plan = make_plan(backend, changes=changes, global_batch=GLOBAL_BATCH, **more)
    assert plan.cut.micro_steps == 3
    first, second = measured(run_trial(plan, path), path)
    assert first.measurement.checks == second.measurement.checks
    for name, value in changes.items():
        if name != "workload.micro_batch":
            back = first.measurement.read_back[name]
            assert (back.actual, back.level) == (value, "live"), name
    return first


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def reference(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[bool, RankRecord]:
    tied = request.param
    return tied, _run("fsdp2", {}, tmp_path_factory.mktemp("reference"), tied=tied)


def _agrees(record: RankRecord, expected: RankRecord) -> None:
    first, *later = record.measurement.checks
    first_expected, *later_expected = expected.measurement.checks
    assert first.loss == pytest.approx(first_expected.loss, rel=1e-5)
    assert first.grad_norm == pytest.approx(first_expected.grad_norm, rel=1e-5)
    for check, wanted in zip(later, later_expected, strict=True):
        assert check.loss == pytest.approx(wanted.loss, rel=1e-4)
        assert check.grad_norm == pytest.approx(wanted.grad_norm, rel=1e-3)


OF_TIED: list[tuple[str, dict[str, Any]]] = [
    ("fsdp2", {**SELECTIVE, "kernel.adamw": "fused"}),
    ("fsdp2", {**REENTRANT, "workload.checkpoint_every": 2, "kernel.adamw": "foreach"}),
    ("zero3", {**SELECTIVE, "workload.checkpoint_every": 3, "kernel.adamw": "fused"}),
    ("zero3", {**REENTRANT, "zero3.zero_hpz_partition_size": 2, "kernel.adamw": "foreach"}),
    ("ddp", {**SELECTIVE, "workload.checkpoint_every": 2, "kernel.adamw": "loop"}),
    ("ddp", {**REENTRANT, "kernel.adamw": "fused"}),
    ("deepspeed", {"deepspeed.zero_stage": 2, **SELECTIVE, "kernel.adamw": "loop"}),
    ("fsdp2", {"fsdp2.replicate": 2, "fsdp2.gradient_sync": "scatter"}),
    ("fsdp2", {"fsdp2.gradient_sync": "each", "fsdp2.reshard_after_backward": False}),
    ("fsdp2", {"fsdp2.keep_last_unit": True, "fsdp2.force_sum_reduction": True}),
    (
        "fsdp2",
        {
            "fsdp2.separate_reduce_scatter_group": True,
            "fsdp2.reduce_scatter_input_buffers": 2,
            "fsdp2.replicate": 2,
        },
    ),
]
OF_UNTIED: list[tuple[str, dict[str, Any]]] = [
    (
        "fsdp2",
        {
            "fsdp2.wrap_embeddings": True,
            "fsdp2.unshard_in_backward": False,
            "fsdp2.keep_last_unit": True,
            **SELECTIVE,
        },
    ),
    ("zero3", {"zero3.zero_hpz_partition_size": 2, **SELECTIVE}),
]


@pytest.mark.parametrize(
    ("tied", "backend", "changes"),
    [(True, *case) for case in OF_TIED] + [(False, *case) for case in OF_UNTIED],
)
def test_each_is_in_effect_and_computes_the_same(
    tied: bool,
    backend: str,
    changes: dict[str, Any],
    reference: tuple[bool, RankRecord],
    tmp_path: Path,
) -> None:
    built_tied, expected = reference
    if tied != built_tied:
        pytest.skip("of the other model")
    _agrees(_run(backend, changes, tmp_path, tied=tied), expected)


@pytest.mark.parametrize(
    ("backend", "dead"),
    [
        (
            "fsdp2",
            {
                "fsdp2.reshard_after_forward": False,
                "fsdp2.keep_last_unit": True,
                "fsdp2.unshard_in_backward": False,
            },
        ),
        ("zero3", {"zero3.deepcompile": True}),
    ],
)
def test_what_is_dead_is_not_read_back_as_a_difference(
    backend: str, dead: dict[str, Any], tmp_path: Path
) -> None:
    plan = make_plan(backend, changes=dead, verify=(), processes=1)
    (record,) = measured(run_trial(plan, tmp_path), tmp_path)
    back = record.measurement.read_back
    assert all(back[name].in_effect for name in dead if name in back)


def test_weights_that_stay_between_micro_steps_are_gathered_once_an_iteration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its effect: gathers are counted in the ranks, four micro-steps an iteration."""
    counts = {}
    for name, changes in (
        ("freed", {}),
        ("kept", {"fsdp2.reshard_after_backward": False, "fsdp2.reshard_after_forward": False}),
    ):
        path = tmp_path / name
        plan = make_plan("fsdp2", changes=changes)
        monkeypatch.setenv("PYTHONPATH", HERE, prepend=os.pathsep)
        measured(run_trial(plan, path, fault="engine_faults:count_gathers"), path)
        counts[name] = int((path / "gathers").read_text())
    # Five units; freed: forward of each, and backward of all but the root, in each micro-step.
    assert counts["freed"] == 4 * (5 + 4)
    assert counts["kept"] == 5


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> RankRecord:
    """BUG-036: an adapter is trained, most weights are frozen, ZeRO-3 splits them all."""
    pytest.importorskip("peft")
    path = tmp_path_factory.mktemp("adapters")
    plan = make_plan("zero3", adapters={"rank": 4}, global_batch=GLOBAL_BATCH)
    return measured(run_trial(plan, path), path)[0]


def test_reentrant_recomputation_beside_frozen_weights_works(
    adapters: RankRecord, tmp_path: Path
) -> None:
    _agrees(_run("zero3", REENTRANT, tmp_path, adapters={"rank": 4}), adapters)


@pytest.mark.parametrize("mode", ["full", "selective"])
def test_the_newer_mode_beside_frozen_weights_works_or_is_refused_by_its_kind(
    mode: str, adapters: RankRecord, tmp_path: Path
) -> None:
    """Whether it meets other shapes in backward depends on the installed versions."""
    changes = {
        "workload.activation_checkpointing": mode,
        "zero3.stage3_param_persistence_threshold": 0,
    }
    plan = make_plan("zero3", changes=changes, adapters={"rank": 4}, global_batch=GLOBAL_BATCH)
    for record in run_trial(plan, tmp_path):
        assert record is not None
        if record.error is None:
            _agrees(record, adapters)
        else:
            assert record.error.kind == "incompatible"


def test_recomputation_that_meets_other_shapes_is_a_refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real error of torch's: what a layer leaves is another shape when it runs again."""
    changes = {"workload.activation_checkpointing": "full"}
    plan = make_plan("fsdp2", changes=changes, processes=1)
    monkeypatch.setenv("PYTHONPATH", HERE, prepend=os.pathsep)
    (record,) = run_trial(plan, tmp_path, fault="engine_faults:other_shapes_when_recomputed")
    assert record is not None
    assert record.error is not None
    assert record.error.kind == "incompatible"
    assert record.error.type == "torch.utils.checkpoint.CheckpointError"


def test_variables_reach_the_ranks_and_are_read_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCL_MAX_CTAS", "32")
    changes = {
        "env.NCCL_BUFFSIZE": 1_048_576,
        "env.TORCH_NCCL_HIGH_PRIORITY": True,
        "env.NCCL_MAX_CTAS": None,
        "env.PYTORCH_ALLOC_CONF": "expandable_segments:True,max_split_size_mb:512",
    }
    variables, unset = environment.variables(changes)
    plan = make_plan(
        "ddp",
        changes=changes,
        verify=tuple(changes),
        environment=variables,
        unset=unset,
        processes=1,
    )
    (record,) = measured(run_trial(plan, tmp_path), tmp_path)
    back = record.measurement.read_back
    assert {name: back[name].actual for name in changes} == changes
    assert back["env.NCCL_BUFFSIZE"].level == "environment"
    assert back["env.PYTORCH_ALLOC_CONF"].level == "live"


def test_a_variable_that_is_lost_is_not_in_effect(tmp_path: Path) -> None:
    plan = make_plan("ddp", changes={"env.NCCL_BUFFSIZE": 1_048_576}, processes=1)
    (record,) = run_trial(plan, tmp_path)
    assert record is not None
    assert record.error is not None
    assert record.error.kind == "not_in_effect"
    assert "env.NCCL_BUFFSIZE" in record.error.message
