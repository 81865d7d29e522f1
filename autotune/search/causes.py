"""What ended a failed trial: the first error in time, told apart from what it set off elsewhere."""

from __future__ import annotations

import dataclasses
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from autotune.contract import errortexts, smallfile
from autotune.contract.failures import FailureKind, Phase
from autotune.contract.folder import AttemptFolder
from autotune.contract.outcome import Failure, RankError, RankRecord
from autotune.contract.plan import CommandWorkload, Plan
from autotune.launchers.base import JobStatus, RankExit
from autotune.space.place import printable

LOG_TAIL_BYTES: Final = 4000
"""How much of a rank's log goes into a failure's detail."""

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
    for reading in readings:
        if reading.problem is not None:
            return Failure(
                kind="crash",
                reason=reading.problem,
                rank=reading.rank,
                detail=log_tail(folder.log_file(reading.rank)),
            )
    errors = sorted(_errors(readings), key=lambda item: item[1].at)
    # A rank that records the signal that ended it says nothing about why it was sent.
    signalled = [item for item in errors if item[1].kind == "interrupted"]
    errors = [item for item in errors if item not in signalled]
    # A lost peer or network is what another rank's own error sets off here.
    own = [item for item in errors if kind_of(item[1]) != "infra"]
    if own:
        return _from_error(folder, *own[0])
    exits = {item.rank: item for item in status.exits}
    if status.stopped_for in ("timeout", "hang"):
        return _stopped(plan, status, folder, readings)
    dead = _unexplained(readings, exits)
    if dead is not None and (status.stopped_for != "server_lost" or _is_fault(dead)):
        return _from_exit(folder, dead, status.phase, oom_kills)
    if status.stopped_for == "server_lost":
        return Failure(
            kind="infra", reason="the process that starts the ranks ended", phase=status.phase
        )
    if errors:
        return _from_error(folder, *errors[0])
    if signalled:
        rank, error = signalled[0]
        reason = f"rank {rank} was ended by a signal from outside"
        return Failure(kind="crash", reason=reason, rank=rank, phase=error.phase)
    missing = [reading.rank for reading in readings if reading.record is None]
    if missing:
        return _from_exit(folder, exits.get(missing[0]) or _gone(missing[0]), status.phase, 0)
    return None


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


def _from_error(folder: AttemptFolder, rank: int, error: RankError) -> Failure:
    name = error.type.rsplit(".", 1)[-1]
    first_line = error.message.strip().splitlines()[0] if error.message.strip() else ""
    reason = first_line or name
    kind = kind_of(error)
    if kind in ("crash", "infra") and first_line:
        reason = f"{name}: {first_line}"
    return Failure(
        kind=kind,
        reason=shortened(reason),
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
    limit = plan.deadlines.total_s
    kind: FailureKind
    if status.stopped_for == "hang":
        limit = plan.deadlines.phase_s.get(status.phase, limit)
        kind = "hang"
        reason = f"phase {status.phase} did not end within {limit:g} s"
    elif isinstance(plan.workload, CommandWorkload) and status.phase in _BEFORE_STEPS:
        kind = "hang"
        reason = f"the command reported no step within {limit:g} s"
    else:
        kind = "timeout"
        reason = f"no result within {limit:g} s (it was in phase {status.phase})"
    return Failure(
        kind=kind,
        reason=reason,
        rank=silent[0],
        phase=status.phase,
        detail=log_tail(folder.log_file(silent[0])),
    )


def _is_fault(exit_: RankExit) -> bool:
    return exit_.signal in _FAULTS


def _unexplained(readings: Sequence[RankReading], exits: Mapping[int, RankExit]) -> RankExit | None:
    """The exit of a rank that left no record; a fault of its own before a kill from outside."""
    found = [exits[r.rank] for r in readings if r.record is None and r.rank in exits]
    ended = [e for e in found if e.signal is not None or e.exit_code not in (0, None)]

    def weight(item: RankExit) -> tuple[int, int]:
        if _is_fault(item):
            return 0, item.rank
        if item.signal is None:
            return 1, item.rank
        return (3 if item.signal == signal.SIGTERM else 2), item.rank

    return min(ended, key=weight, default=None)


def _from_exit(folder: AttemptFolder, exit_: RankExit, phase: Phase, oom_kills: int) -> Failure:
    detail = log_tail(folder.log_file(exit_.rank))
    killed = exit_.signal == signal.SIGKILL or exit_.exit_code == 137
    kind: FailureKind = "crash"
    if killed and oom_kills > 0:
        kind = "oom_host"
        reason = f"the kernel killed rank {exit_.rank} for want of memory"
    elif killed:
        reason = f"rank {exit_.rank} was killed (SIGKILL) from outside"
    elif exit_.signal is not None:
        reason = f"rank {exit_.rank} was ended by {_signal_name(exit_.signal)}"
    elif errortexts.is_host_memory(detail):
        kind = "oom_host"
        reason = f"rank {exit_.rank} could not allocate memory"
    else:
        reason = f"rank {exit_.rank} left no record (exit code {exit_.exit_code})"
        if detail:
            reason += f": {detail.splitlines()[-1].strip()}"
    return Failure(kind=kind, reason=shortened(reason), rank=exit_.rank, phase=phase, detail=detail)


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
