import dataclasses
import math

import pytest

from autotune.analysis.numerics import (
    Path,
    first_problem,
    later_gaps,
    later_problem,
    rank_problem,
)
from autotune.contract.plan import CheckPoint, Numerics

REFERENCE = (
    CheckPoint(loss=6.2436699, grad_norm=0.93449),
    CheckPoint(loss=6.0747996, grad_norm=0.78568),
    CheckPoint(loss=5.9479620, grad_norm=0.82467),
)
GATE = Numerics(
    reference=REFERENCE,
    first_loss_tolerance=1e-5,
    first_norm_tolerance=1e-4,
    loss_tolerance=1e-4,
    norm_tolerance=1e-3,
)
BASELINE_GATE = dataclasses.replace(GATE, reference=())


def changed(index, **values):
    checks = list(REFERENCE)
    checks[index] = dataclasses.replace(checks[index], **values)
    return checks


def test_equal_numbers_pass():
    assert first_problem(REFERENCE, GATE) is None
    assert first_problem(REFERENCE, BASELINE_GATE) is None


def test_a_wrong_gradient_scale_is_caught_though_the_loss_agrees():
    """The loss alone is no gate: with a norm four times off it agreed to 2e-7."""
    problem = first_problem(changed(0, loss=6.2436710, grad_norm=4 * 0.93449), GATE)
    assert problem is not None
    assert problem.startswith("the gradient norm of check iteration 1 is 3.73796 ")
    assert "0.93449" in problem
    assert "3 apart" in problem


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("gate", [GATE, BASELINE_GATE])
def test_numbers_that_are_not_finite_fail_also_without_a_reference(value, gate):
    assert "loss of check iteration 2 is not finite" in first_problem(changed(1, loss=value), gate)
    assert "gradient norm of check iteration 3 is not finite" in first_problem(
        changed(2, grad_norm=value), gate
    )


@pytest.mark.parametrize("gate", [GATE, BASELINE_GATE])
def test_zero_and_negative_numbers_fail(gate):
    assert "loss of check iteration 1 is zero" in first_problem(changed(0, loss=0.0), gate)
    assert "gradient norm of check iteration 1 is zero" in first_problem(
        changed(0, grad_norm=0.0), gate
    )
    assert "is negative" in first_problem(changed(0, loss=-1.0), gate)


def test_the_first_iteration_is_held_tighter_than_the_later_ones():
    factor = 1 + 5e-5
    assert first_problem(changed(0, loss=6.2436699 * factor), GATE) is not None
    assert first_problem(changed(1, loss=6.0747996 * factor), GATE) is None
    assert first_problem(changed(1, loss=6.0747996 * (1 + 2e-4)), GATE) is not None
    assert first_problem(changed(0, grad_norm=0.93449 * (1 + 5e-4)), GATE) is not None
    assert first_problem(changed(1, grad_norm=0.78568 * (1 + 5e-4)), GATE) is None
    assert first_problem(changed(1, grad_norm=0.78568 * (1 + 2e-3)), GATE) is not None


def test_the_first_fault_in_time_is_the_reason():
    checks = changed(1, loss=9.0)
    checks[2] = CheckPoint(loss=math.nan, grad_norm=1.0)
    assert "loss of check iteration 2 is 9 " in first_problem(checks, GATE)


def test_no_tolerance_is_looser_than_five_percent():
    loose = dataclasses.replace(GATE, first_loss_tolerance=0.5)
    assert first_problem(changed(0, loss=6.2436699 * 1.06), loose) is not None
    assert first_problem(changed(0, loss=6.2436699 * 1.04), loose) is None


def test_a_worker_may_ask_after_each_iteration_but_none_is_no_pass():
    assert first_problem(REFERENCE[:1], GATE) is None
    assert first_problem((), GATE) is not None


LATER = dataclasses.replace(GATE, losses=(6.0, 4.0, 5.0, 3.0, 2.0), grad_norms=(1.0,) * 5)


@pytest.mark.parametrize(
    ("losses", "words"),
    [
        ((6.0, 4.0, 5.0, 3.0, 99.0), None),  # no whole cycle
        ((6.3, 3.7, 5.0, 3.0), None),  # the mean over the cycle is the same
        (
            (6.0, 4.0, 6.0, 3.6),
            "the mean loss of iterations 3 to 4 is 4.8 where the baseline has 4",
        ),
        ((6.0, 4.0), None),  # as far as it ran
        ((), None),
    ],
)
def test_later_losses_are_compared_by_cycles(losses, words):
    path = Path(losses=losses, grad_norms=(1.0,) * len(losses))
    problem = later_problem(path, LATER, 2)
    assert problem is None if words is None else problem.startswith(words)


def test_a_gradient_scale_that_goes_wrong_later_is_found():
    path = Path(losses=LATER.losses, grad_norms=(1.1, 0.9, 4.0, 4.0, 4.0))
    problem = later_problem(path, LATER, 2)
    assert problem is not None
    assert problem.startswith("the mean gradient norm of iterations 3 to 4 is 4 ")
    assert later_gaps(path, LATER, 2)["cycle_grad_norm"].apart == pytest.approx(3.0)
    assert later_problem(path, GATE, 2) is None
    assert later_gaps(path, GATE, 2) == {}


@pytest.mark.parametrize(
    ("norms", "words"),
    [
        ([[1.0, 2.0], [1.0, 2.0]], None),
        ([[1.0, 2.0], [1.0, 2.001]], None),  # rounding of a reduction in another order
        ([[1.0, 2.0], [1.0, 2.01], [1.0, 2.0]], "iteration 6: the ranks disagree"),
        ([[math.nan], [1.0]], None),  # not finite: said where that is looked for
        ([[1.0]], None),
    ],
)
def test_a_global_norm_is_one_number(norms, words):
    problem = rank_problem(norms, first=4)
    assert problem is None if words is None else problem is not None and words in problem
