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
        """Return the exit code, negative for a signal, or ``None`` while it runs.

        It is not reaped yet: so its process group keeps its number, and a signal to it cannot
        reach a stranger.
        """
        if self._process.returncode is not None:
            return self._process.returncode
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        try:
            result = os.waitid(os.P_PID, self._process.pid, flags)
        except ChildProcessError:  # another thread reaped it just now, in end()
            return self._process.returncode
        if result is None:
            return None
        return result.si_status if result.si_code == os.CLD_EXITED else -result.si_status

    def end(self, grace_s: float) -> None:
        """End the command and whatever it started: SIGTERM, then SIGKILL after ``grace_s``."""
        self._signal(signal.SIGTERM)
        # A stopped process takes no SIGTERM.
        self._signal(signal.SIGCONT)
        deadline = time.monotonic() + grace_s
        while time.monotonic() < deadline:
            if self.poll() is not None and not self._others():
                break
            time.sleep(TICK_S)
        self._signal(signal.SIGKILL)
        if self._job is not None:
            processes.kill_marked(self._job, limit_s=SWEEP_LIMIT_S)
        self._process.wait()

    def _others(self) -> list[int]:
        """What the command started and what still runs, wherever it went."""
        return [] if self._job is None else processes.find_marked(self._job)

    def _signal(self, number: int) -> None:
        if self._process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)
