"""What to try next after a failure, in words."""

from __future__ import annotations

import re
from typing import Final

from autotune.contract.failures import FailureKind

_MISSING: Final = re.compile(r"No module named|ModuleNotFoundError|ImportError|cannot import name")

_ADVICE: Final[dict[FailureKind, str]] = {
    "oom_device": "tune micro_batch (or max_tokens) down to 1 row, set activation_checkpointing: "
    "full, lower stage3_max_live_parameters and reduce_bucket_size, or use more devices",
    "oom_host": "use fewer processes a node, a smaller reduce_bucket_size, or a machine with "
    "more memory",
    "incompatible": "take the refused value out of params, or install the version that knows it",
    "numerics": "do not use this configuration; if the baseline fails too, try precision: fp32 "
    "and look at the data",
    "not_in_effect": "the engine ignored a value: fix its name or value, or install what it needs",
    "hang": "read the log of the rank that stopped; check network and NCCL settings",
    "timeout": "raise search.max_trial_time, or shorten the work: workload.data.max_length, "
    "workload.global_batch",
    "crash": "read the log: the traceback of the first rank that failed is at its end",
    "infra": "check nodes, network and scheduler; the same command goes on where it stopped",
    "interrupted": "the same command goes on where it stopped",
}


def next_step(kind: str, reason: str) -> str:
    """Return the next thing to try after a failure of ``kind`` with this ``reason``."""
    if _MISSING.search(reason):
        return "install the missing package into the environment that runs autotune"
    return next((text for name, text in _ADVICE.items() if name == kind), _ADVICE["crash"])
