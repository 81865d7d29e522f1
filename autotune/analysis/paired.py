"""Is a candidate faster? Launches in turns are compared with the drift of the machine removed.

Least squares on the logarithms of s/it: a level, a drift linear in the order of launches, and the
candidate's effect. Each launch is one value: iterations within a launch share its luck and
are no independent evidence.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence
from typing import Final, Literal

from autotune.analysis import slow, students_t
from autotune.contract.outcome import Measurement

CONFIDENCE: Final = 0.95
OWN_SURCHARGE: Final = 0.95
"""Confidence from which slow iterations are taken to belong to one of two sides."""
_ROUNDING: Final = 1e-9
"""Smallest half width (of a log ratio): differences below it are rounding, not speed."""

Hint = Literal["faster", "slower", "tie"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparison:
    """Speed of a candidate against a reference."""

    ratio: float
    """Reference's time ÷ candidate's time: above 1 the candidate is faster."""
    low: float | None
    high: float | None
    """Interval of ``ratio``, 95 % unless asked otherwise; ``None`` where nothing shows a spread."""
    verdict_hint: Hint
    """What the interval says of the candidate; ``tie`` when it holds 1 or is unknown."""
    rounds: int
    """Launches of the candidate."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Launch:
    """One launch of a comparison, by two summaries of its iterations (s/it)."""

    mean_s: float
    """Window time ÷ iterations: the objective."""
    typical_s: float
    """Mean without the slow iterations (``analysis.slow``)."""
    iterations: int = 0
    num_slow: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Turn:
    """A launch at its place in a comparison."""

    side: int
    """Who was launched; any numbers that tell the sides apart, such as those of trials."""
    position: int
    """Place in the order of launches; drift is linear in it."""
    launch: Launch


def launches_of(measured: Sequence[tuple[int, Measurement]]) -> tuple[Launch, ...]:
    """Return the summaries of launches, in their order.

    Args:
        measured: Number of the configuration and measurement of each launch. Those of one
            configuration are taken apart together.
    """
    found: dict[int, Launch] = {}
    for number in dict(measured):
        # Launches of one configuration have equal cycles; records of earlier versions no times.
        mine = [i for i, (other, one) in enumerate(measured) if other == number]
        timed = [i for i in mine if measured[i][1].iteration_s]
        if timed:
            cycle = len(measured[timed[0]][1].batch_median_s)
            parted = slow.part([measured[i][1].iteration_s for i in timed], cycle)
            found |= {i: _launch(measured[i][1], one) for i, one in zip(timed, parted, strict=True)}
        found |= {i: _old_launch(measured[i][1]) for i in mine if i not in found}
    return tuple(found[i] for i in range(len(measured)))


def _launch(measurement: Measurement, parted: slow.Parted) -> Launch:
    # The objective is the window's own clock; the iterations only say how it divides.
    clock = measurement.s_per_it / statistics.fmean(measurement.iteration_s)
    return Launch(
        mean_s=measurement.s_per_it,
        typical_s=parted.typical_s * clock,
        iterations=measurement.iterations,
        num_slow=parted.num_slow,
    )


def _old_launch(measurement: Measurement) -> Launch:
    typical = statistics.fmean(measurement.batch_median_s)
    return Launch(mean_s=measurement.s_per_it, typical_s=typical)


def compare_turns(
    turns: Sequence[Turn], reference: int, candidate: int, *, confidence: float = CONFIDENCE
) -> Comparison:
    """Compare two sides of launches in turns, without the noise of slow iterations.

    With n rounds of two sides the interval is Student's t with 2n - 3 degrees of freedom. One round
    has no drift removed and no interval.

    What is asked is the ratio of the mean times. It is the ratio of the typical times, times the
    ratio of what slow iterations add. A few iterations at 1.5 times the usual make most of a
    launch's noise; coming from the machine, they meet sides that take turns alike, so the second
    ratio is 1 and leaving it out favours nobody. It is left out only while nothing speaks
    against that: where the share that slow iterations add differs between the two (95 %
    interval), or mean and typical times point to different sides, they may belong to one of
    them, and the mean times are compared with all their noise. Where there are slow iterations,
    that makes two questions of one, so each interval is widened for two (Bonferroni).

    Args:
        turns: Launches in turns; those of other sides are left out, but their places stay.
        reference: The side that is compared with.
        candidate: The side that is asked about.
        confidence: Of the interval. For k candidates ``1 - 0.05 / k`` keeps the chance that any
            of them is wrongly called faster (Bonferroni).

    Raises:
        ValueError: A side has no launch, or a time is not positive and finite.
    """
    turns = [turn for turn in turns if turn.side in (reference, candidate)]
    means = [turn.launch.mean_s for turn in turns]
    typical = [turn.launch.typical_s for turn in turns]
    for value in (*means, *typical):
        if not math.isfinite(value) or value <= 0:
            raise ValueError(f"a launch's s/it must be positive and finite, not {value!r}")
    surcharges = [mean / usual for mean, usual in zip(means, typical, strict=True)]
    spikes = _by(surcharges, turns, reference, candidate, OWN_SURCHARGE)
    questions = 1 if means == typical else 2
    confidence = 1.0 - (1.0 - confidence) / questions
    by_means = _by(means, turns, reference, candidate, confidence)
    by_typical = _by(typical, turns, reference, candidate, confidence)
    same_side = (by_means.ratio > 1) == (by_typical.ratio > 1)
    return by_typical if same_side and spikes.verdict_hint == "tie" else by_means


def _by(
    seconds: Sequence[float], turns: Sequence[Turn], reference: int, candidate: int, share: float
) -> Comparison:
    logs = [math.log(value) for value in seconds]
    rounds = sum(turn.side == candidate for turn in turns)
    if not rounds or all(turn.side != reference for turn in turns):
        raise ValueError("a comparison needs a launch of either side")
    if len(logs) < 4:
        gain = _mean(logs, turns, reference) - _mean(logs, turns, candidate)
        return Comparison(
            ratio=math.exp(gain), low=None, high=None, verdict_hint="tie", rounds=rounds
        )
    marks = [float(turn.side == candidate) for turn in turns]
    effect, half = _effect(logs, [float(turn.position) for turn in turns], marks, share)
    hint: Hint = "tie"
    if -effect - half > 0:
        hint = "faster"
    elif -effect + half < 0:
        hint = "slower"
    return Comparison(
        ratio=math.exp(-effect),
        low=math.exp(-effect - half),
        high=math.exp(-effect + half),
        verdict_hint=hint,
        rounds=rounds,
    )


def _mean(logs: Sequence[float], turns: Sequence[Turn], side: int) -> float:
    return statistics.fmean(
        value for value, turn in zip(logs, turns, strict=True) if turn.side == side
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
