"""What the records of a study say: what counts, what is best, what the sampler may be told.

All functions are pure and read the present space and context of the study only: trials of
another workload, topology or environment are kept and shown, never told, compared or counted.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from autotune.analysis.paired import Launch, launches_of
from autotune.analysis.ranking import estimates, weighed
from autotune.contract.failures import POLICIES, FailureKind
from autotune.contract.outcome import Failure
from autotune.knobs.words import settings_words
from autotune.search import pairs
from autotune.search.dominance import known_too_large, likely_too_large
from autotune.search.observations import Observation
from autotune.space.model import Config
from autotune.space.search_space import SearchSpace
from autotune.store.records import COMPARED, StudyContents, TrialRecord

MEMORY_KINDS: Final = ("oom_device", "oom_host")


def comparable(contents: StudyContents) -> tuple[TrialRecord, ...]:
    """Trials of the present workload, topology and environment."""
    return tuple(trial for trial in contents.trials if contents.comparable(trial))


def failure_of(trial: TrialRecord) -> Failure | None:
    """Why the trial failed, if it did."""
    return trial.outcome.failure if trial.outcome is not None else None


def is_of_search(trial: TrialRecord) -> bool:
    """Whether the search made the trial: baseline, anchor or proposal, not a comparison's file."""
    return not trial.header.origin.startswith(COMPARED)


def has_ended(trial: TrialRecord) -> bool:
    """Whether the configuration itself, and not the machine or the user, ended the trial."""
    if trial.outcome is None:
        return False
    failure = trial.outcome.failure
    return failure is None or POLICIES[failure.kind].counts


def is_counted(trial: TrialRecord) -> bool:
    """Whether the trial is one of the ``--trials`` that the user asked for."""
    return is_of_search(trial) and has_ended(trial)


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
        if is_of_search(trial)
        and not has_ended(trial)
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
        if not has_ended(trial):
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
    return frozenset(
        trial.header.key
        for trial in comparable(contents)
        if is_of_search(trial) or has_ended(trial)
    )


def is_too_large(
    contents: StudyContents, config: Config, micro_steps: Callable[[Mapping[str, Any]], int | None]
) -> bool:
    """Whether a smaller configuration has already run out of memory.

    One whose iteration is a single micro-step holds no gradients of earlier ones beside its
    activations, so what several small micro-steps needed says nothing about it.

    Args:
        contents: The records.
        config: What might be launched.
        micro_steps: How many an iteration has with these values, by full knob name; ``None``
            where that is not known.
    """
    failed = _out_of_memory(contents)
    if failed and micro_steps(config.values) == 1:
        failed = [(backend, values) for backend, values in failed if micro_steps(values) == 1]
    return known_too_large(config.backend, config.values, failed)


def is_probably_too_large(contents: StudyContents, config: Config) -> bool:
    """Whether configurations with a smaller micro-step have run out of memory twice."""
    fitted = [
        (trial.header.backend, trial.header.config)
        for trial in comparable(contents)
        if trial.measurement is not None
    ]
    return likely_too_large(config.backend, config.values, _out_of_memory(contents), fitted)


def is_known_to_fail(contents: StudyContents, config: Config) -> str | None:
    """Why settings of ``config`` are known not to work together; ``None`` if they are not."""
    for trial, failure in _failures(contents):
        if trial.header.backend == config.backend and pairs.holds(failure.combination, config):
            named = settings_words(
                {name.partition(".")[2]: value for name, value in failure.combination.items()}
            )
            return f"{named}: incompatible in trial {trial.number}"
    return None


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


def search_launches(contents: StudyContents, number: int) -> tuple[Launch, ...]:
    """A trial's launches, those of confirmations and comparisons left out.

    So the choice of the finalists does not depend on how far their confirmation is.
    """
    return tuple(launch for one, launch in _of_the_search(contents) if one == number)


def _of_the_search(contents: StudyContents) -> tuple[tuple[int, Launch], ...]:
    rounds = tuple(
        again if again.header.round is None else dataclasses.replace(again, attempts=())
        for again in contents.remeasurements
    )
    searched = dataclasses.replace(contents, remeasurements=rounds)
    launches = searched.launches_in_order()
    return tuple(zip((number for number, _ in launches), launches_of(launches), strict=True))


def ranking(contents: StudyContents) -> tuple[TrialRecord, ...]:
    """Complete trials that may be best, the fastest first: inside the space, or the baseline.

    One that is unstable stands behind stable ones that are nearly as fast.
    """
    times = search_times(contents)
    ranked = [
        (
            weighed(times[trial.number], unstable=contents.unstable(trial.number)),
            trial.number,
            trial,
        )
        for trial in contents.trials
        if trial.number in times and contents.may_be_best(trial)
    ]
    return tuple(trial for _, _, trial in sorted(ranked, key=lambda item: item[:2]))


def search_times(contents: StudyContents) -> dict[int, float]:
    """Each trial's estimated s/it by the launches of the search (``analysis.ranking``)."""
    return estimates(_of_the_search(contents))


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
