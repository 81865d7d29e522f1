"""What a search tells whoever watches it: the terminal's display, or nobody."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal

from autotune.contract.failures import Phase
from autotune.contract.outcome import Outcome
from autotune.contract.plan import Purpose
from autotune.store.records import Verdict


@dataclasses.dataclass(frozen=True, kw_only=True)
class SearchStarted:
    """The search is about to launch, or finds that nothing is left to do."""

    study: str
    trials: int
    """``--trials``: how many the study is to have."""
    counted: int
    """How many it has already."""
    sampler: str
    observations: int
    """Trials that the sampler is told of."""
    resumed: bool
    max_trial_time_s: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class LaunchStarted:
    """A trial or re-measurement is submitted."""

    purpose: Purpose
    number: int
    attempt: int
    label: str
    """``baseline``, ``anchor hf_auto``, ``proposal``, ``round 2 of 5: finalist``, …"""
    params: Mapping[str, Any]
    changed: Mapping[str, Any]
    """The ``params`` that the baseline has otherwise; empty for the baseline itself."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PhaseChanged:
    """The running launch entered a phase."""

    phase: Phase


@dataclasses.dataclass(frozen=True, kw_only=True)
class LaunchEnded:
    """A launch was judged."""

    purpose: Purpose
    number: int
    attempt: int
    label: str
    outcome: Outcome
    log: str
    """Path of the log to read when it failed."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Progress:
    """Where the search stands after a launch."""

    counted: int
    trials: int
    baseline_trial: int | None
    baseline_s_per_it: float | None
    best_trial: int | None
    best_s_per_it: float | None
    seconds_left: float | None
    """Estimate until the last trial, confirmation apart; ``None`` before there is one."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConfirmationStarted:
    """The best configurations are launched again, in turns with the baseline."""

    finalist: int
    others: tuple[int, ...] = ()
    """Further finalists."""
    rounds: int
    done: int
    """Rounds that an interrupted search has already finished."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finished:
    """The search ended with a verdict."""

    verdict: Verdict


@dataclasses.dataclass(frozen=True, kw_only=True)
class Message:
    """Something to say, one or more lines."""

    text: str
    level: Literal["info", "warning"] = "info"


Event = (
    SearchStarted
    | LaunchStarted
    | PhaseChanged
    | LaunchEnded
    | Progress
    | ConfirmationStarted
    | Finished
    | Message
)
EventSink = Callable[[Event], None]
