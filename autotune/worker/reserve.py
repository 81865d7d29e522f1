"""Processes that wait to become the ranks of a trial.

To fork copies the page tables of all that the server has imported, rank after rank: 8 ms each on
two CPU cores. So the ranks of the next trial are forked when one has ended, while nothing is
measured, and wait for its command on a socket of their own.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
from collections.abc import Callable
from typing import Final, NoReturn

from autotune.contract import protocol
from autotune.contract.protocol import Run
from autotune.worker import rank_process

Become = Callable[[Run, int, socket.socket], NoReturn]
"""Turns a process into the given rank; the socket is where the ranks meet."""
_BACKLOG: Final = 1024


class Reserve:
    """As many processes as a trial has ranks, forked and idle; for one trial or none.

    Args:
        count: How many.
        become: What one does with its command.
        release: Closes in each what belongs to the server alone.

    Raises:
        OSError: They could not be forked; none is left.
    """

    def __init__(self, count: int, become: Become, release: Callable[[], None]) -> None:
        self._become = become
        self._release = release
        self._pids: list[int] = []
        self._ends: list[socket.socket] = []
        self._listener = socket.create_server((rank_process.LOOPBACK, 0), backlog=_BACKLOG)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()  # or each process would write what is buffered once more
        try:
            for rank in range(count):
                self._fork(rank)
        except OSError:
            self.dismiss()
            raise

    def serves(self, count: int) -> bool:
        """Return whether this is ``count`` processes, all of them alive."""
        look = os.WEXITED | os.WNOHANG | os.WNOWAIT
        alive = [pid for pid in self._pids if os.waitid(os.P_PID, pid, look) is None]
        return len(alive) == len(self._pids) == count

    def start(self, run: Run) -> tuple[int, ...]:
        """Let them become the ranks of ``run`` and return their pids; the first leads the group."""
        line = protocol.encode(run)
        for end in self._ends:
            with contextlib.suppress(OSError):  # it has died: its exit is seen as any rank's
                end.sendall(line)
        self._close()
        return tuple(self._pids)

    def dismiss(self) -> None:
        """End and reap them."""
        for pid in self._pids:
            os.kill(pid, signal.SIGKILL)  # unreaped, its pid is still its own
            os.waitpid(pid, 0)
        self._close()

    def _close(self) -> None:
        for end in (*self._ends, self._listener):
            end.close()

    def _fork(self, rank: int) -> None:
        server, group = os.getpid(), self._pids[0] if self._pids else 0
        ours, theirs = socket.socketpair()
        # Until the process has its own handlers, a signal to it must not run the server's.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGCHLD))
        try:
            pid = os.fork()
        except OSError:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            for end in (ours, theirs):
                end.close()
            raise
        self._ends.append(ours)
        if pid == 0:
            try:
                os.setpgid(0, group)
                self._await_command(rank, theirs, server)
            finally:
                os._exit(1)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()
        self._pids.append(pid)
        # Both sides set the group: whichever comes second finds it done.
        with contextlib.suppress(PermissionError, ProcessLookupError):
            os.setpgid(pid, group or pid)

    def _await_command(self, rank: int, end: socket.socket, server: int) -> NoReturn:
        rank_process.leave_server(server, self._release)
        for other in self._ends:
            other.close()
        lines = protocol.Lines()
        while data := end.recv(1 << 16):
            for line in lines.feed(data):
                end.close()
                run = protocol.decode_command(line)
                assert isinstance(run, Run)
                self._become(run, rank, self._listener)
        os._exit(0)
