"""Which of several configurations that launches cannot tell apart is taken."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from autotune.store.records import TrialRecord

SAME_MEMORY: Final = 0.02
"""Share by which peaks must differ before the smaller one decides a tie."""


def winner(
    tied: Sequence[TrialRecord], baseline: TrialRecord, *, unstable: Collection[int] = ()
) -> TrialRecord:
    """Return the one with the least memory; among equals the one nearest the baseline.

    Args:
        tied: Measured trials, at least one; the baseline may be among them.
        baseline: What nearness is to.
        unstable: Numbers of those that lose against any other.
    """
    tied = [trial for trial in tied if trial.number not in unstable] or tied
    least = min(peak_bytes(trial) for trial in tied)
    light = [trial for trial in tied if peak_bytes(trial) * (1.0 - SAME_MEMORY) <= least]
    return min(light, key=lambda trial: (*distance(trial, baseline), trial.number))


def needs_less_memory(trial: TrialRecord, other: TrialRecord) -> bool:
    """Whether the first peak is smaller by more than what counts as the same."""
    return peak_bytes(trial) < (1.0 - SAME_MEMORY) * peak_bytes(other)


def peak_bytes(trial: TrialRecord) -> int:
    """The larger of the timed and the worst-case peak, of what was measured."""
    assert trial.measurement is not None
    return trial.measurement.peak_memory.measured


def distance(trial: TrialRecord, baseline: TrialRecord) -> tuple[int, float]:
    """How far the configuration lies from the baseline's: settings that differ, then by how much.

    The second part is the sum of the differing numbers' ratios (as |log|), so that a bucket of
    half the size is nearer than one of a tenth.
    """
    mine, theirs = _settings(trial), _settings(baseline)
    changed = [name for name in mine.keys() | theirs.keys() if mine.get(name) != theirs.get(name)]
    return len(changed), sum(_far(mine.get(name), theirs.get(name)) for name in sorted(changed))


def _settings(trial: TrialRecord) -> Mapping[str, Any]:
    return {**trial.header.config, "backend": trial.header.backend}


def _far(one: Any, other: Any) -> float:
    numbers = (int, float)
    if isinstance(one, bool) or isinstance(other, bool):
        return 1.0
    if not isinstance(one, numbers) or not isinstance(other, numbers):
        return 1.0
    return abs(math.log1p(abs(one)) - math.log1p(abs(other)))
