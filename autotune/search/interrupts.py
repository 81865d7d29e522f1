"""Ctrl-C, SIGTERM and SIGHUP: the first asks the search to stop, the second stops it now."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Any, Final, Self

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """While entered, signals set :attr:`requested` instead of ending the program.

    A second signal raises :class:`KeyboardInterrupt` wherever the program is, and so does the
    first inside :meth:`at_once`. Elsewhere than in the main thread it does nothing: there
    :meth:`request` is called instead.
    """

    def __init__(self) -> None:
        self._count = 0
        self._at_once = False
        self._event = threading.Event()
        self._previous: dict[signal.Signals, Any] = {}

    @property
    def requested(self) -> bool:
        """Whether the search is asked to stop."""
        return self._event.is_set()

    def request(self) -> None:
        """Ask the search to stop."""
        self._event.set()

    def wait(self, seconds: float) -> bool:
        """Sleep, but not past a request; return whether there is one."""
        return self._event.wait(seconds)

    @contextlib.contextmanager
    def at_once(self) -> Iterator[None]:
        """Let the first signal end the block by :class:`KeyboardInterrupt`: nothing runs yet."""
        before, self._at_once = self._at_once, True
        try:
            if self.requested:
                raise KeyboardInterrupt
            yield
        finally:
            self._at_once = before

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                ignored = signal.getsignal(number) is signal.SIG_IGN
                if number == signal.SIGHUP and ignored:
                    continue  # nohup: the user wants it to live on
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number, previous in self._previous.items():
            signal.signal(number, previous if previous is not None else signal.SIG_DFL)
        self._previous.clear()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self._count += 1
        self._event.set()
        if self._at_once or self._count > 1:
            raise KeyboardInterrupt
