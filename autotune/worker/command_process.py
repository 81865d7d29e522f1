"""The process group of a command: started from an argument list, ended with all it started."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import Final

from autotune.contract import processes

TICK_S: Final = 0.01
SWEEP_LIMIT_S: Final = 5.0


class CommandProcess:
    """A running command, in a process group of its own.

    Must be made in the main thread: the kernel then ends the command with this process.

    Args:
        arguments: Program and arguments; no shell reads them.
        environment: The whole environment.

    Raises:
        OSError: The program cannot be started.
    """

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        parent = os.getpid()
        self._job = environment.get(processes.MARKER)
        self._process = subprocess.Popen(
            list(arguments),
            stdin=subprocess.DEVNULL,
            env=dict(environment),
            process_group=0,
            # There is no second thread yet, so nothing can be locked in the child.
            preexec_fn=lambda: processes.die_with_parent(parent),
        )

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal, or ``None`` while it runs."""
        return self._process.poll()

    def end(self, grace_s: float) -> None:
        """End the command and whatever it started: SIGTERM, then SIGKILL after ``grace_s``."""
        self._signal(signal.SIGTERM)
        # A stopped process takes no SIGTERM.
        self._signal(signal.SIGCONT)
        deadline = time.monotonic() + grace_s
        while time.monotonic() < deadline:
            if self._process.poll() is not None and not self._others():
                return
            time.sleep(TICK_S)
        self._signal(signal.SIGKILL)
        if self._job is not None:
            processes.kill_marked(self._job, limit_s=SWEEP_LIMIT_S)
        self._process.wait()

    def _others(self) -> list[int]:
        """What the command started and what still runs, wherever it went."""
        return [] if self._job is None else processes.find_marked(self._job)

    def _signal(self, number: int) -> None:
        # Unreaped, the leader keeps the group's number from any stranger; once it is reaped, its
        # group is empty or still holds only what it started.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)
