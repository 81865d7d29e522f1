"""What a study keeps: plain frozen records, each one JSON file in the study's folder.

The folder is the truth and the tables of :mod:`autotune.store.models` are an index of it; both
hold these records as JSON text, so that integers of any size and all digits of a float survive.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Final, Literal

from autotune.contract.failures import POLICIES
from autotune.contract.folder import AttemptFolder, StudyFolder
from autotune.contract.outcome import Failure, Measurement, Outcome, State
from autotune.contract.plan import Purpose, Topology

SCHEMA_VERSION: Final = 1
"""Version of the records in a study's folder. A reader refuses larger ones."""

TrialState = Literal["running", "complete", "stopped_early", "failed", "interrupted"]
VerdictWord = Literal["faster", "tie", "keep_baseline", "none_feasible"]
Role = Literal["baseline", "finalist", "compared"]
COMPARED: Final = "compared:"
"""Start of the origin of a trial that a comparison brought in from a file."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Epoch:
    """A space and a context that a study had before the present ones."""

    space_text: str
    overrides: tuple[str, ...]
    space_fingerprint: str
    context: str
    until: float
    """``time.time()`` when the next ones took over."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class StudyRecord:
    """One search: what was asked for and where it ran (``study.json``)."""

    schema_version: int = SCHEMA_VERSION
    name: str
    created_at: float
    updated_at: float = 0.0
    """When a search last started on it; the latest study is the one with the largest."""
    space_text: str
    """The space file as it is now in force."""
    space_file: str
    """Its path or shipped name, for messages."""
    overrides: tuple[str, ...] = ()
    """``--set`` arguments."""
    space_fingerprint: str
    context: str
    """Digest of workload, topology and environment: only times of one context are comparable."""
    workload: dict[str, Any]
    """The resolved workload: ``contract.plan.Workload`` as plain data."""
    topology: Topology
    environment: dict[str, Any]
    """From :func:`autotune.store.provenance.environment`."""
    launcher: str = "local"
    """``NAME`` or ``NAME=ARGUMENT`` of ``--launcher``."""
    sampler: str
    seed: int
    baseline_trial: int | None = None
    """The trial that holds the present baseline; ``None``: the last one of that origin."""
    outside: tuple[int, ...] = ()
    """Trials made under an earlier space whose configuration lies outside the present one."""
    history: tuple[Epoch, ...] = ()
    """Earlier spaces and contexts, oldest first."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrialHeader:
    """What one trial number stands for, before any launch (``trial.json``)."""

    schema_version: int = SCHEMA_VERSION
    number: int
    origin: str
    """``baseline``, ``anchor:NAME``, ``proposal``, or ``compared:FILE``: not of the search."""
    params: dict[str, Any]
    """Values of the active parameters, by the name that the space file uses."""
    config: dict[str, Any]
    """Every knob of the backend and the workload, by full name."""
    backend: str
    key: str
    """Canonical key of the configuration."""
    context: str
    space_fingerprint: str
    inside_space: bool = True
    """Whether the configuration lies in the space it was made under; a baseline may not."""
    created_at: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class RemeasurementHeader:
    """A declared new launch of a trial's configuration (``remeasurement.json``)."""

    schema_version: int = SCHEMA_VERSION
    number: int
    role: Role
    trial: int
    """The trial whose configuration is launched again."""
    round: int | None = None
    """Round of the confirmation or comparison, from 0; ``None`` for a launch that only measures
    noise."""
    comparison: int | None = None
    """Number of the comparison that it belongs to, for the role ``compared``."""
    context: str
    created_at: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Compared:
    """One finalist against the baseline, over alternating launches."""

    trial: int
    ratio: float
    """Baseline's time ÷ its time; above 1 it is faster."""
    low: float | None
    high: float | None
    """Interval of ``ratio``: 95 % for all finalists together."""
    rounds: int
    """Whole rounds that it rests on."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verdict:
    """What the confirmation found (``verdict.json``)."""

    schema_version: int = SCHEMA_VERSION
    verdict: VerdictWord
    best_trial: int | None
    """The configuration to use: the finalist, the baseline (``keep_baseline``) or a tie's winner;
    ``None`` exactly for ``none_feasible``."""
    ratio: float | None = None
    """Baseline's time ÷ finalist's time in the paired launches; above 1 is faster."""
    low: float | None = None
    high: float | None = None
    """95 % interval of ``ratio`` between launches."""
    finalist: int | None = None
    """The trial that ``ratio`` is about; default: ``best_trial``."""
    compared: tuple[Compared, ...] = ()
    """Every finalist that was compared with the baseline, the fastest first."""
    num_finalists: int = 1
    """How many ``search.finalists`` allowed."""
    reason: str = ""
    """One line for people, where there is more to say."""
    context: str
    space_fingerprint: str
    at: float

    def __post_init__(self) -> None:
        if (self.verdict == "none_feasible") != (self.best_trial is None):
            raise ValueError(f"verdict {self.verdict!r} does not fit trial {self.best_trial!r}")
        if self.verdict == "faster" and None in (self.ratio, self.low, self.high):
            raise ValueError("verdict 'faster' needs a ratio with its interval")
        for value in (self.ratio, self.low, self.high):
            if value is not None and not (math.isfinite(value) and value > 0):
                raise ValueError(f"a speed-up must be positive and finite, not {value!r}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Attempt:
    """One launch of a trial or re-measurement."""

    number: int
    outcome: Outcome | None
    """``None``: it runs, or its coordinator died before it was judged."""


def interrupted(reason: str, *, plan_digest: str = "", at: float = 0.0) -> Outcome:
    """Return the outcome of a launch that nobody judged.

    Args:
        reason: One line for people.
        plan_digest: Of the plan that was launched; empty if none was written.
        at: ``time.time()`` at submission, 0 if it is not known.
    """
    return Outcome(
        plan_digest=plan_digest,
        state="interrupted",
        failure=Failure(kind="interrupted", reason=reason),
        submitted_at=at,
        wall_s=0.0,
        overhead_s=0.0,
        timed_s=0.0,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Launched:
    attempts: tuple[Attempt, ...] = ()
    live: bool = dataclasses.field(default=False, compare=False)
    """Whether a coordinator holds the study."""

    @property
    def outcome(self) -> Outcome | None:
        """The last attempt's outcome: earlier ones were failures that were retried."""
        return self.attempts[-1].outcome if self.attempts else None

    @property
    def next_attempt(self) -> int:
        """The number of the next launch."""
        return self.attempts[-1].number + 1 if self.attempts else 0

    @property
    def measurement(self) -> Measurement | None:
        return self.outcome.measurement if self.outcome else None

    @property
    def state(self) -> TrialState:
        """``running`` without an outcome only while a coordinator lives."""
        if self.outcome is not None:
            state: State = self.outcome.state
            return state
        return "running" if self.live else "interrupted"


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrialRecord(_Launched):
    """A trial number with all its launches."""

    header: TrialHeader

    @property
    def number(self) -> int:
        return self.header.number


