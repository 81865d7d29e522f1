"""The numerics gate: did a configuration compute what the baseline computes?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from autotune.contract.outcome import Gap
from autotune.contract.plan import CheckPoint, Numerics

LOOSEST_TOLERANCE: Final = 0.05
"""No tolerance of a plan is taken looser than this share."""


def first_problem(checks: Sequence[CheckPoint], numerics: Numerics) -> str | None:
    """Return the first fault of the check iterations in words, or ``None``.

    The gradient norm is compared beside the loss because a wrong gradient scale leaves the
    first losses equal to seven digits. The first iteration, before any update, is held tightly;
    the later ones, which follow updates, by the tolerance of the precision.

    Args:
        checks: Check iterations so far, in order; may be fewer than the reference has, so that
            a worker can stop at the first wrong one.
        numerics: Tolerances, and the baseline's numbers (none for the baseline itself, which
            is then only checked for finite, positive numbers).
    """
    if not checks:
        return "no check iteration recorded a loss and a gradient norm"
    for index, check in enumerate(checks):
        pairs = [("loss", check.loss), ("gradient norm", check.grad_norm)]
        usable = (_unusable(what, value, index) for what, value in pairs if value is not None)
        problem = next(filter(None, usable), None)
        if problem is not None:
            return problem
        if index >= len(numerics.reference):
            continue
        reference = numerics.reference[index]
        loss_tolerance = numerics.loss_tolerance if index else numerics.first_loss_tolerance
        norm_tolerance = numerics.norm_tolerance if index else numerics.first_norm_tolerance
        problem = _differs("loss", check.loss, reference.loss, loss_tolerance, index) or _differs(
            "gradient norm", check.grad_norm, reference.grad_norm, norm_tolerance, index
        )
        if problem is not None:
            return problem
    return None


def gaps(checks: Sequence[CheckPoint], numerics: Numerics) -> dict[str, Gap]:
    """Return how far the numbers lie from the baseline's, by what :func:`first_problem` compares.

    Args:
        checks: Check iterations, in order.
        numerics: Tolerances and the baseline's numbers; without those nothing is compared.
    """
    pairs = list(zip(checks, numerics.reference, strict=False))
    asked = {
        "first_loss": ("loss", pairs[:1], numerics.first_loss_tolerance),
        "first_grad_norm": ("grad_norm", pairs[:1], numerics.first_norm_tolerance),
        "loss": ("loss", pairs[1:], numerics.loss_tolerance),
        "grad_norm": ("grad_norm", pairs[1:], numerics.norm_tolerance),
    }
    found: dict[str, Gap] = {}
    for name, (field, compared, tolerance) in asked.items():
        numbers = [(getattr(mine, field), getattr(other, field)) for mine, other in compared]
        shares = [abs(value / wanted - 1) for value, wanted in numbers if value and wanted]
        if shares:
            found[name] = Gap(apart=max(shares), allowed=min(tolerance, LOOSEST_TOLERANCE))
    return found


def _unusable(what: str, value: float, index: int) -> str | None:
    if math.isfinite(value) and value > 0:
        return None
    fault = "zero" if value == 0 else "negative" if math.isfinite(value) else "not finite"
    return f"the {what} of check iteration {index + 1} is {fault} ({value!r})"


def _differs(
    what: str, value: float | None, reference: float | None, tolerance: float, index: int
) -> str | None:
    if reference is None:
        return None
    if value is None:
        return f"no {what} of check iteration {index + 1} is reported, and the baseline has one"
    allowed = min(tolerance, LOOSEST_TOLERANCE)
    share = abs(value - reference) / abs(reference) if reference else math.inf
    if share <= allowed:
        return None
    return (
        f"the {what} of check iteration {index + 1} is {value:.8g} where the baseline has "
        f"{reference:.8g}: {share:.2g} apart, and {allowed:.2g} is allowed"
    )
