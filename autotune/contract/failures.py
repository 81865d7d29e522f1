"""The kinds of failure: what they are called, whether they teach, whether they are retried."""

from __future__ import annotations

import dataclasses
from typing import Final, Literal, get_args

FailureKind = Literal[
    "oom_device",
    "oom_host",
    "incompatible",
    "numerics",
    "not_in_effect",
    "hang",
    "timeout",
    "crash",
    "infra",
    "interrupted",
]
Phase = Literal["launch", "init", "build", "check", "warmup", "measure", "probe", "teardown"]
PHASES: Final[tuple[Phase, ...]] = get_args(Phase)
"""The phases of a trial, in their order."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class FailurePolicy:
    """What follows from a failure of one kind."""

    teaches: bool
    """The sampler is told: the configuration counts as infeasible and as one of ``--trials``
    (a ``crash`` counts but does not teach)."""

    counts: bool
    """The trial is one of the ``--trials`` that the user asked for."""

    max_retries: int
    """How often the same configuration is launched again before the failure stands."""

    meaning: str
    """One line for people."""


POLICIES: Final[dict[FailureKind, FailurePolicy]] = {
    "oom_device": FailurePolicy(
        teaches=True, counts=True, max_retries=0, meaning="device memory was not enough"
    ),
    "oom_host": FailurePolicy(
        teaches=True, counts=True, max_retries=0, meaning="host memory was not enough"
    ),
    "incompatible": FailurePolicy(
        teaches=True, counts=True, max_retries=0, meaning="the engine refuses the configuration"
    ),
    "numerics": FailurePolicy(
        teaches=True, counts=True, max_retries=0, meaning="the numbers were wrong"
    ),
    "not_in_effect": FailurePolicy(
        teaches=True, counts=True, max_retries=0, meaning="the configuration was not in effect"
    ),
    "hang": FailurePolicy(
        teaches=True, counts=True, max_retries=1, meaning="a phase made no progress"
    ),
    "timeout": FailurePolicy(
        teaches=True, counts=True, max_retries=1, meaning="the trial passed its time limit"
    ),
    "crash": FailurePolicy(
        teaches=False, counts=True, max_retries=1, meaning="a process ended with an error"
    ),
    "infra": FailurePolicy(
        teaches=False, counts=False, max_retries=3, meaning="the machine or the network failed"
    ),
    "interrupted": FailurePolicy(
        teaches=False, counts=False, max_retries=0, meaning="the search was stopped"
    ),
}
