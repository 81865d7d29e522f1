"""The table of causes when a search ends without a result, and what to try next."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from autotune.contract.failures import FailureKind
from autotune.search.history import causes
from autotune.store.records import StudyContents

NEXT_STEP: Final[Mapping[FailureKind, str]] = {
    "oom_device": "try a smaller micro_batch or max_tokens, activation_checkpointing: full, or "
    "more GPUs",
    "oom_host": "try a smaller micro_batch or max_tokens, fewer processes, or free some memory",
    "incompatible": "change the setting that the reason names",
    "numerics": "check precision and learning rate in the workload; the reason has the numbers",
    "not_in_effect": "the engine overrides a setting: fix or drop the one that the reason names",
    "hang": "read the log; a larger search.max_trial_time does not help a phase that hangs",
    "timeout": "raise search.max_trial_time, or make the workload smaller",
    "crash": "read the log; if a package is missing, install it",
    "infra": "read the log; check the network, the launcher and the free disk space",
    "interrupted": "run the same command again",
}


def failures_table(contents: StudyContents) -> str:
    """Return one line a cause: how often, which kind, why, an example's log, the next step."""
    lines: list[str] = []
    for kind, reason, count, example in causes(contents):
        trial = contents.trial(example)
        failure = trial.outcome.failure if trial is not None and trial.outcome else None
        folder = contents.last_attempt("trial", example)
        rank = failure.rank if failure is not None and failure.rank is not None else 0
        lines.append(f"{count} × {kind}: {reason}")
        if folder is not None:
            lines.append(f"    log of trial {example}: {folder.log_file(rank)}")
        lines.append(f"    next: {NEXT_STEP[kind]}")
    return "\n".join(lines)
