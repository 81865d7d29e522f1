"""What every launcher does: start, submit, poll, cancel, close.

A launcher owns the processes of a trial from submission until every one of them is reaped, and
it enforces the plan's deadlines from outside the measured processes. The registry names the
:class:`LauncherKind` of each.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any, Literal, Protocol

from autotune.contract.failures import Phase
from autotune.contract.folder import AttemptFolder, StudyFolder
from autotune.contract.plan import CommandWorkload, Plan, Topology, Workload
from autotune.contract.protocol import StopReason


@dataclasses.dataclass(frozen=True, kw_only=True)
class RankExit:
    """How one process of a trial ended."""

    rank: int
    exit_code: int | None
    """``None`` when a signal ended it."""
    signal: int | None
    """Number of that signal."""
    at: float | None = None
    """``time.time()`` when it was seen; ``None`` where that is not known."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class JobStatus:
    """State of a submitted trial."""

    state: Literal["running", "ended"]
    """``ended``: every process of the trial is reaped."""
    phase: Phase
    """The phase that the slowest rank is in."""
    exits: tuple[RankExit, ...] = ()
    stopped_for: StopReason | None = None
    """Why the launcher itself ended the processes, if it did: total deadline; a rank that stood
    still; another rank failed first; ``cancel``; the fork server died."""
    stopped_at: float | None = None
    """``time.time()`` when the launcher began to end them."""
    stopped_rank: int | None = None
    """The rank that stood still, for a ``hang``."""
    stopped_limit_s: float | None = None
    """The limit that was passed, for a ``hang``."""
    submitted_at: float
    """``time.time()`` at submission."""
    wall_s: float
    """Seconds since submission; frozen once ended."""
    notes: tuple[str, ...] = ()
    """What the launcher had to do for this job that the user should know of."""


class Launcher(Protocol):
    """A place where trials run."""

    def start(self) -> str | None:
        """Make ready to launch (start the fork server, reach the scheduler).

        Returns:
            What the user should know of it (that trials start slower than they could, say).

        Raises:
            EnvironmentFault: It cannot be made ready; says what is missing.
        """

    def submit(self, folder: AttemptFolder, plan: Plan) -> str:
        """Start the trial whose ``plan.json`` lies in ``folder`` and return a job id."""

    def poll(self, job: str, *, timeout_s: float = 0.0) -> JobStatus:
        """Return the state, waiting up to ``timeout_s`` seconds for the job to end."""

    def cancel(self, job: str) -> None:
        """End the job's processes: SIGTERM, then SIGKILL. Returns when all are reaped."""

    def close(self) -> None:
        """End all jobs and everything that ``start`` started."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SiteDevice:
    """One device of a site."""

    name: str
    memory_bytes: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Site:
    """Where a launcher's trials run, if that is not this machine."""

    topology: Topology
    devices: tuple[SiteDevice, ...]
    host_memory_bytes: int
    environment: dict[str, Any]
    """What a study records of it, with the keys of ``store.provenance.environment``."""
    facts: Mapping[str, Any]
    """What conditions of knobs may name of its model and packages (``space.model.Limits``)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Order:
    """What a study wants of its launcher."""

    study: StudyFolder
    topology: Topology
    backends: tuple[str, ...]
    """Engines that its trials use."""
    is_command: bool
    """Whether a program of the user's own does the work."""
    seed: int
    """``search.seed``."""
    modules: tuple[str, ...] = ()
    """What a server imports for all ranks, beside the engines' own."""


class LauncherKind(Protocol):
    """A way to launch; the class that the registry names for ``--launcher NAME=ARGUMENT``."""

    def __init__(self, argument: str | None) -> None:
        """Take what the user wrote after ``=``; ``None``: nothing.

        Raises:
            InputError: There must be an argument, or must be none, or it is wrong.
        """

    @property
    def argument(self) -> str | None:
        """What it was given, in the form that a study records: a path is absolute."""

    @property
    def site(self) -> Site | None:
        """Where trials run; ``None``: on this machine."""

    def refused_work(self, workload: CommandWorkload | Workload) -> str | None:
        """Why trials of this workload cannot be launched; ``None``: they can."""

    def refused_values(self, knob: str, values: Collection[Any]) -> dict[Any, str]:
        """Which of a knob's values no configuration here can have, each with the reason."""

    def refused_config(
        self, key: str, backend: str, config: Mapping[str, Any], stated: Collection[str]
    ) -> str | None:
        """Why a configuration cannot be launched, in words; ``None``: it can.

        Args:
            key: Its canonical key.
            backend: Name of its backend.
            config: Every knob by full name.
            stated: Knobs that the user tunes or sets.
        """

    def launcher(self, order: Order) -> Launcher:
        """Return the launcher of one study."""
