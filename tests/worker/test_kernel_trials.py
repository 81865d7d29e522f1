"""Trials with other kernels than the defaults: real ranks, real engines, the same numbers."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from support_trials import NUMERICS, make_plan, measured, run_trial

from autotune.contract.outcome import RankRecord
from autotune.contract.plan import Numerics

ENGINES = ("fsdp2", "ddp", "zero3")
COMPILED = {"kernel.compile": "layer", "workload.activation_checkpointing": "full"}


@pytest.fixture(scope="module")
def baseline(tmp_path_factory: pytest.TempPathFactory) -> tuple[RankRecord, ...]:
    path = tmp_path_factory.mktemp("baseline")
    return tuple(measured(run_trial(make_plan("fsdp2"), path), path))


def _but(baseline: tuple[RankRecord, ...], kind: str) -> Numerics:
    """The gate of a trial with another kernel of one layer type, as the planner makes it."""
    first = baseline[0].measurement
    assert first is not None
    bound = {name: path for name, path in first.implementations.items() if name != kind}
    return dataclasses.replace(NUMERICS, reference=first.checks, implementations=bound)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_chunked_loss_gives_the_same_numbers_under_every_engine(
    engine: str, baseline: tuple[RankRecord, ...], tmp_path: Path
) -> None:
    """The gate inside the trial compares losses and gradient norms with the baseline's."""
    plan = make_plan(engine, changes={"kernel.loss": "chunked"}, numerics=_but(baseline, "loss"))
    first, _ = measured(run_trial(plan, tmp_path), tmp_path)
    measurement = first.measurement
    assert measurement is not None
    assert measurement.read_back["kernel.loss"].actual == "chunked"
    assert measurement.read_back["kernel.loss"].level == "live"
    assert measurement.implementations["loss"].endswith("cross_entropy.chunked_loss_sum")
    assert measurement.backward["loss"] == "_ChunkedBackward"


@pytest.mark.slow
def test_compiled_layers_recompute_and_are_compiled_before_the_window(
    baseline: tuple[RankRecord, ...], tmp_path: Path
) -> None:
    """BUG-036: with FSDP2, whose class of a layer has a wrapper for recomputation of its own."""
    plan = make_plan("fsdp2", changes=COMPILED, numerics=_but(baseline, "layer"))
    first, _ = measured(run_trial(plan, tmp_path, limit_s=600), tmp_path)
    measurement = first.measurement
    assert measurement is not None
    assert measurement.read_back["kernel.compile"].actual == "layer"
    assert measurement.read_back["workload.activation_checkpointing"].actual == "full"
    assert "CompiledFunctionBackward" in measurement.backward["layer"]
    assert measurement.implementations["layer"].startswith("torch.compile of transformers.")
    assert measurement.recompiled_iterations == 0
    assert measurement.compile_s > 0


def test_wrapped_embeddings_and_a_tied_head_reach_the_loss(
    baseline: tuple[RankRecord, ...], tmp_path: Path
) -> None:
    """A head that is a unit of its own has its weight only while its own forward runs."""
    path = tmp_path / "plain"
    plain = measured(run_trial(make_plan("fsdp2", tied=False), path), path)
    changes = {"kernel.loss": "chunked", "fsdp2.wrap_embeddings": True}
    plan = make_plan("fsdp2", tied=False, changes=changes, numerics=_but(tuple(plain), "loss"))
    measured(run_trial(plan, tmp_path / "wrapped"), tmp_path / "wrapped")


def test_a_kernel_that_is_not_what_was_asked_for_is_not_in_effect(
    baseline: tuple[RankRecord, ...], tmp_path: Path
) -> None:
    """BUG-052: never labelled as the kernel that was asked for."""
    plan = make_plan("fsdp2", changes={"kernel.loss": "chunked"})
    tmp_path.mkdir(exist_ok=True)
    for record in run_trial(plan, tmp_path, fault="faults:loss_falls_back"):
        assert record is not None
        assert record.error is not None
        assert record.error.kind == "not_in_effect"
        assert "kernel.loss was set to 'chunked', but the engine has 'torch'" in (
            record.error.message
        )


def test_a_kernel_that_differs_where_none_was_asked_for_is_still_caught(
    baseline: tuple[RankRecord, ...], tmp_path: Path
) -> None:
    """The rule of equal kernels holds for every layer type whose knob is the baseline's."""
    plan = make_plan("fsdp2", changes={"kernel.loss": "chunked"}, numerics=_but(baseline, "loss"))
    other = {**plan.numerics.implementations, "norm": "some.other.norm"}
    numerics = dataclasses.replace(plan.numerics, implementations=other)
    for record in run_trial(dataclasses.replace(plan, numerics=numerics), tmp_path):
        assert record is not None
        assert record.error is not None
        assert record.error.kind == "not_in_effect"
        assert "norm is bound to" in record.error.message
