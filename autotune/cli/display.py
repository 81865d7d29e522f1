"""What a running search shows: a live panel on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import errno
import time
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Final, Protocol, Self, TextIO

from autotune.cli.event_lines import best_text, launch_name, lines_of
from autotune.contract.duration import duration_text
from autotune.errors import InterruptedSearch
from autotune.search.events import (
    ConfirmationStarted,
    Event,
    Finished,
    LaunchEnded,
    LaunchStarted,
    PhaseChanged,
    Progress,
)

if TYPE_CHECKING:
    from rich.table import Table


class Display(Protocol):
    """Shows events until it is left."""

    def __call__(self, event: Event) -> None:
        """Show one event."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...


def make_display(stream: TextIO) -> Display:
    """Return the live display for a terminal, the plain one for a file or a pipe."""
    return LiveDisplay(stream) if stream.isatty() else PlainDisplay(stream)


_GONE: Final = (errno.EPIPE, errno.EIO)
"""What writing says when the pipe's reader has ended, or the terminal was closed."""


@contextlib.contextmanager
def _reader_may_leave() -> Iterator[None]:
    """Stop the search when nobody sees it any more: it spends the time of devices."""
    try:
        yield
    except OSError as error:
        if error.errno not in _GONE:
            raise
        raise InterruptedSearch("nobody reads the output any more") from error


class PlainDisplay:
    """Lines as things happen."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        return None

    def __call__(self, event: Event) -> None:
        with _reader_may_leave():
            for line in lines_of(event):
                print(line, file=self._stream, flush=True)


class Panel:
    """What runs now, the best so far, and the time left."""

    def __init__(self) -> None:
        self._now = "starting"
        self._phase = ""
        self._since: float | None = None
        self._progress: Progress | None = None
        self._confirming: ConfirmationStarted | None = None
        self._confirming_since = 0.0
        self._relaunched = 0

    def see(self, event: Event) -> None:
        """Take in one event."""
        now = time.monotonic()
        if isinstance(event, LaunchStarted):
            self._now, self._phase, self._since = launch_name(event), "launch", now
        elif isinstance(event, PhaseChanged):
            self._phase = event.phase
        elif isinstance(event, LaunchEnded):
            self._now, self._since = "between launches", None
            self._relaunched += 1
        elif isinstance(event, Progress):
            self._progress = event
        elif isinstance(event, ConfirmationStarted):
            self._confirming, self._confirming_since, self._relaunched = event, now, 0
        elif isinstance(event, Finished):
            self._now, self._since = "ending", None

    def rows(self) -> list[tuple[str, str]]:
        """The panel's rows: a name and a text each."""
        now = time.monotonic()
        text = self._now
        if self._since is not None:
            text = f"{text} · {self._phase} · {now - self._since:.0f} s"
        rows = [("now", text)]
        if self._progress is not None:
            rows.append(("so far", best_text(self._progress)))
            rows.append(("trials", f"{self._progress.counted} of {self._progress.trials}"))
        left = self._seconds_left(now)
        if left is not None:
            after = "" if self._confirming else " to the last trial, then the confirmation"
            rows.append(("time left", f"about {duration_text(left)}{after}"))
        return rows

    def _seconds_left(self, now: float) -> float | None:
        if self._confirming is None:
            left = None if self._progress is None else self._progress.seconds_left
            return left or None
        if not self._relaunched:
            return None
        each = (now - self._confirming_since) / self._relaunched
        sides = 2 + len(self._confirming.others)
        missing = sides * (self._confirming.rounds - self._confirming.done) - self._relaunched
        return each * max(0, missing)


class LiveDisplay:
    """The lines above a panel; what the panel says anyway is left out of them."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console
        from rich.live import Live

        self._panel = Panel()
        console = Console(file=stream, highlight=False, soft_wrap=True)
        self._live = Live(
            console=console, refresh_per_second=4, transient=True, get_renderable=self._table
        )

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self._live.stop()
        except OSError as gone:
            if gone.errno not in _GONE:
                raise

    def __call__(self, event: Event) -> None:
        self._panel.see(event)
        if isinstance(event, Progress):
            return
        console = self._live.console
        with _reader_may_leave():
            for line in lines_of(event, console.width):
                console.print(line, markup=False)

    def _table(self) -> Table:
        from rich.table import Table
        from rich.text import Text

        table = Table.grid(padding=(0, 2))
        for name, text in self._panel.rows():
            table.add_row(Text(name, style="dim"), Text(text, no_wrap=True, overflow="ellipsis"))
        return table
