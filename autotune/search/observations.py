"""What the sampler is told of a trial."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class Observation:
    """One launched configuration inside the space, with what came of it."""

    assignment: dict[str, Any]
    """Values of the active parameters by the names of the space file (and ``backend``)."""
    s_per_it: float | None
    """Seconds per iteration; ``None`` for a failure that teaches."""

    @property
    def feasible(self) -> bool:
        return self.s_per_it is not None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Told:
    """An observation with the value that stands for it in the sampler's study."""

    assignment: dict[str, Any]
    value: float
    constraint: float
    """At most 0 for a feasible configuration, positive for an infeasible one."""


def told(observations: Iterable[Observation]) -> tuple[Told, ...]:
    """Return what the sampler is told, in order.

    A failure that teaches stands with the worst feasible value and a violated constraint: told
    as a plain failure the sampler would learn nothing of it, and told with a made-up large value
    it would see a cliff. Every trial has the same constraint, without which samplers raise.
    """
    observations = tuple(observations)
    worst = max((o.s_per_it for o in observations if o.s_per_it is not None), default=1.0)
    return tuple(
        Told(
            assignment=one.assignment,
            value=worst if one.s_per_it is None else one.s_per_it,
            constraint=-1.0 if one.feasible else 1.0,
        )
        for one in observations
    )
