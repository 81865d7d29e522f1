"""When a search has seen enough: failures that repeat before anything has worked.

Read from the records, so that it holds across restarts.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from autotune.contract.failures import POLICIES
from autotune.contract.outcome import Failure
from autotune.search.history import MEMORY_KINDS, comparable, failure_of
from autotune.store.records import StudyContents, TrialRecord

ALIKE_IN_A_ROW: Final = 3
"""Identical failures one after another, before the first configuration beside the baseline has
been measured: the fourth would say the same."""
ALIKE_CRASHES: Final = 5
"""Trials since the last success that may crash for one and the same reason, which teaches
nothing."""


def enough(contents: StudyContents) -> tuple[int, Failure] | None:
    """Return how many trials failed alike and how, if that is reason to stop the search.

    Running out of memory is none: smaller configurations may fit, and the sampler learns of it.
    """
    last = list(_since_success(contents))
    if not last:
        return None
    failure = last[0]
    crashes = [one for one in last if _alike(one, failure)]
    if not POLICIES[failure.kind].teaches and len(crashes) >= ALIKE_CRASHES:
        return len(crashes), failure
    row = last[:ALIKE_IN_A_ROW]
    if _has_success(contents) or failure.kind in MEMORY_KINDS:
        return None
    if len(row) == ALIKE_IN_A_ROW and all(_alike(one, failure) for one in row):
        return len(row), failure
    return None


def _since_success(contents: StudyContents) -> Iterator[Failure]:
    """Failures that count, the last one first, back to the last trial that was measured."""
    for trial in sorted(_others(contents), key=_ended_at, reverse=True):
        if trial.measurement is not None:
            return
        failure = failure_of(trial)
        if failure is not None and POLICIES[failure.kind].counts:
            yield failure


def _has_success(contents: StudyContents) -> bool:
    return any(trial.measurement is not None for trial in _others(contents))


def _others(contents: StudyContents) -> list[TrialRecord]:
    baseline = contents.baseline()
    number = None if baseline is None else baseline.number
    return [trial for trial in comparable(contents) if trial.number != number]


def _ended_at(trial: TrialRecord) -> tuple[float, int]:
    outcome = trial.outcome
    return (0.0 if outcome is None else outcome.submitted_at), trial.number


def _alike(one: Failure, other: Failure) -> bool:
    return (one.kind, one.reason) == (other.kind, other.reason)
