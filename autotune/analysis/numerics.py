"""The numerics gate: did a configuration compute what the baseline computes?"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterator, Sequence
from typing import Final

from autotune.contract.outcome import Gap
from autotune.contract.plan import CheckPoint, Numerics

LOOSEST_TOLERANCE: Final = 0.05
"""No tolerance of a plan is taken looser than this share."""
RANK_NORM: Final = 1e-3
"""How far apart the ranks' global norms may lie, as a share."""
CYCLE_LOSS: Final = 0.05
CYCLE_NORM: Final = 0.5
"""How far the means over a whole cycle of the batches may lie from the baseline's, after any number
of updates. Rounding grows with each, so this finds what the check iterations could not meet yet,
not what is a little off: a norm that is four times the baseline's, a loss that is a fifth off."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Path:
    """The numbers of every iteration of a launch, in order."""

    losses: tuple[float, ...]
    grad_norms: tuple[float, ...]


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


def rank_problem(norms: Sequence[Sequence[float]], first: int) -> str | None:
    """Return the first iteration whose global gradient norm the ranks do not agree on, or ``None``.

    After the reduction every rank has the same one. Ranks that step by gradients of their own may
    be fast, and each trains another model. No baseline is needed to see it.

    Args:
        norms: Ranks × iterations.
        first: Iterations before the first of them.
    """
    for offset, each in enumerate(zip(*norms, strict=True)):
        low, high = min(each), max(each)
        if high - low > RANK_NORM * high:
            return (
                f"iteration {first + offset + 1}: the ranks disagree on the gradient norm "
                f"({low:.6g} to {high:.6g}), so gradients are not reduced over all ranks"
            )
    return None


def later_problem(path: Path, numerics: Numerics, cycle: int) -> str | None:
    """Return the first cycle of batches whose numbers left the baseline's, or ``None``.

    Compared as far as both ran; a fault may show only when buffers, prefetching or compiled code
    have come into use, after the check iterations.

    Args:
        path: The launch's.
        numerics: With the baseline's numbers; without those nothing is compared.
        cycle: Distinct batches.
    """
    for what, allowed, mine, wanted in _curves(path, numerics):
        for start, value, reference in _cycles(mine, wanted, cycle):
            share = abs(value / reference - 1.0)
            if not share <= allowed:
                return (
                    f"the mean {what} of iterations {start + 1} to {start + cycle} is {value:.8g} "
                    f"where the baseline has {reference:.8g}: {share:.2g} apart, and {allowed:.2g} "
                    "is allowed"
                )
    return None


def later_gaps(path: Path, numerics: Numerics, cycle: int) -> dict[str, Gap]:
    """Return how far :func:`later_problem` found the means over a cycle from the baseline's."""
    found: dict[str, Gap] = {}
    names = ("cycle_loss", "cycle_grad_norm")
    for name, (_, allowed, mine, wanted) in zip(names, _curves(path, numerics), strict=True):
        apart = [abs(value / other - 1.0) for _, value, other in _cycles(mine, wanted, cycle)]
        if apart:
            found[name] = Gap(apart=max(apart), allowed=allowed)
    return found


def _curves(
    path: Path, numerics: Numerics
) -> tuple[tuple[str, float, Sequence[float], Sequence[float]], ...]:
    return (
        ("loss", CYCLE_LOSS, path.losses, numerics.losses),
        ("gradient norm", CYCLE_NORM, path.grad_norms, numerics.grad_norms),
    )


def _cycles(
    mine: Sequence[float], wanted: Sequence[float], cycle: int
) -> Iterator[tuple[int, float, float]]:
    """First index and both means of every whole cycle that both ran."""
    pairs = list(zip(mine, wanted, strict=False))
    for start in range(0, len(pairs) - cycle + 1, cycle):
        values, references = zip(*pairs[start : start + cycle], strict=True)
        if (reference := statistics.fmean(references)) > 0:
            yield start, statistics.fmean(values), reference


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
