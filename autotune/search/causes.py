"""What ended a failed trial: the first error in time, told apart from what it set off elsewhere."""

from __future__ import annotations

import dataclasses
import math
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from autotune.contract import errortexts, smallfile
from autotune.contract.failures import STEPPING, FailureKind, Phase
from autotune.contract.folder import AttemptFolder
from autotune.contract.outcome import Failure, RankError, RankRecord
from autotune.contract.plan import CommandWorkload, Plan
from autotune.launchers.base import JobStatus, RankExit
from autotune.search import pairs
from autotune.space.place import printable

LOG_TAIL_BYTES: Final = 4000
"""How much of a rank's log goes into a failure's detail."""

KILLED_CODE: Final = 137
"""128 + SIGKILL: what a shell or a container's runtime reports of a process that was killed."""
CLOSING_S: Final = 1.0
"""A peer's death may be seen this much later than what it sets off elsewhere."""

_ALLOCATION_FAULTS: Final = (signal.SIGABRT, signal.SIGBUS)
"""How a process ends whose allocation failed in C++, or whose shared memory ran out."""
_BEFORE_STEPS: Final = ("launch", "init", "build")
"""Phases of a command that has reported no step."""
_FAULTS: Final = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)


@dataclasses.dataclass(frozen=True)
class RankReading:
    """What the coordinator found of one rank: its record, or why there is none."""

    rank: int
    record: RankRecord | None
    problem: str | None = None
    """Why the record cannot be used; ``None`` when it can, or when there is none."""


def find_cause(
    plan: Plan,
    folder: AttemptFolder,
    status: JobStatus,
    readings: Sequence[RankReading],
    *,
    oom_kills: int,
) -> Failure | None:
    """Return why the trial failed, or ``None`` when every rank left a measurement.

    Args:
        plan: What was to run.
        folder: Where the ranks wrote.
        status: How the launcher saw it end.
        readings: One per rank.
        oom_kills: Processes that the kernel's out-of-memory killer ended during the trial.
    """
    if all(_is_measured(reading) for reading in readings):
        return None  # whatever ended the processes after that: no result is lost
    errors = sorted(_errors(readings), key=lambda item: item[1].at)
    # A rank that records the signal that ended it says nothing about why it was sent.
    signalled = [item for item in errors if item[1].kind == "interrupted"]
    errors = [item for item in errors if item not in signalled]
    # A lost peer or network is what another rank's own error sets off here.
    own = [item for item in errors if kind_of(item[1]) != "infra"]
    dead = _unexplained(readings, status)
    if own and (dead is None or not _came_first(dead, own[0][1])):
        return _from_error(plan, folder, *own[0])
    if dead is not None:
        return _from_exit(folder, dead, status.phase, oom_kills)
    damaged = next((reading for reading in readings if reading.problem is not None), None)
    if damaged is not None:
        return _damaged(folder, damaged)
    if status.stopped_for in ("timeout", "hang"):
        return _stopped(plan, status, folder, readings)
    if status.stopped_for == "server_lost":
        return Failure(
            kind="infra", reason="the process that starts the ranks ended", phase=status.phase
        )
    if errors:
        return _from_error(plan, folder, *errors[0])
    if signalled:
        rank, error = signalled[0]
        reason = f"rank {rank} was ended by a signal from outside"
        return Failure(kind="crash", reason=reason, rank=rank, phase=error.phase)
    missing = [reading.rank for reading in readings if reading.record is None]
    if not missing:
        return None
    exits = {item.rank: item for item in status.exits}
    return _from_exit(folder, exits.get(missing[0]) or _gone(missing[0]), status.phase, 0)


def _is_measured(reading: RankReading) -> bool:
    return reading.record is not None and reading.record.measurement is not None


def _damaged(folder: AttemptFolder, reading: RankReading) -> Failure:
    return Failure(
        kind="crash",
        reason=shortened(reading.problem or ""),
        rank=reading.rank,
        detail=log_tail(folder.log_file(reading.rank)),
    )


def _came_first(dead: RankExit, error: RankError) -> bool:
    """Whether a rank's death, rather than the error that another recorded, is the reason.

    The connections of a dying process close before its end can be seen, so an error that any lost
    peer could set off may bear a slightly earlier time than the death.
    """
    if dead.at is None:
        return False
    slack = CLOSING_S if kind_of(error) == "crash" else 0.0
    return dead.at <= error.at + slack


def kind_of(error: RankError) -> FailureKind:
    """The kind of an error: the rank's own word first, its type second, its text last."""
    if error.kind is not None and error.kind != "crash":
        return error.kind
    return errortexts.kind_of({error.type.rpartition(".")[2]}, error.message)


def log_tail(path: Path) -> str:
    """The end of a log, as text; empty when there is none."""
    return smallfile.read_end(path, LOG_TAIL_BYTES).strip()


def _errors(readings: Sequence[RankReading]) -> list[tuple[int, RankError]]:
    return [
        (reading.rank, reading.record.error)
        for reading in readings
        if reading.record is not None and reading.record.error is not None
    ]


def _from_error(plan: Plan, folder: AttemptFolder, rank: int, error: RankError) -> Failure:
    name = error.type.rsplit(".", 1)[-1]
    first_line = error.message.strip().splitlines()[0] if error.message.strip() else ""
    reason = first_line or name
    kind = kind_of(error)
    if kind in ("crash", "infra") and first_line:
        reason = f"{name}: {first_line}"
    settings = {}
    if kind == "incompatible":
        settings = pairs.combination(plan, error.type, error.message)
    if settings:
        reason = f"{pairs.words(plan, settings)}: {reason}"
    return Failure(
        kind=kind,
        reason=shortened(reason),
        combination=settings,
        rank=rank,
        phase=error.phase,
        iteration=error.iteration,
        peak_memory=error.peak_memory,
        detail=error.traceback or log_tail(folder.log_file(rank)),
    )


