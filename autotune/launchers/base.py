"""What every launcher does: start, submit, poll, cancel, close.

A launcher owns the processes of a trial from submission until every one of them is reaped, and
it enforces the plan's deadlines from outside the measured processes.
"""

from __future__ import annotations

import dataclasses
from typing import Literal, Protocol

from autotune.contract.failures import Phase
from autotune.contract.folder import AttemptFolder
from autotune.contract.plan import Plan
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
