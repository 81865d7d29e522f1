"""How a command ended: which failure its exit and the last lines of its log stand for."""

from __future__ import annotations

import dataclasses
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from autotune.contract import errortexts, smallfile
from autotune.contract.failures import FailureKind

TAIL_BYTES: Final = 64 * 1024
"""How much of the log is looked at."""
_TRACEBACK: Final = "Traceback (most recent call last):"
_PREFIX: Final = re.compile(r"^\[rank\d+\]:\s?")
"""What torch puts before each line of a rank's traceback."""
_RAISED: Final = re.compile(r"(?P<type>[A-Za-z_][\w.]*)(?::\s+(?P<message>.*))?")
_NAMED: Final = re.compile(r"(?P<type>[A-Za-z_][\w.]*(?:Error|Exception)):\s+(?P<message>.*)")
_WRAPPERS: Final = frozenset(
    {"ChildFailedError", "CalledProcessError", "ProcessRaisedException", "ProcessExitedException"}
)
"""What launchers raise because a rank failed: never the cause."""
_RANK_ENDED: Final = re.compile(r"failed \(exitcode: (?P<code>-?\d+)\) local_rank: (?P<rank>\d+)")
"""What torchrun says of the first rank that failed, where that left no traceback."""
_SHELL_SIGNAL: Final = 128
"""A shell, and launchers after it, exit with this plus the signal's number."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class End:
    """Why a command that ended by itself has no measurement."""

    name: str
    """Type of the exception, or how the process ended: ``exit code 3``, ``SIGSEGV``."""
    message: str
    kind: FailureKind


def explain(code: int, log: str, *, oom_kills: int) -> End:
    """Return the reason of an exit other than 0.

    Args:
        code: As ``subprocess`` gives it: negative for a signal.
        log: The end of what the command printed.
        oom_kills: Processes that the kernel killed for want of memory meanwhile.
    """
    number = -code if code < 0 else max(0, code - _SHELL_SIGNAL)
    ended_by = _signal_name(number)
    if ended_by == "SIGKILL" and oom_kills > 0:
        return End(
            name=ended_by, message="the kernel killed it for want of memory", kind="oom_host"
        )
    raised = _cause(log)
    if raised is not None:
        return raised
    if oom_kills > 0 or errortexts.is_host_memory(log):
        return End(name=f"exit code {code}", message="memory could not be had", kind="oom_host")
    ended_rank = _RANK_ENDED.search(log)
    if ended_rank is not None:
        how, rank = int(ended_rank["code"]), ended_rank["rank"]
        name = _signal_name(-how) or f"exit code {how}"
        return End(name=name, message=f"local rank {rank} ended so, and said nothing", kind="crash")
    if ended_by is not None:
        outside = " from outside" if ended_by == "SIGKILL" else ""
        return End(name=ended_by, message=f"the command was ended{outside}", kind="crash")
    return End(name=f"exit code {code}", message=last_line(log), kind="crash")


def last_line(log: str) -> str:
    """Return the last line that says anything: one with a letter or a digit."""
    lines = [line.strip() for line in log.splitlines() if re.search(r"[^\W_]", line)]
    return lines[-1] if lines else "the command printed nothing"


def log_end(path: Path) -> str:
    """Return the end of a log as text; empty where there is none."""
    return smallfile.read_end(path, TAIL_BYTES)


def _cause(log: str) -> End | None:
    """The exception that says most: want of memory, else the last that no peer set off."""
    found = list(_raised(log))
    for end in found:
        if end.kind in ("oom_device", "oom_host"):
            return end
    own = [end for end in found if end.kind != "infra"]
    return (own or found)[-1] if found else None


def _raised(log: str) -> Iterator[End]:
    in_traceback = False
    for raw in log.splitlines():
        line = _PREFIX.sub("", raw)
        if line.strip() == _TRACEBACK:
            in_traceback = True
            continue
        if in_traceback and line[:1].isspace():
            continue
        match = _RAISED.fullmatch(line) if in_traceback else _NAMED.fullmatch(line)
        in_traceback = False
        if match is None:
            continue
        name, message = match["type"], (match["message"] or "").strip()
        short = name.rpartition(".")[2]
        if short not in _WRAPPERS:
            kind = errortexts.kind_of({short}, message)
            yield End(name=name, message=message, kind=kind)


def _signal_name(number: int) -> str | None:
    try:
        return signal.Signals(number).name
    except ValueError:
        return None
