"""Find and end every process of a trial, also those that left its process group.

Each rank carries the variable ``AUTOTUNE_TRIAL`` with the job's id, and so does whatever it
starts. The id begins with the mark of the study's folder, which its fork servers carry too: so a
later search of the study finds what an earlier one, killed together with its server, left.

Linux shows in ``/proc/PID/environ`` the memory that held the variables when the program was
executed, so a forked rank overwrites the placeholder there (see ``worker/rank_process.py``).
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

MARKER: Final = "AUTOTUNE_TRIAL"
MARKER_LENGTH: Final = 32
"""Characters of a job id; the placeholder in a server's environment is as long."""
MARK_LENGTH: Final = 12
"""How many of them stand for the study's folder."""
LISTEN_FD: Final = "AUTOTUNE_LISTEN_FD"
"""Variable of rank 0: descriptor of the listening socket for the rendezvous."""

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36


def die_with_parent(parent: int, number: signal.Signals = signal.SIGKILL) -> None:
    """Have the kernel send signal ``number`` when ``parent`` dies; end now if it already has.

    The kernel watches the *thread* that forked, so the parent must have forked in a thread that
    stays (``man 2 PR_SET_PDEATHSIG``).
    """
    _prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os._exit(1)


def adopt_orphans() -> None:
    """Make this process the parent of its descendants' orphans, so that it can reap them."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def marker_of(pid: int) -> str | None:
    """Return the job that a process belongs to, if it carries a marker."""
    prefix = f"{MARKER}=".encode("ascii")
    for variable in _variables(pid):
        if variable.startswith(prefix):
            return variable[len(prefix) :].decode("ascii", "replace")
    return None


def mark_of(study: Path) -> str:
    """Return the mark of the study in this folder, with which the ids of all its jobs begin."""
    return hashlib.sha256(os.fsencode(study.resolve())).hexdigest()[:MARK_LENGTH]


def find_marked(job: str) -> list[int]:
    """Return the pids of all live processes of this user that carry the job's marker."""
    needle = f"{MARKER}={job}".encode("ascii")
    return [pid for pid in _own_processes() if needle in _variables(pid)]


def find_of_study(mark: str) -> list[int]:
    """Return the pids of all live processes of this user whose marker begins with ``mark``."""
    start = f"{MARKER}={mark}".encode("ascii")
    return [pid for pid in _own_processes() if any(v.startswith(start) for v in _variables(pid))]


def _own_processes() -> list[int]:
    me, uid = os.getpid(), os.geteuid()
    found: list[int] = []
    for entry in os.scandir("/proc"):
        if entry.name.isdecimal() and int(entry.name) != me:
            with contextlib.suppress(OSError):
                if entry.stat().st_uid == uid:
                    found.append(int(entry.name))
    return found


def _variables(pid: int) -> list[bytes]:
    # A zombie has no memory and so no variables: it is not found, which is right.
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def kill(pids: Iterable[int]) -> None:
    """SIGKILL processes; those that are gone already are no error."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def kill_marked(job: str, *, limit_s: float, known: Iterable[int] = ()) -> bool:
    """SIGKILL all processes with the job's marker until none is left.

    Args:
        job: Whose.
        limit_s: How long they may take to die.
        known: Processes of the job that may be dying already, when they have no marker any more.

    Returns:
        Whether all were gone within ``limit_s`` seconds.
    """
    return _kill_all(lambda: find_marked(job), limit_s, known)


def kill_of_study(mark: str, *, grace_s: float, limit_s: float) -> int:
    """End all processes of a study; return how many had to be killed.

    Only for who holds the study's lock: then nobody else's are among them.

    Args:
        mark: As :func:`mark_of` gives it.
        grace_s: How long a fork server whose coordinator has just died has to clean up: it finds
            processes that carry no marker, which nobody finds after it.
        limit_s: How long they may take to die.
    """
    deadline = time.monotonic() + grace_s
    while find_of_study(mark) and time.monotonic() < deadline:
        time.sleep(0.05)
    seen: set[int] = set()

    def find() -> list[int]:
        pids = find_of_study(mark)
        seen.update(pids)
        return pids

    _kill_all(find, limit_s)
    return len(seen)


def _kill_all(find: Callable[[], list[int]], limit_s: float, known: Iterable[int] = ()) -> bool:
    deadline = time.monotonic() + limit_s
    dying = {pid: start for pid in known if (start := _running_since(pid)) is not None}
    while True:
        pids = find()
        dying |= {pid: start for pid in pids if (start := _running_since(pid)) is not None}
        kill(pids)
        # One that dies loses its memory, and so its marker, before it closes its files and devices.
        dying = {pid: start for pid, start in dying.items() if _running_since(pid) == start}
        if not pids and not dying:
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)


def _running_since(pid: int) -> int | None:
    """When the process began, in ticks since boot; ``None`` if it is gone or waits to be reaped."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return None if fields[0] in (b"Z", b"X") else int(fields[19])
    except (OSError, IndexError):
        return None


def children() -> list[int]:
    """Return the pids of this process's children, ended but unreaped ones included.

    For a process with one thread.
    """
    me = os.getpid()
    try:
        return [int(p) for p in Path(f"/proc/{me}/task/{me}/children").read_text().split()]
    except FileNotFoundError:  # a kernel without CONFIG_PROC_CHILDREN
        return [pid for pid in _own_processes() if _parent_of(pid) == me]


def _parent_of(pid: int) -> int:
    try:
        # The second field, the program's name, may hold spaces and parentheses.
        return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])
    except (OSError, IndexError):
        return 0


def other_threads() -> tuple[str, ...]:
    """Return the names of this process's OS threads but the main one."""
    main = str(os.getpid())
    names: list[str] = []
    for task in os.scandir("/proc/self/task"):
        if task.name != main:
            with contextlib.suppress(OSError):  # it ended in between
                names.append(Path(task.path, "comm").read_text().strip())
    return tuple(sorted(names))


def resident_bytes() -> int:
    """Return the resident size of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def is_open(path: Path) -> bool:
    """Whether a process of this user, on this machine, has the file open."""
    wanted = path.resolve()
    for pid in (os.getpid(), *_own_processes()):
        with contextlib.suppress(OSError):  # it ended in between
            for entry in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    if entry.readlink() == wanted:
                        return True
    return False