def _stopped(
    plan: Plan, status: JobStatus, folder: AttemptFolder, readings: Sequence[RankReading]
) -> Failure:
    silent = [one.rank for one in readings if one.record is None]
    silent += [rank for rank, error in _errors(readings) if error.kind == "interrupted"] or [0]
    rank = silent[0] if status.stopped_rank is None else status.stopped_rank
    beat = smallfile.read_beat(folder.heartbeat_file(rank))
    limit = plan.deadlines.total_s
    kind: FailureKind
    if status.stopped_for == "hang":
        limit = status.stopped_limit_s or plan.deadlines.phase_s.get(status.phase, limit)
        kind = "hang"
        reason = f"phase {status.phase} did not end within {limit:g} s"
        if status.stopped_rank is not None:
            reason = f"rank {rank} did not move for {limit:g} s in phase {beat.phase}"
            if beat.iteration:
                reason += f", after {beat.iteration} iterations"
    elif isinstance(plan.workload, CommandWorkload) and status.phase in _BEFORE_STEPS:
        kind = "hang"
        reason = f"the command reported no step within {limit:g} s"
    else:
        kind = "timeout"
        reason = f"no result within {limit:g} s (it was in phase {status.phase})"
    return Failure(
        kind=kind,
        reason=reason,
        rank=rank,
        phase=status.phase,
        iteration=beat.iteration if beat.phase in STEPPING else None,
        detail=log_tail(folder.log_file(rank)),
        limit_s=plan.deadlines.total_s,
    )


def _is_fault(exit_: RankExit) -> bool:
    return exit_.signal in _FAULTS


def _unexplained(readings: Sequence[RankReading], status: JobStatus) -> RankExit | None:
    """The exit of a rank that left no record, and that the launcher itself did not bring about.

    The first in time; where times are not known, a fault of its own before a kill from outside.
    """
    silent = {one.rank: one for one in readings if one.record is None}
    ended = [
        item
        for item in status.exits
        if item.rank in silent
        and (item.signal is not None or item.exit_code is not None)
        # What a damaged record would have said counts for more than a bare exit code.
        and (item.signal is not None or silent[item.rank].problem is None)
        and not _is_launchers_own(item, status)
    ]

    def weight(item: RankExit) -> tuple[float, int, int]:
        at = math.inf if item.at is None else item.at
        if _is_fault(item):
            return at, 0, item.rank
        if item.signal is None:
            return at, 1, item.rank
        return at, (3 if item.signal == signal.SIGTERM else 2), item.rank

    return min(ended, key=weight, default=None)


def _is_launchers_own(item: RankExit, status: JobStatus) -> bool:
    """Whether the launcher ended this rank, for a reason that lies elsewhere."""
    if status.stopped_for is None:
        return False
    if item.at is not None and status.stopped_at is not None:
        return item.at >= status.stopped_at
    if status.stopped_for in ("timeout", "hang"):
        return True
    return status.stopped_for == "server_lost" and not _is_fault(item)


def _from_exit(folder: AttemptFolder, exit_: RankExit, phase: Phase, oom_kills: int) -> Failure:
    rank = exit_.rank
    detail = log_tail(folder.log_file(rank))
    beat = smallfile.read_beat(folder.heartbeat_file(rank))
    said = errortexts.kind_of((), detail)
    kind: FailureKind = "crash"
    if exit_.signal == signal.SIGKILL and not oom_kills:
        reason = f"rank {rank} was killed (SIGKILL) from outside"
    elif exit_.signal == signal.SIGKILL or (exit_.exit_code == KILLED_CODE and oom_kills):
        kind = "oom_host"
        reason = f"the kernel killed rank {rank} for want of memory"
    elif exit_.exit_code == KILLED_CODE:
        kind = "oom_host"
        reason = (
            f"rank {rank} ended with exit code {KILLED_CODE}: something it ran was killed "
            "(SIGKILL), as for want of memory"
        )
    elif exit_.signal is not None:
        name = _signal_name(exit_.signal)
        reason = f"rank {rank} was ended by {name}"
        if exit_.signal in _ALLOCATION_FAULTS and said in ("oom_host", "oom_device"):
            kind = said
            reason = f"rank {rank} could not allocate memory ({name})"
    elif said in ("oom_host", "oom_device"):
        kind = said
        reason = f"rank {rank} could not allocate memory"
    else:
        reason = f"rank {rank} left no record (exit code {exit_.exit_code})"
        if detail:
            reason += f": {detail.splitlines()[-1].strip()}"
    return Failure(
        kind=kind,
        reason=shortened(reason),
        rank=rank,
        phase=phase if beat == smallfile.Beat() else beat.phase,
        iteration=beat.iteration if beat.phase in STEPPING else None,
        detail=detail,
    )


def _gone(rank: int) -> RankExit:
    return RankExit(rank=rank, exit_code=None, signal=None)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def shortened(text: str, limit: int = 300) -> str:
    """``text`` on one line, without control characters, at most ``limit`` characters."""
    line = printable(" ".join(text.split()))
    return line if len(line) <= limit else line[: limit - 1] + "…"