@dataclasses.dataclass(frozen=True, kw_only=True)
class RemeasurementRecord(_Launched):
    """A re-measurement with all its launches."""

    header: RemeasurementHeader

    @property
    def number(self) -> int:
        return self.header.number


@dataclasses.dataclass(frozen=True, kw_only=True)
class StudyContents:
    """All that is known of a study. Equal contents give equal reports."""

    folder: StudyFolder
    study: StudyRecord
    trials: tuple[TrialRecord, ...] = ()
    """By number."""
    remeasurements: tuple[RemeasurementRecord, ...] = ()
    """By number."""
    verdict: Verdict | None = None
    live: bool = dataclasses.field(default=False, compare=False)
    problems: tuple[str, ...] = dataclasses.field(default=(), compare=False)
    """Files that were refused and left as they are, in words."""

    def trial(self, number: int) -> TrialRecord | None:
        return next((trial for trial in self.trials if trial.number == number), None)

    def comparable(self, trial: TrialRecord) -> bool:
        """Whether the trial ran the present workload on the present topology and environment."""
        return trial.header.context == self.study.context

    def inside(self, trial: TrialRecord) -> bool:
        """Whether the trial's configuration lies in the present space."""
        if trial.header.space_fingerprint == self.study.space_fingerprint:
            return trial.header.inside_space
        return trial.number not in self.study.outside

    def baseline(self) -> TrialRecord | None:
        """The trial that holds the present baseline, or ``None`` before it is opened."""
        if self.study.baseline_trial is not None:
            return self.trial(self.study.baseline_trial)
        found = [t for t in self.trials if t.header.origin == "baseline" and self.comparable(t)]
        return found[-1] if found else None

    def launches(self, number: int) -> tuple[Measurement, ...]:
        """Complete measurements of a trial's configuration in the present context, in order."""
        trial = self.trial(number)
        found: list[Measurement | None] = []
        if trial is not None and self.comparable(trial) and trial.state == "complete":
            found.append(trial.measurement)
        found += [
            again.measurement
            for again in self.remeasurements
            if again.header.trial == number
            and again.header.context == self.study.context
            and again.state == "complete"
        ]
        return tuple(item for item in found if item is not None)

    def launches_in_order(self) -> tuple[tuple[int, Measurement], ...]:
        """All complete launches of the present context in time, with the trial's number."""
        found: list[tuple[float, int, int, Measurement]] = []
        items: list[tuple[int, TrialRecord | RemeasurementRecord]] = [
            *((trial.number, trial) for trial in self.trials if self.comparable(trial)),
            *(
                (again.header.trial, again)
                for again in self.remeasurements
                if again.header.context == self.study.context
            ),
        ]
        for place, (number, item) in enumerate(items):
            if item.state == "complete" and item.outcome is not None:
                assert item.measurement is not None
                found.append((item.outcome.submitted_at, place, number, item.measurement))
        found.sort(key=lambda one: one[:2])
        return tuple((number, measurement) for _, _, number, measurement in found)

    def unstable(self, number: int) -> bool:
        """Whether an allocator ran out of room while the configuration was timed, in any launch."""
        return any(launch.alloc_retries for launch in self.launches(number))

    def later_than(self, at: float) -> tuple[TrialRecord, ...]:
        """Comparable trials inside the space that were opened, or launched again, after ``at``."""
        return tuple(
            trial
            for trial in self.trials
            if self.comparable(trial)
            and self.inside(trial)
            and (
                trial.header.created_at > at
                or (trial.outcome is not None and trial.outcome.submitted_at > at)
            )
        )

    @property
    def latest(self) -> float:
        """The latest time in these records (``time.time()`` as it was then)."""
        items: tuple[TrialRecord | RemeasurementRecord, ...] = (*self.trials, *self.remeasurements)
        times = [self.study.updated_at, *(item.header.created_at for item in items)]
        times += [item.outcome.submitted_at for item in items if item.outcome is not None]
        return max(times) if self.verdict is None else max(self.verdict.at, *times)

    def may_be_best(self, trial: TrialRecord) -> bool:
        """Whether the trial is valid and inside the present space, or the baseline."""
        if trial.state != "complete" or not self.comparable(trial):
            return False
        baseline = self.baseline()
        if baseline is not None and trial.number == baseline.number:
            return True
        return self.inside(trial) and trial.number not in self.disqualified()

    def disqualified(self) -> frozenset[int]:
        """Trials whose configuration failed when it was launched again as a finalist."""
        return frozenset(
            again.header.trial
            for again in self.remeasurements
            if again.header.role == "finalist"
            and again.header.context == self.study.context
            and again.outcome is not None
            and again.outcome.failure is not None
            and POLICIES[again.outcome.failure.kind].counts
        )

    def last_attempt(self, purpose: Purpose, number: int) -> AttemptFolder | None:
        """The folder of the last launch of a trial or re-measurement."""
        items: tuple[TrialRecord | RemeasurementRecord, ...] = (
            self.trials if purpose == "trial" else self.remeasurements
        )
        for item in items:
            if item.number == number and item.attempts:
                return self.folder.attempt(purpose, number, item.attempts[-1].number)
        return None
