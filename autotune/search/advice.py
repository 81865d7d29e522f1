"""The table of causes when a search ends without a result, and what to try next."""

from __future__ import annotations

from autotune.contract.failures import next_step
from autotune.search.history import causes
from autotune.store.records import StudyContents


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
        lines.append(f"    next: {next_step(kind, reason)}")
    return "\n".join(lines)
