"""What the records of a study say: what counts, what is best, what the sampler may be told.

All functions are pure and read the present space and context of the study only: trials of
another workload, topology or environment are kept and shown, never told, compared or counted.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any, Final

from autotune.analysis.noise import launch_spread
from autotune.contract.failures import POLICIES, FailureKind
from autotune.contract.outcome import Failure
from autotune.search.dominance import known_too_large, likely_too_large
from autotune.search.observations import Observation
from autotune.space.model import Config
from autotune.space.search_space import SearchSpace
from autotune.store.records import StudyContents, TrialRecord

MEMORY_KINDS: Final = ("oom_device", "oom_host")


def comparable(contents: StudyContents) -> tuple[TrialRecord, ...]:
    """Trials of the present workload, topology and environment."""
    return tuple(trial for trial in contents.trials if contents.comparable(trial))


def failure_of(trial: TrialRecord) -> Failure | None:
    """Why the trial failed, if it did."""
    return trial.outcome.failure if trial.outcome is not None else None


def is_counted(trial: TrialRecord) -> bool:
    """Whether the trial is one of the ``--trials`` that the user asked for."""
    if trial.outcome is None:
        return False
    failure = trial.outcome.failure
    return failure is None or POLICIES[failure.kind].counts


def counted(contents: StudyContents) -> int:
    """Number of trials of ``--trials`` that are done."""
    return sum(is_counted(trial) for trial in comparable(contents))


def unfinished(contents: StudyContents) -> tuple[TrialRecord, ...]:
    """Trials to launch once more: interrupted, or ended by the machine rather than by themselves.

    Those that a changed space no longer holds are left as they are.
    """
    baseline = contents.baseline()
    return tuple(
        trial
        for trial in comparable(contents)
        if not is_counted(trial)
        and (contents.inside(trial) or (baseline is not None and trial.number == baseline.number))
    )


def cut_short(contents: StudyContents, limit_s: float) -> tuple[TrialRecord, ...]:
    """Trials that failed for want of time under a limit below ``limit_s`` seconds.

    Too slow for a limit is no time: with more of it the trial may be measured.
    """
    found: list[TrialRecord] = []
    for trial in comparable(contents):
        failure = failure_of(trial)
        if failure is None or failure.limit_s is None or failure.limit_s >= limit_s:
            continue
        if contents.inside(trial):
            found.append(trial)
    return tuple(found)


def observations(contents: StudyContents, space: SearchSpace) -> tuple[Observation, ...]:
    """What the sampler is told: launched configurations inside the present space that teach."""
    found: list[Observation] = []
    for trial in comparable(contents):
        if not is_counted(trial):
            continue
        failure = failure_of(trial)
        if failure is not None and not POLICIES[failure.kind].teaches:
            continue
        assignment = space.assignment_of(config_of(trial))
        if assignment is None:
            continue
        measured = trial.measurement.s_per_it if trial.measurement is not None else None
        found.append(Observation(assignment=assignment, s_per_it=measured))
    return tuple(found)


def config_of(trial: TrialRecord) -> Config:
    """The configuration that the trial ran."""
    header = trial.header
    return Config(backend=header.backend, values=dict(header.config), dead=(), key=header.key)


def launched_keys(contents: StudyContents) -> frozenset[str]:
    """Canonical keys that must not be launched as a new trial."""
    return frozenset(trial.header.key for trial in comparable(contents))


def is_too_large(contents: StudyContents, config: Config) -> bool:
    """Whether a smaller configuration has already run out of memory."""
    return known_too_large(config.backend, config.values, _out_of_memory(contents))


def is_probably_too_large(contents: StudyContents, config: Config) -> bool:
    """Whether configurations with a smaller micro-step have run out of memory twice."""
    fitted = [
        (trial.header.backend, trial.header.config)
        for trial in comparable(contents)
        if trial.measurement is not None
    ]
    return likely_too_large(config.backend, config.values, _out_of_memory(contents), fitted)


def _out_of_memory(contents: StudyContents) -> list[tuple[str, dict[str, Any]]]:
    return [
        (trial.header.backend, trial.header.config)
        for trial in comparable(contents)
        if (failure := failure_of(trial)) is not None and failure.kind in MEMORY_KINDS
    ]


def s_per_it(contents: StudyContents, number: int) -> float | None:
    """Median over the complete launches of a trial's configuration; ``None`` without one."""
    times = [one.s_per_it for one in contents.launches(number)]
    return statistics.median(times) if times else None


def search_time(contents: StudyContents, number: int) -> float | None:
    """Median over a trial's launches, those of a confirmation left out.

    So the choice of the finalist does not depend on how far its confirmation is.
    """
    trial = contents.trial(number)
    if trial is None or trial.state != "complete":
        return None
    again = [
        one.measurement
        for one in contents.remeasurements
        if one.header.trial == number
        and one.header.round is None
        and one.header.context == contents.study.context
        and one.state == "complete"
    ]
    times = [one.s_per_it for one in (trial.measurement, *again) if one is not None]
    return statistics.median(times)


def ranking(contents: StudyContents) -> tuple[TrialRecord, ...]:
    """Complete trials that may be best, the fastest first: inside the space, or the baseline."""
    baseline = contents.baseline()
    out = contents.disqualified()
    ranked: list[tuple[float, int, TrialRecord]] = []
    for trial in comparable(contents):
        is_baseline = baseline is not None and trial.number == baseline.number
        allowed = is_baseline or (contents.inside(trial) and trial.number not in out)
        if trial.state != "complete" or not allowed:
            continue
        time = search_time(contents, trial.number)
        if time is not None:
            ranked.append((time, trial.number, trial))
    return tuple(trial for _, _, trial in sorted(ranked, key=lambda item: item[:2]))


def noise_share(contents: StudyContents) -> float | None:
    """Spread between launches of the baseline, as a share; ``None`` before it has two."""
    baseline = contents.baseline()
    if baseline is None:
        return None
    times = [one.s_per_it for one in contents.launches(baseline.number)]
    return launch_spread(times) if len(times) > 1 else None


def causes(contents: StudyContents) -> tuple[tuple[FailureKind, str, int, int], ...]:
    """Failures of the present context as (kind, reason, number, an example trial), most first."""
    table: dict[tuple[FailureKind, str], list[int]] = {}
    for trial, failure in _failures(contents):
        table.setdefault((failure.kind, failure.reason), []).append(trial.number)
    rows = [(kind, reason, len(found), found[0]) for (kind, reason), found in table.items()]
    return tuple(sorted(rows, key=lambda row: (-row[2], row[3])))


def _failures(contents: StudyContents) -> Iterator[tuple[TrialRecord, Failure]]:
    for trial in comparable(contents):
        failure = failure_of(trial)
        if failure is not None and failure.kind != "interrupted":
            yield trial, failure
