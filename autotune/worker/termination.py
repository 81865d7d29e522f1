"""React to SIGTERM at once, also while the main thread waits inside a collective.

A Python signal handler runs only between two byte codes of the main thread, so it never runs
while that thread waits for a peer in C++. The interpreter's C handler, however, writes to the
wake-up descriptor immediately, and a thread that reads it can act.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Final

_STDERR: Final = 2
_STOP: Final = 0
_ENDING: Final = frozenset({signal.SIGTERM, signal.SIGINT})


class TerminationWatch:
    """Calls ``act`` once, from a thread, when SIGTERM or SIGINT arrives.

    Only the main thread may install it; elsewhere (a test's thread) it does nothing.
    """

    def __init__(self, act: Callable[[], None]) -> None:
        self._act = act
        self._installed = False

    def __enter__(self) -> TerminationWatch:
        if threading.current_thread() is not threading.main_thread():
            return self
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        faulthandler.unregister(signal.SIGTERM)  # it would not see the handler that comes now
        self._previous = signal.signal(signal.SIGTERM, _ignore)
        # The stacks go to the log before anything else, even if a thread holds the interpreter's
        # lock for ever.
        faulthandler.register(signal.SIGTERM, file=_STDERR, all_threads=True, chain=True)
        self._previous_fd = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        self._thread = threading.Thread(target=self._watch, name="termination", daemon=True)
        self._thread.start()
        self._installed = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._installed:
            return
        faulthandler.unregister(signal.SIGTERM)
        signal.set_wakeup_fd(self._previous_fd)
        signal.signal(signal.SIGTERM, self._previous)
        os.write(self._writer, bytes([_STOP]))
        self._thread.join()
        os.close(self._reader)
        os.close(self._writer)

    def _watch(self) -> None:
        while True:
            received = os.read(self._reader, 64)
            if _ENDING.intersection(received):
                self._act()
                return
            if _STOP in received:
                return


def _ignore(number: int, frame: FrameType | None) -> None:
    """Keep the main thread going: the watching thread acts."""
