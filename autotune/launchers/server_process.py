"""One fork server as the launcher sees it: a child process and a channel to it."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import site
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from autotune.contract import jsonfile, protocol
from autotune.errors import EnvironmentFault, RecordError

QUIT_LIMIT_S: Final = 10.0
PING_EVERY_S: Final = 5.0
"""Between two questions whether the server still answers, while a trial runs."""
SEND_LIMIT_S: Final = 30.0
"""A server that takes no message for so long hangs."""
LOG_TAIL_LINES: Final = 15
FATAL: Final = "Fatal Python error"
"""How the report of a fatal signal begins, innermost call first (``Python/traceback.c``)."""


def _package_root() -> Path | None:
    """The folder to put on PYTHONPATH so that a child finds this very package.

    ``None`` for an installed package: its folder is on every interpreter's path, and in front of
    the standard library it could hide modules of that.
    """
    root = Path(__file__).resolve().parents[2]
    installed = [*site.getsitepackages(), site.getusersitepackages()]
    return None if str(root) in {str(Path(path).resolve()) for path in installed} else root


PACKAGE_ROOT: Final = _package_root()


class ServerLostError(Exception):
    """The server's end of the channel is closed, or it spoke nonsense."""


class ServerProcess:
    """Not thread-safe.

    Args:
        log: Where its standard output and error go, after what earlier ones said.
        environment: Its whole environment.
        arguments: For ``autotune.worker.server``, beyond the channel.
    """

    def __init__(
        self, *, log: Path, environment: Mapping[str, str], arguments: Sequence[str]
    ) -> None:
        self._log = log
        self._log_start = 0
        self._environment = environment
        self._arguments = arguments
        self._lines = protocol.Lines()
        self._channel: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._pings = 0
        self._asked_s: float | None = None
        self._answered_s = 0.0
        self.ready: protocol.Ready | None = None

    @property
    def is_alive(self) -> bool:
        """Whether the process runs and its channel is open."""
        return (
            self._channel is not None and self._process is not None and self._process.poll() is None
        )

    def start(self, limit_s: float) -> None:
        """Start the process and wait until it is ready.

        Raises:
            EnvironmentFault: It ended or was not ready in time; its log is deleted by nobody.
        """
        try:
            self._spawn()
            self._await_ready(limit_s)
        except BaseException:
            # Also Ctrl-C during the imports: nothing may stay behind.
            self.kill()
            raise

    def _spawn(self) -> None:
        ours, theirs = socket.socketpair()
        ours.settimeout(SEND_LIMIT_S)
        self._channel = ours
        command = [sys.executable, "-P", "-X", "faulthandler", "-m", "autotune.worker.server"]
        command += [f"--control-fd={theirs.fileno()}", f"--parent={os.getpid()}"]
        if threading.current_thread() is threading.main_thread():
            command.append("--die-with-parent")
        with theirs:
            try:
                self._log.parent.mkdir(parents=True, exist_ok=True)
                with self._log.open("ab") as log:
                    self._log_start = log.tell()
                    self._process = subprocess.Popen(
                        [*command, *self._arguments],
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        env=dict(self._environment),
                        pass_fds=(theirs.fileno(),),
                        start_new_session=True,
                    )
            except OSError as error:
                raise jsonfile.unwritable(self._log, error) from error

    def _await_ready(self, limit_s: float) -> None:
        deadline = time.monotonic() + limit_s
        while self.ready is None:
            left = deadline - time.monotonic()
            if left <= 0:
                raise self._fault(f"was not ready after {limit_s:.0f} s")
            try:
                events = self.receive(left)
            except ServerLostError:
                raise self._fault(f"ended while it started{self._how()}") from None
            for event in events:
                if isinstance(event, protocol.Problem):
                    raise self._fault(f"cannot serve: {event.message}")
                if isinstance(event, protocol.Ready):
                    self.ready = event

    def _how(self) -> str:
        """Say how the process ended, in brackets; empty where it has not."""
        try:
            code = None if self._process is None else self._process.wait(QUIT_LIMIT_S)
        except subprocess.TimeoutExpired:
            return ""
        if code is None or code >= 0:
            return "" if code is None else f" (exit code {code})"
        names = {number.value: number.name for number in signal.Signals}
        return f" ({names.get(-code, f'signal {-code}')})"

    def _fault(self, what: str) -> EnvironmentFault:
        tail = self._log_tail()
        said = f"; it last said:\n{tail}" if tail else ""
        return EnvironmentFault(f"the fork server {what}{said}", hint=f"the whole log: {self._log}")

    def _log_tail(self) -> str:
        try:
            with self._log.open("rb") as log:
                log.seek(max(self._log_start, log.seek(0, os.SEEK_END) - 16384))
                text = log.read().decode("utf-8", "replace")
        except OSError:
            return ""
        lines = text.rstrip().splitlines()
        fatal = [n for n, line in enumerate(lines) if line.startswith(FATAL)]
        first = fatal[-1] if fatal else max(0, len(lines) - LOG_TAIL_LINES)
        return "\n".join(lines[first : first + LOG_TAIL_LINES])

    def send(self, command: protocol.Command) -> None:
        """Send a command; a server that is gone or hangs shows in :meth:`receive`."""
        if self._channel is not None:
            try:
                self._channel.sendall(protocol.encode(command))
            except (BrokenPipeError, ConnectionResetError):
                return
            except TimeoutError:
                self._channel.close()  # part of the message is on its way: nothing can follow it
                self._channel = None

    def silence_s(self) -> float:
        """Ask for a sign of life, and return how long an earlier question waits for its answer.

        To be called after :meth:`receive`, so that an answer which has come counts: this process
        may have been stopped for long.
        """
        now = time.monotonic()
        if self._asked_s is not None:
            return now - self._asked_s
        if now - self._answered_s >= PING_EVERY_S:
            self._pings += 1
            self._asked_s = now
            self.send(protocol.Ping(number=self._pings))
        return 0.0

    def receive(self, timeout_s: float) -> list[protocol.Event]:
        """Return the events that came, waiting up to ``timeout_s`` seconds for the first.

        Raises:
            ServerLostError: The channel is closed, or what came is no event.
        """
        if self._channel is None:
            raise ServerLostError
        with selectors.DefaultSelector() as selector:
            selector.register(self._channel, selectors.EVENT_READ)
            if not selector.select(timeout_s):
                return []
        try:
            data = self._channel.recv(1 << 16)
            events = [protocol.decode_event(line) for line in self._lines.feed(data)]
        except (ConnectionResetError, RecordError) as error:
            raise ServerLostError from error
        if not data:
            raise ServerLostError
        if any(isinstance(event, protocol.Pong) for event in events):
            self._asked_s, self._answered_s = None, time.monotonic()
        return events

    def close(self) -> None:
        """Ask the server to kill its trials and end; wait until it has."""
        self.send(protocol.Quit())
        if self._channel is not None:
            self._channel.close()  # a second way to say it
            self._channel = None
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(QUIT_LIMIT_S)
        self.kill()

    def kill(self) -> None:
        """End the server at once; the kernel ends its ranks with it."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()
