"""The kinds of failure: what they are called, what follows from each, what to try next."""

from __future__ import annotations

import dataclasses
import re
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
STEPPING: Final[tuple[Phase, ...]] = ("check", "warmup", "measure", "probe")
"""Phases that have iterations, and whose heartbeat moves with micro-steps."""


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

    next_step: str
    """What to try after it, for people."""


POLICIES: Final[dict[FailureKind, FailurePolicy]] = {
    "oom_device": FailurePolicy(
        teaches=True,
        counts=True,
        max_retries=0,
        next_step="tune micro_batch (or max_tokens) down to 1 row, set "
        "activation_checkpointing: full, lower stage3_max_live_parameters and "
        "reduce_bucket_size, or use more devices",
    ),
    "oom_host": FailurePolicy(
        teaches=True,
        counts=True,
        max_retries=0,
        next_step="use fewer processes a node, a smaller micro_batch or reduce_bucket_size, "
        "or free some memory",
    ),
    "incompatible": FailurePolicy(
        teaches=True,
        counts=True,
        max_retries=0,
        next_step="take the refused value out of params, or install the version that knows it",
    ),
    "numerics": FailurePolicy(
        teaches=True,
        counts=True,
        max_retries=0,
        next_step="do not use this configuration; if the baseline fails too, try precision: "
        "fp32 and look at learning rate and data",
    ),
    "not_in_effect": FailurePolicy(
        teaches=True,
        counts=True,
        max_retries=0,
        next_step="the engine ignored a value: fix its name or value, or install what it needs",
    ),
    "hang": FailurePolicy(
        teaches=True,
        counts=True,
        max_retries=1,
        next_step="read the log of the rank that stopped; check network and NCCL settings",
    ),
    "timeout": FailurePolicy(
        teaches=True,
        counts=True,
        max_retries=1,
        next_step="raise search.max_trial_time, or shorten the work: "
        "workload.data.max_length, workload.global_batch",
    ),
    "crash": FailurePolicy(
        teaches=False,
        counts=True,
        max_retries=1,
        next_step="read the log: the traceback of the first rank that failed is at its end",
    ),
    "infra": FailurePolicy(
        teaches=False,
        counts=False,
        max_retries=3,
        next_step="check nodes, network, scheduler and free disk space",
    ),
    "interrupted": FailurePolicy(
        teaches=False,
        counts=False,
        max_retries=0,
        next_step="the same command goes on where it stopped",
    ),
}

_MISSING: Final = re.compile(r"No module named|ModuleNotFoundError|ImportError|cannot import name")


def next_step(kind: FailureKind, reason: str) -> str:
    """Return what to try after a failure of ``kind`` with this ``reason``."""
    if _MISSING.search(reason):
        return "install the missing package into the environment that runs autotune"
    return POLICIES[kind].next_step
