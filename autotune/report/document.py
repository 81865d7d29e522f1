"""The report as one JSON document: a contract for programs, and the source of the other reports.

Its keys: docs/reference/report-json.md. Beyond the first ones it holds ``running``, ``topology``,
``projection``, ``replayed_from`` (the table that the launches were played from) and ``problems``;
trials carry ``origin``, ``other_context``, ``outside_space``, ``unsteady``, ``unstable``,
``invalid_s_per_it``, ``warmup_s``, ``compile_s`` and ``log``; ``baseline`` and ``best`` carry
``read_back`` (how far each setting was seen in effect), ``implementations`` and ``unverified``;
``best`` carries the verdict's ``reason``, ``later_trials``, how many were launched after it, and
``compared``, every finalist's speed against the baseline. ``ranking`` puts all valid trials in
order, by the estimates of :mod:`autotune.analysis.ranking`.

Before there is a verdict ``best.verdict`` is null: ``best`` is then the fastest complete trial,
``speedup.ratio`` compares single launches, and its ``low`` and ``high`` are null because nothing
is known about the spread between launches.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from typing import Any, Final

from autotune.analysis.launches import LaunchTime, summarise
from autotune.analysis.paired import launches_of
from autotune.analysis.ranking import estimates, weighed
from autotune.contract import codec
from autotune.contract.failures import FailureKind
from autotune.contract.outcome import Measurement, Outcome, PeakMemory
from autotune.store.records import (
    RemeasurementRecord,
    StudyContents,
    TrialRecord,
    Verdict,
)

SCHEMA_VERSION: Final = 1


def build(contents: StudyContents) -> dict[str, Any]:
    """Return the document. Equal contents give equal documents; all numbers are finite."""
    baseline = contents.baseline()
    best = _best(contents, baseline)
    study = contents.study
    return {
        "schema_version": SCHEMA_VERSION,
        "study": study.name,
        "space_fingerprint": study.space_fingerprint,
        "running": contents.live,
        "environment": study.environment,
        "replayed_from": study.environment.get("replayed_from"),
        "topology": codec.to_json(study.topology),
        "counts": counts(contents),
        "baseline": _configuration(contents, baseline),
        "best": best,
        "ranking": ranking(contents),
        "projection": _projection(contents, baseline, best["trial"]),
        "trials": [_trial(contents, trial) for trial in contents.trials],
        "remeasurements": [_remeasurement(contents, again) for again in contents.remeasurements],
        "problems": list(contents.problems),
    }


def counts(contents: StudyContents) -> dict[str, int]:
    """Trials of the present context: ``measured``, then each failure kind by how often it came.

    Running and interrupted trials are not counted.
    """
    found: Counter[str] = Counter()
    for trial in filter(contents.comparable, contents.trials):
        if trial.measurement is not None:
            found["measured"] += 1
        elif trial.state == "failed":
            found[_kind(trial) or "crash"] += 1
    kinds = sorted((kind for kind in found if kind != "measured"), key=lambda k: (-found[k], k))
    return {"measured": found["measured"]} | {kind: found[kind] for kind in kinds}


def ranking(contents: StudyContents) -> list[dict[str, Any]]:
    """Valid trials, the fastest first, by the estimate from all launches of each.

    One that is unstable stands behind stable ones within 3 %.
    """
    launches = contents.launches_in_order()
    numbers = [number for number, _ in launches]
    times = estimates(list(zip(numbers, launches_of(launches), strict=True)))
    valid = {trial.number for trial in contents.trials if contents.may_be_best(trial)}
    rows = [
        {"trial": number, "s_per_it": seconds, "unstable": contents.unstable(number)}
        for number, seconds in times.items()
        if number in valid
    ]
    return sorted(
        rows, key=lambda row: (weighed(row["s_per_it"], unstable=row["unstable"]), row["trial"])
    )


def current_verdict(contents: StudyContents) -> Verdict | None:
    """The verdict, if it holds for the present space and context.

    Later trials do not undo what launches proved, but they do undo ``none_feasible``.
    """
    verdict, study = contents.verdict, contents.study
    if verdict is None or verdict.context != study.context:
        return None
    if verdict.space_fingerprint != study.space_fingerprint:
        return None
    if verdict.verdict == "none_feasible" and contents.later_than(verdict.at):
        return None
    return verdict


def _best(contents: StudyContents, baseline: TrialRecord | None) -> dict[str, Any]:
    verdict = current_verdict(contents)
    if verdict is None:
        return _unconfirmed(contents, baseline)
    if verdict.verdict == "keep_baseline":
        trial = baseline
    else:
        trial = None if verdict.best_trial is None else contents.trial(verdict.best_trial)
    more = {
        "reason": verdict.reason or None,
        "later_trials": len(contents.later_than(verdict.at)),
        "compared": [codec.to_json(one) for one in verdict.compared],
    }
    if trial is None or _time(contents, trial) is None:
        return _result_of(contents, None, None, "none_feasible") | more
    speedup: dict[str, Any] | None = None
    if trial is baseline:
        speedup = {"ratio": 1.0, "low": 1.0, "high": 1.0}
    elif verdict.ratio is not None:
        speedup = {"ratio": verdict.ratio, "low": verdict.low, "high": verdict.high}
    return _result_of(contents, trial, speedup, verdict.verdict) | more


def _result_of(
    contents: StudyContents,
    trial: TrialRecord | None,
    speedup: dict[str, Any] | None,
    verdict: str | None,
) -> dict[str, Any]:
    more: dict[str, Any] = {"speedup": speedup, "verdict": verdict, "reason": None}
    more |= {"later_trials": 0, "compared": []}
    return _configuration(contents, trial) | more


def _unconfirmed(contents: StudyContents, baseline: TrialRecord | None) -> dict[str, Any]:
    failed_again = contents.disqualified()
    timed = [
        (
            weighed(time.median, unstable=contents.unstable(trial.number)),
            trial.number,
            trial,
            time.median,
        )
        for trial in contents.trials
        if trial.state == "complete"
        and (trial is baseline or (contents.inside(trial) and trial.number not in failed_again))
        and (time := _time(contents, trial)) is not None
    ]
    if not timed:
        given_up = bool(contents.trials) and not contents.live
        failed = any(t.state == "failed" for t in contents.trials if contents.comparable(t))
        word = "none_feasible" if given_up and failed else None
        return _result_of(contents, None, None, word)
    _, _, trial, median = min(timed, key=lambda item: item[:2])
    reference = None if baseline is None else _time(contents, baseline)
    speedup = None
    if reference is not None:
        ratio = 1.0 if trial is baseline else reference.median / median
        speedup = {"ratio": ratio, "low": None, "high": None}
    return _result_of(contents, trial, speedup, None)


def _time(contents: StudyContents, trial: TrialRecord) -> LaunchTime | None:
    return summarise(contents.launches(trial.number))


def _configuration(contents: StudyContents, trial: TrialRecord | None) -> dict[str, Any]:
    if trial is None:
        return {
            "trial": None,
            "origin": None,
            "backend": None,
            "outside_space": False,
            "params": {},
            "config": {},
            "s_per_it": None,
            "num_launches": 0,
            "peak_memory_bytes": None,
            **_in_effect(None),
        }
    launches = contents.launches(trial.number)
    time = summarise(launches)
    peaks = [launch.peak_memory for launch in launches]
    return {
        "trial": trial.number,
        "origin": trial.header.origin,
        "backend": trial.header.backend,
        "outside_space": not contents.inside(trial),
        "params": trial.header.params,
        "config": trial.header.config,
        "s_per_it": None
        if time is None
        else {"median": time.median, "low": time.low, "high": time.high, "mean": time.mean},
        "num_launches": len(launches),
        "peak_memory_bytes": {
            "timed": max(peak.timed for peak in peaks),
            "worst_case": max(peak.worst_case for peak in peaks),
            "worst_case_is_bound": any(peak.is_bound for peak in peaks),
        }
        if peaks
        else None,
        **_in_effect(launches[0] if launches else None),
    }


def _in_effect(launch: Measurement | None) -> dict[str, Any]:
    """What was seen in the running engine, and what was passed to it unseen."""
    if launch is None:
        return {
            "read_back": {},
            "numerics": {},
            "implementations": {},
            "backward": {},
            "unverified": {},
            "rounding": [],
        }
    return {
        "read_back": {name: back.level for name, back in sorted(launch.read_back.items())},
        "numerics": codec.to_json(launch.gaps),
        "implementations": launch.implementations,
        "backward": launch.backward,
        "unverified": launch.notes.get("unverified", {}),
        "rounding": launch.notes.get("rounding", []),
    }


def _trial(contents: StudyContents, trial: TrialRecord) -> dict[str, Any]:
    header, measured = trial.header, trial.measurement
    failure = trial.outcome.failure if trial.outcome else None
    return {
        "number": trial.number,
        "origin": header.origin,
        "backend": header.backend,
        "params": header.params,
        **_result(trial),
        "tokens_per_s": measured.tokens_per_s if measured else None,
        "mfu": measured.mfu if measured else None,
        "micro_steps": measured.micro_steps if measured else None,
        "padding_share": measured.padding_share if measured else None,
        "distinct_shapes": measured.distinct_shapes if measured else None,
        "memory": _memory(measured),
        "alloc_retries": measured.alloc_retries if measured else None,
        "unstable": contents.unstable(trial.number) if measured else None,
        "recompiled_iterations": measured.recompiled_iterations if measured else None,
        "throttled": measured.throttled if measured else None,
        "unsteady": measured.unsteady if measured else None,
        "warmup_s": measured.warmup_total_s if measured else None,
        "compile_s": measured.compile_s if measured else None,
        "invalid_s_per_it": failure.measured_s_per_it if failure else None,
        "other_context": not contents.comparable(trial),
        "outside_space": not contents.inside(trial),
        "log": log_file(contents, trial),
    }


def _memory(measured: Measurement | None) -> dict[str, Any] | None:
    """Where the peaks lie, and what they have to fit in."""
    if measured is None:
        return None
    peak, worst = measured.peak_memory, measured.worst_case
    return {
        "first_bytes": peak.first or None,
        "timed_bytes": peak.timed,
        "worst_case_bytes": peak.worst_case,
        "worst_case_is_bound": peak.is_bound,
        "limit_bytes": peak.limit,
        "margin_bytes": measured.memory_margin_bytes,
        "worst_case_shape": None if worst is None else [worst.rows, worst.length],
    }


def _remeasurement(contents: StudyContents, again: RemeasurementRecord) -> dict[str, Any]:
    return {
        "number": again.number,
        "role": again.header.role,
        "trial": again.header.trial,
        "round": again.header.round,
        "comparison": again.header.comparison,
        **_result(again),
        "other_context": again.header.context != contents.study.context,
    }


def _result(item: TrialRecord | RemeasurementRecord) -> dict[str, Any]:
    outcome, measured = item.outcome, item.measurement
    return {
        "state": item.state,
        "kind": _kind(item),
        "reason": _reason(item),
        "s_per_it": measured.s_per_it if measured else None,
        "peak_memory_bytes": _peak(outcome),
        "overhead_s": outcome.overhead_s if outcome else None,
        "timed_s": outcome.timed_s if outcome else None,
    }


def _kind(item: TrialRecord | RemeasurementRecord) -> FailureKind | None:
    if item.outcome is None:
        return "interrupted" if item.state == "interrupted" else None
    return item.outcome.failure.kind if item.outcome.failure else None


def _reason(item: TrialRecord | RemeasurementRecord) -> str | None:
    if item.outcome is None:
        return "the search was stopped before it ended" if item.state == "interrupted" else None
    return item.outcome.failure.reason if item.outcome.failure else None


def _peak(outcome: Outcome | None) -> int | None:
    """The larger of the timed and the worst-case peak, of what was measured."""
    peak: PeakMemory | None = None
    if outcome is not None and outcome.measurement is not None:
        peak = outcome.measurement.peak_memory
    elif outcome is not None and outcome.failure is not None:
        peak = outcome.failure.peak_memory
    return None if peak is None else peak.measured


def log_file(contents: StudyContents, trial: TrialRecord) -> str | None:
    """The log that tells why a trial has no time: of the rank at fault, else the first."""
    if trial.measurement is not None or not trial.attempts:
        return None
    failure = trial.outcome.failure if trial.outcome else None
    rank = failure.rank if failure is not None and failure.rank is not None else 0
    folder = contents.folder.attempt("trial", trial.number, trial.attempts[-1].number)
    return str(folder.log_file(rank))


def _projection(
    contents: StudyContents, baseline: TrialRecord | None, best: int | None
) -> dict[str, Any] | None:
    """Hours for one pass over the user's whole data set, before and after."""
    samples = contents.study.workload.get("samples", {}).get("dataset_samples")
    global_batch = contents.study.workload.get("global_batch")
    if not isinstance(samples, int) or not isinstance(global_batch, int):
        return None
    iterations = math.ceil(samples / global_batch)

    def hours(number: int | None) -> dict[str, float] | None:
        time = None if number is None else summarise(contents.launches(number))
        if time is None:
            return None
        wall = iterations * time.median / 3600
        return {"hours": wall, "device_hours": wall * contents.study.topology.processes}

    return {
        "num_samples": samples,
        "iterations": iterations,
        "baseline": hours(None if baseline is None else baseline.number),
        "best": hours(best),
    }


@dataclasses.dataclass(frozen=True, kw_only=True)
class FailureGroup:
    """All trials that failed alike."""

    kind: FailureKind
    count: int
    reason: str
    """Of the first of them."""
    log: str | None
    """Of the first of them."""


def failures(contents: StudyContents) -> tuple[FailureGroup, ...]:
    """Failures of the present context by kind, the most frequent first."""
    by_kind: dict[FailureKind, list[TrialRecord]] = {}
    for trial in filter(contents.comparable, contents.trials):
        if trial.state == "failed":
            by_kind.setdefault(_kind(trial) or "crash", []).append(trial)
    groups = [
        FailureGroup(
            kind=kind,
            count=len(trials),
            reason=_reason(trials[0]) or "",
            log=log_file(contents, trials[0]),
        )
        for kind, trials in by_kind.items()
    ]
    return tuple(sorted(groups, key=lambda group: (-group.count, group.kind)))
