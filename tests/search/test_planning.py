"""The rules of measuring and comparing that every plan of a study carries."""

from __future__ import annotations

import pytest

from autotune.contract.plan import CheckPoint, Precision, Reference, Topology
from autotune.search.planning import deadlines, measuring, numerics

FP32 = Precision(compute="fp32", master="fp32", accumulate="fp32", reduce="fp32")
BOUND = {"attention": "sdpa"}
BF16 = Precision(compute="bf16", master="fp32", accumulate="fp32", reduce="fp32")


@pytest.mark.parametrize(
    ("device", "tolerance", "cycles", "share", "seconds", "iterations"),
    [("cuda", 0.02, 4, 0.01, 20.0, 40), ("cpu", 0.10, 2, 0.05, 4.0, 24)],
)
def test_rules_by_device(
    device, tolerance: float, cycles: int, share: float, seconds: float, iterations: int
) -> None:
    rules = measuring(Topology(processes=2, device=device, devices_per_node=2))
    assert (rules.warmup_tolerance, rules.warmup_max_cycles) == (tolerance, cycles)
    assert (rules.interval_share, rules.window_s, rules.window_iterations) == (
        share,
        seconds,
        iterations,
    )
    assert rules.racing is None


@pytest.mark.parametrize(("precision", "loss", "norm"), [(FP32, 1e-4, 1e-3), (BF16, 1e-2, 5e-2)])
def test_tolerances_by_precision(precision: Precision, loss: float, norm: float) -> None:
    reference = (CheckPoint(loss=6.0, grad_norm=0.9),)
    gate = numerics(precision, Reference(checks=reference, implementations=BOUND))
    assert (gate.loss_tolerance, gate.norm_tolerance) == (loss, norm)
    # Before any update nothing but rounding may differ.
    assert gate.first_loss_tolerance < loss
    assert gate.first_norm_tolerance < norm
    assert (gate.reference, gate.implementations) == (reference, BOUND)


def test_a_single_number_of_lower_precision_decides() -> None:
    mixed = Precision(compute="fp32", master="fp32", accumulate="fp32", reduce="bf16")
    assert numerics(mixed, Reference()).norm_tolerance == 5e-2


def test_no_phase_may_take_longer_than_the_trial() -> None:
    limits = deadlines(30.0)
    assert limits.total_s == 30.0
    assert set(limits.phase_s.values()) == {30.0}
    assert deadlines(300.0).phase_s["init"] == 120.0
