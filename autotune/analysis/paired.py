"""Is the candidate faster? A paired comparison of alternating launches, with drift removed."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence
from typing import Final, Literal

from autotune.analysis import students_t

_ROUNDING: Final = 1e-9
"""Smallest half width (of a log ratio): differences below it are rounding, not speed."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparison:
    """Speed of a candidate against the baseline."""

    ratio: float
    """Baseline's time ÷ candidate's time: above 1 the candidate is faster."""
    low: float | None
    high: float | None
    """95 % interval of ``ratio``; ``None`` with one round, which shows no spread."""
    verdict_hint: Literal["faster", "slower", "tie"]
    """What the interval says of the candidate; ``tie`` when it holds 1 or is unknown."""
    rounds: int


def compare(baseline: Sequence[float], candidate: Sequence[float]) -> Comparison:
    """Compare launches that alternated A B A B …, the baseline (A) first.

    Least squares on the logarithms with three terms: a level, a drift linear in the order of
    launches, and the candidate's effect. Each launch is one value: iterations within a launch
    share its luck and are no independent evidence. With n rounds the interval is Student's t
    with 2n - 3 degrees of freedom. One round has no drift removed and no interval.

    Args:
        baseline: s/it of the baseline's launches, in order.
        candidate: s/it of the candidate's launches; ``candidate[i]`` ran between
            ``baseline[i]`` and ``baseline[i + 1]``.

    Raises:
        ValueError: No round, more than one launch without its partner, or a time that is not
            positive and finite.
    """
    return _compare(baseline, candidate, confidence=0.95)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Launch:
    """One launch of a comparison, by two summaries of its iterations (s/it)."""

    mean_s: float
    """Window time ÷ iterations: the objective."""
    typical_s: float
    """Mean of the batches' median times: what the launch takes without its spikes."""


def compare_launches(baseline: Sequence[Launch], candidate: Sequence[Launch]) -> Comparison:
    """As :func:`compare`, without the noise of spikes that fall on both sides alike.

    A few iterations at 1.5 times the usual make most of a launch's noise, although they say
    nothing about the configuration: then typical times are compared. But where the share that
    spikes add differs between the two (99 % interval), or mean and typical times point to
    different sides, the spikes may belong to one of them, and the mean times are compared.
    """
    surcharges = [
        [launch.mean_s / launch.typical_s for launch in side] for side in (baseline, candidate)
    ]
    spikes = _compare(*surcharges, confidence=0.99)
    means = compare([launch.mean_s for launch in baseline], [launch.mean_s for launch in candidate])
    typical = compare(
        [launch.typical_s for launch in baseline], [launch.typical_s for launch in candidate]
    )
    same_side = (means.ratio > 1) == (typical.ratio > 1)
    return typical if same_side and spikes.verdict_hint == "tie" else means


def _compare(
    baseline: Sequence[float], candidate: Sequence[float], *, confidence: float
) -> Comparison:
    rounds = len(candidate)
    if rounds < 1 or len(baseline) - rounds not in (0, 1):
        raise ValueError(
            f"{len(baseline)} and {rounds} launches are no alternating rounds of a comparison"
        )
    logs, positions, is_candidate = _interleave(baseline, candidate)
    if len(logs) < 4:
        return Comparison(
            ratio=math.exp(logs[0] - logs[1]),
            low=None,
            high=None,
            verdict_hint="tie",
            rounds=rounds,
        )
    effect, half = _effect(logs, positions, is_candidate, confidence)
    gain = -effect
    hint: Literal["faster", "slower", "tie"] = "tie"
    if gain - half > 0:
        hint = "faster"
    elif gain + half < 0:
        hint = "slower"
    return Comparison(
        ratio=math.exp(gain),
        low=math.exp(gain - half),
        high=math.exp(gain + half),
        verdict_hint=hint,
        rounds=rounds,
    )


def _interleave(
    baseline: Sequence[float], candidate: Sequence[float]
) -> tuple[list[float], list[float], list[float]]:
    launches = [(2 * i, 0.0, seconds) for i, seconds in enumerate(baseline)]
    launches += [(2 * i + 1, 1.0, seconds) for i, seconds in enumerate(candidate)]
    launches.sort()
    for _, _, seconds in launches:
        if not math.isfinite(seconds) or seconds <= 0:
            raise ValueError(f"a launch's s/it must be positive and finite, not {seconds!r}")
    return (
        [math.log(seconds) for _, _, seconds in launches],
        [float(position) for position, _, _ in launches],
        [mark for _, mark, _ in launches],
    )


def _effect(
    logs: list[float], positions: list[float], is_candidate: list[float], confidence: float
) -> tuple[float, float]:
    """Return the candidate's effect on the log time and the half width of its interval.

    Both sides are first cleared of level and drift, then of each other (Frisch-Waugh-Lovell).
    """
    cleared = _without_line(logs, positions)
    marks = _without_line(is_candidate, positions)
    weight = sum(mark * mark for mark in marks)
    effect = sum(mark * value for mark, value in zip(marks, cleared, strict=True)) / weight
    residuals = [value - effect * mark for mark, value in zip(marks, cleared, strict=True)]
    degrees = len(logs) - 3
    variance = sum(residual * residual for residual in residuals) / degrees
    half = students_t.quantile(0.5 + confidence / 2, degrees) * math.sqrt(variance / weight)
    return effect, max(half, _ROUNDING)


def _without_line(values: list[float], positions: list[float]) -> list[float]:
    fit = statistics.linear_regression(positions, values)
    return [
        value - (fit.intercept + fit.slope * position)
        for value, position in zip(values, positions, strict=True)
    ]
