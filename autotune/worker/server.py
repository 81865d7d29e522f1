"""The fork server: imports all that a trial needs once, then forks the ranks of each trial.

Started by a launcher as ``python -m autotune.worker.server`` in a session of its own. Commands
and events are the JSON lines of :mod:`autotune.contract.protocol`, on the descriptor that
``--control-fd`` names.

Rules that keep a forked rank as sound as a fresh process:

- one OS thread, always: libraries are told so before they are imported, and it is checked
  before each fork (a child of a process with threads can hang on their locks). Where an import
  leaves a thread all the same, the server says so and its launcher starts ranks cold;
- no device is touched: checked after the imports;
- all ranks of a trial are one process group, are killed by the kernel if the server dies, and
  are swept up after the trial with whatever they started.

With ``--cold`` nothing is imported and each rank is a fresh interpreter, under the same
supervision. The stream's end means that the coordinator is gone: every trial is killed at once.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from autotune.contract import processes, protocol
from autotune.contract.folder import AttemptFolder
from autotune.contract.protocol import (
    Command,
    Ended,
    Event,
    Kill,
    Ping,
    Pong,
    Problem,
    Ready,
    Run,
    Started,
)
from autotune.errors import RecordError
from autotune.worker import preload, rank_process
from autotune.worker.supervision import Trial

TICK_S: Final = 0.2
"""Between two looks at deadlines and logs, while a trial runs. Exits are seen at once."""


class ForkError(Exception):
    """The ranks could not be forked."""


class Server:
    """The event loop."""

    def __init__(self, control: socket.socket, *, cold: bool) -> None:
        self._control = control
        self._cold = cold
        self._become = rank_process.exec_rank if cold else rank_process.become_rank
        self._lines = protocol.Lines()
        self._trials: dict[str, Trial] = {}
        self._must_end = False
        self._wake_read, self._wake_write = socket.socketpair()
        for end in (self._wake_read, self._wake_write):
            end.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(control, selectors.EVENT_READ)
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        signal.set_wakeup_fd(self._wake_write.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, self._note_sigterm)

    def serve(self) -> None:
        """Run until told to quit or the coordinator is gone; every trial is killed at the end."""
        try:
            self._loop()
        finally:
            self._kill_all()

    def _loop(self) -> None:
        while not self._must_end:
            for key, _ in self._selector.select(TICK_S if self._trials else None):
                if key.fileobj is self._wake_read:
                    with contextlib.suppress(BlockingIOError):
                        self._wake_read.recv(4096)
                elif not self._read_commands():
                    self._must_end = True
            self._look_after_trials()

    def send(self, event: Event) -> None:
        """Tell the launcher; if it is gone, the end of the stream is read next."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._control.sendall(protocol.encode(event))

    def _read_commands(self) -> bool:
        try:
            data = self._control.recv(1 << 16)
        except ConnectionResetError:  # the launcher died with events of ours unread
            return False
        if not data:
            return False
        for line in self._lines.feed(data):
            try:
                command = protocol.decode_command(line)
            except RecordError as error:
                self.send(Problem(job=None, message=str(error)))
                continue
            if not self._obey(command):
                return False
        return True

    def _obey(self, command: Command) -> bool:
        now = time.monotonic()
        if isinstance(command, Run):
            try:
                self._start(command)
            except (ForkError, OSError) as error:
                self.send(Problem(job=command.job, message=str(error)))
        elif isinstance(command, Kill):
            trial = self._trials.get(command.job)
            if trial is not None:
                self._send_all(trial.stop("cancelled", now))
                if command.signal == signal.SIGKILL:
                    trial.signal_group(signal.SIGKILL)
        elif isinstance(command, Ping):
            self.send(Pong(number=command.number))
        else:
            return False
        return True

    def _start(self, run: Run) -> None:
        problem = preload.why_no_fork()
        if problem is not None and not self._cold:
            raise ForkError(f"the fork server may not fork: {problem}")
        if len(run.job) != processes.MARKER_LENGTH or not run.job.isalnum():
            raise ForkError(f"{run.job!r} is no job id")
        if run.job in self._trials or run.processes < 1:
            raise ForkError(f"job {run.job} cannot be started")
        pids = self._fork_all(run)
        folder = AttemptFolder(Path(run.folder))
        self._trials[run.job] = Trial(run, folder, pids, time.monotonic())
        self.send(Started(job=run.job, pids=pids, pgid=pids[0]))

    def _fork_all(self, run: Run) -> tuple[int, ...]:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()  # or each rank would write what is buffered once more
        pids: list[int] = []
        with socket.create_server((rank_process.LOOPBACK, 0), backlog=1024) as listener:
            try:
                for rank in range(run.processes):
                    pids.append(self._fork(run, rank, listener, group=pids[0] if pids else 0))
            except OSError as error:
                for pid in pids:
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)
                raise ForkError(f"the ranks could not be forked: {error}") from error
        return tuple(pids)

    def _fork(self, run: Run, rank: int, listener: socket.socket, *, group: int) -> int:
        server = os.getpid()
        # Until the rank has its own handlers, a signal to it must not run the server's.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGCHLD))
        try:
            pid = os.fork()
        except OSError:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            raise
        if pid == 0:
            try:
                os.setpgid(0, group)
                self._become(run, rank, server=server, listener=listener, release=self._release)
            finally:
                os._exit(1)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        # Both sides set the group: whichever comes second finds it done.
        with contextlib.suppress(PermissionError, ProcessLookupError):
            os.setpgid(pid, group or pid)
        return pid

    def _release(self) -> None:
        """In a rank: close what belongs to the server alone."""
        self._selector.close()
        for end in (self._control, self._wake_read, self._wake_write):
            end.close()

    def _look_after_trials(self) -> None:
        now = time.monotonic()
        for job, trial in list(self._trials.items()):
            self._send_all(trial.collect_exits(now))
            self._send_all(trial.tick(now))
            if trial.has_ended:
                self._finish(job)

    def _finish(self, job: str) -> None:
        trial = self._trials.pop(job)
        others = frozenset(pid for other in self._trials.values() for pid in other.pids)
        if not trial.finish(others, frozenset(self._trials)):
            print(f"job {job}: a process outlives SIGKILL", file=sys.stderr, flush=True)
        self.send(Ended(job=job, stopped_for=trial.stopped_for, at_s=time.monotonic()))

    def _kill_all(self) -> None:
        for trial in self._trials.values():
            trial.signal_group(signal.SIGKILL)
        for job in list(self._trials):
            self._finish(job)

    def _note_sigterm(self, *_: object) -> None:
        # Only noted: the loop wakes up, and a sweep that is under way is not interrupted.
        self._must_end = True

    def _send_all(self, events: Iterator[Event]) -> None:
        for event in events:
            self.send(event)


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="autotune.worker.server", description=__doc__)
    parser.add_argument("--control-fd", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True, help="pid of the launcher")
    parser.add_argument("--die-with-parent", action="store_true")
    parser.add_argument("--cold", action="store_true", help="import nothing, fork and exec")
    parser.add_argument("--backend", action="append", default=[])
    parser.add_argument("--module", action="append", default=[])
    parser.add_argument("--need-packages", action="store_true", help="of the backends")
    return parser.parse_args(arguments)


