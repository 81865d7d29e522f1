"""The first steps of a rank, between the fork and its entry function."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import importlib
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NoReturn

from autotune.contract import processes
from autotune.contract.folder import AttemptFolder
from autotune.contract.protocol import Run

LOOPBACK: Final = "127.0.0.1"
"""Where the ranks of one node meet: out of reach from outside."""
_LOG_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW


def rank_environment(run: Run, rank: int, listener: socket.socket) -> dict[str, str]:
    """Return the whole environment of one rank."""
    environment = dict(run.environment)
    address, port = listener.getsockname()
    environment |= {
        "RANK": str(rank),
        "WORLD_SIZE": str(run.processes),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(run.processes),
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
        processes.MARKER: run.job,
    }
    for name, folder in run.rank_folders.items():
        environment[name] = f"{folder}/rank-{rank}"
    if rank == 0:
        environment[processes.LISTEN_FD] = str(listener.fileno())
    return environment


def become_rank(
    run: Run, rank: int, *, server: int, listener: socket.socket, release: Callable[[], None]
) -> NoReturn:
    """Turn a freshly forked process into a rank, run it, and end. Never returns.

    Args:
        run: The command.
        rank: Which of its ranks.
        server: Pid of the fork server, which this process must not outlive.
        listener: The rendezvous socket; only rank 0 keeps it.
        release: Closes what belongs to the server alone.
    """
    code = 1
    try:
        _detach(run, rank, server, listener, release)
        code = call_entry(run.entry, Path(run.folder), rank)
    except SystemExit as end:
        code = _exit_code(end)
    except BaseException:  # this frame must never return into the server's loop
        with contextlib.suppress(Exception):
            traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        os._exit(code & 0xFF)


def exec_rank(
    run: Run, rank: int, *, server: int, listener: socket.socket, release: Callable[[], None]
) -> NoReturn:
    """As :func:`become_rank`, but a fresh interpreter runs the module ``run.entry``."""
    try:
        _detach(run, rank, server, listener, release)
        if rank == 0:
            os.set_inheritable(listener.fileno(), True)
        arguments = [sys.executable, "-P", "-X", "faulthandler", "-m", run.entry]
        arguments += ["--folder", run.folder, "--rank", str(rank)]
        os.execve(sys.executable, arguments, dict(os.environ))  # noqa: S606 - no shell is meant
    except BaseException:  # as above
        with contextlib.suppress(Exception):
            traceback.print_exc()
            sys.stderr.flush()
    finally:
        os._exit(1)


def call_entry(entry: str, folder: Path, rank: int) -> int:
    """Import and call ``module:function``."""
    module, _, function = entry.partition(":")
    return int(getattr(importlib.import_module(module), function)(folder, rank))


def _detach(
    run: Run, rank: int, server: int, listener: socket.socket, release: Callable[[], None]
) -> None:
    processes.die_with_parent(server)
    _default_signals()
    release()
    environment = rank_environment(run, rank, listener)
    if rank != 0:
        listener.close()
    _redirect(AttemptFolder(Path(run.folder)).log_file(rank))
    mark(run.job)
    set_environment(environment)
    _offer_to_oom_killer()
    _apply_threads(environment)
    # SIGTERM and fatal signals leave the stacks of all threads in the log: where a hang hung.
    faulthandler.enable(file=sys.stderr)
    faulthandler.register(signal.SIGTERM, file=sys.stderr, all_threads=True, chain=True)


def _default_signals() -> None:
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _redirect(log: Path) -> None:
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    os.dup2(null, 0)
    try:
        output = os.open(log, _LOG_FLAGS, 0o666)
    except OSError:
        # A full disk costs the log; the rank goes on and reports what it can.
        output = null
    for number in (1, 2):
        os.dup2(output, number)
    for extra in {null, output} - {0, 1, 2}:
        os.close(extra)
    for stream in (sys.stdout, sys.stderr):
        # The server's own streams are of this type; an embedder's may not be.
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(line_buffering=True, errors="backslashreplace")


def mark(job: str) -> None:
    """Write the job over the marker's placeholder in the memory that ``/proc`` shows.

    ``/proc/PID/environ`` shows the strings that the program was started with. They belong to
    this process since the fork, so its own copy changes and every later fork of it inherits it.
    """
    assert len(job) == processes.MARKER_LENGTH
    libc = ctypes.CDLL(None)
    libc.getenv.restype = ctypes.c_void_p
    address = libc.getenv(processes.MARKER.encode("ascii"))
    if address and len(ctypes.string_at(address)) == processes.MARKER_LENGTH:
        ctypes.memmove(address, job.encode("ascii"), processes.MARKER_LENGTH)


def set_environment(environment: Mapping[str, str]) -> None:
    """Replace the environment, for Python and (``setenv``, ``unsetenv``) for C libraries."""
    for name in set(os.environ) - set(environment):
        del os.environ[name]
    for name, value in environment.items():
        os.environ[name] = value


def _offer_to_oom_killer() -> None:
    """Let a shortage of host memory end a rank rather than the server or the coordinator."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("500")


def _apply_threads(environment: Mapping[str, str]) -> None:
    """Set the thread pool's size: the variable was read when the server loaded the library."""
    torch = sys.modules.get("torch")
    first = environment.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    if torch is not None and first.isdecimal() and int(first) > 0:
        torch.set_num_threads(int(first))


def _exit_code(end: SystemExit) -> int:
    if end.code is None:
        return 0
    if isinstance(end.code, int):
        return end.code
    print(end.code, file=sys.stderr)
    return 1
