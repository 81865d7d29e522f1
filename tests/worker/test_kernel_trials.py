"""Trials with other kernels than the defaults: real ranks, real engines, the same numbers."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from support_trials import NUMERICS, make_plan, measured, run_trial

from autotune.contract.outcome import RankRecord
from autotune.contract.plan import Numerics

ENGINES = ("fsdp2", "ddp", "zero3")
CHANGES = {
    "chunked": {"kernel.loss": "chunked"},
    "flex": {"kernel.attention": "flex_attention"},
    "compiled": {"kernel.compile": "layer"},
}
KIND = {"chunked": "loss", "flex": "attention", "compiled": "layer"}


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
@pytest.mark.parametrize("kernel", CHANGES)
@pytest.mark.parametrize("checkpointing", ["none", "full"])
def test_another_kernel_gives_the_same_numbers_under_every_engine(
    engine: str,
    kernel: str,
    checkpointing: str,
    baseline: tuple[RankRecord, ...],
    tmp_path: Path,
) -> None:
    """The gate inside the trial compares losses and gradient norms with the baseline's."""
    if checkpointing == "full" and (kernel, engine) not in (("compiled", "fsdp2"), ("flex", "ddp")):
        pytest.skip("one engine for each with recomputation")
    changes = {**CHANGES[kernel], "workload.activation_checkpointing": checkpointing}
    plan = make_plan(engine, changes=changes, numerics=_but(baseline, KIND[kernel]))
    first, _ = measured(run_trial(plan, tmp_path, limit_s=300), tmp_path)
    (knob,) = CHANGES[kernel]
    measurement = first.measurement
    assert measurement is not None
    assert measurement.read_back[knob].actual == CHANGES[kernel][knob]
    assert measurement.read_back[knob].level == "live"
    assert (
        measurement.implementations[KIND[kernel]]
        != (baseline[0].measurement.implementations[KIND[kernel]])
    )
    if kernel == "chunked":
        assert measurement.backward["loss"] == "_ChunkedBackward"
    if kernel == "compiled":
        assert "CompiledFunctionBackward" in measurement.backward["layer"]
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
    import os

    here = str(Path(__file__).parent)
    os.environ["PYTHONPATH"] = os.pathsep.join([here, os.environ.get("PYTHONPATH", "")])
    plan = make_plan("fsdp2", changes={"kernel.attention": "flex_attention"})
    tmp_path.mkdir(exist_ok=True)
    for record in run_trial(plan, tmp_path, fault="faults:attention_falls_back"):
        assert record is not None
        assert record.error is not None
        assert record.error.kind == "not_in_effect"
        assert "kernel.attention was set to 'flex_attention'" in record.error.message
        assert "'sdpa'" in record.error.message


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