def _make_ready(options: argparse.Namespace) -> Ready:
    started = time.monotonic()
    count = 0
    missing: dict[str, str] = {}
    broken: str | None = None
    if not options.cold:
        names, missing = preload.modules_for(options.backend, options.module)
        needed = preload.packages_of(options.backend) if options.need_packages else ()
        count, failed = preload.preload([*names, *needed])
        missing |= failed
        broken = next((f"{name}: {failed[name]}" for name in needed if name in failed), None)
    return Ready(
        pid=os.getpid(),
        import_s=time.monotonic() - started,
        rss_bytes=processes.resident_bytes(),
        modules=count,
        missing=missing,
        no_fork=None if options.cold else preload.why_no_fork(),
        broken=broken,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve one launcher."""
    options = _parse(sys.argv[1:] if arguments is None else arguments)
    if options.die_with_parent:
        # Not SIGKILL: with the end of the trials this process also ends their strays.
        processes.die_with_parent(options.parent, signal.SIGTERM)
    processes.adopt_orphans()
    os.set_inheritable(options.control_fd, False)
    control = socket.socket(fileno=options.control_fd)
    ready = _make_ready(options)
    server = Server(control, cold=options.cold)
    server.send(ready)
    server.serve()
    return 0


if __name__ == "__main__":
    # The interpreter's own end would run the libraries' exit handlers; nothing here needs them.
    code = main()
    sys.stderr.flush()
    os._exit(code)
