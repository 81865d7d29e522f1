"""What a running search shows: a live panel on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import errno
import time
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Protocol, Self, TextIO

from autotune.errors import InterruptedSearch
from autotune.search.events import (
    ConfirmationStarted,
    Event,
    Finished,
    LaunchEnded,
    LaunchStarted,
    Message,
    PhaseChanged,
    Progress,
    SearchStarted,
)
from autotune.search.preflight import plain_params

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
    """One line an event that a log should hold."""

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


class LiveDisplay:
    """The same lines above a panel that says what runs now."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console
        from rich.live import Live

        self._started: SearchStarted | None = None
        self._launch: LaunchStarted | None = None
        self._phase = ""
        self._progress: Progress | None = None
        self._since = time.monotonic()
        console = Console(file=stream, highlight=False, soft_wrap=True)
        self._live = Live(
            console=console, refresh_per_second=4, transient=True, get_renderable=self._panel
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
        if isinstance(event, SearchStarted):
            self._started = event
        elif isinstance(event, LaunchStarted):
            self._launch, self._phase, self._since = event, "launch", time.monotonic()
        elif isinstance(event, PhaseChanged):
            self._phase = event.phase
        elif isinstance(event, LaunchEnded):
            self._launch = None
        elif isinstance(event, Progress):
            self._progress = event
        with _reader_may_leave():
            for line in lines_of(event):
                self._live.console.print(line, markup=False)

    def _panel(self) -> Table:
        from rich.table import Table
        from rich.text import Text

        table = Table.grid(padding=(0, 2))
        now = "starting"
        if self._launch is not None:
            age = time.monotonic() - self._since
            now = f"{_name(self._launch)} · {self._phase} · {age:.0f} s"
        table.add_row("now", Text(now))
        if self._progress is not None:
            table.add_row("best", Text(best_text(self._progress)))
            table.add_row("trials", Text(f"{self._progress.counted} of {self._progress.trials}"))
            left = self._progress.seconds_left
            table.add_row("time left", "…" if left is None else f"about {duration(left)}")
        return table


def lines_of(event: Event) -> list[str]:
    """The lines that an event leaves behind; none for what only the panel shows."""
    if isinstance(event, SearchStarted):
        how = "goes on with" if event.resumed else "begins"
        return [
            f"study {event.study} {how}: {event.counted} of {event.trials} trials done, "
            f"sampler {event.sampler}, {event.observations} observations loaded"
        ]
    if isinstance(event, LaunchStarted):
        return [f"{_name(event)}: {plain_params(event.params)}"]
    if isinstance(event, LaunchEnded):
        return _ended(event)
    if isinstance(event, Progress):
        return [f"  {event.counted} of {event.trials} trials; {best_text(event)}"]
    if isinstance(event, ConfirmationStarted):
        return [
            f"confirmation: trial {event.finalist} and the baseline in turns, "
            f"{event.done} of {event.rounds} rounds done"
        ]
    if isinstance(event, Finished):
        return [_verdict(event)]
    if isinstance(event, Message):
        mark = "warning: " if event.level == "warning" else ""
        return f"{mark}{event.text}".splitlines()
    return []


def best_text(progress: Progress) -> str:
    """The best so far, with its speed-up over the baseline."""
    best, base = progress.best_s_per_it, progress.baseline_s_per_it
    if best is None:
        return "nothing measured yet"
    text = f"best {best:.4g} s/it (trial {progress.best_trial})"
    return text if base is None else f"{text}, {base / best:.2f}× the baseline"


def duration(seconds: float) -> str:
    """``75 s``, ``12 min``, ``3.5 h``."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _name(event: LaunchStarted | LaunchEnded) -> str:
    number = f"trial {event.number}" if event.purpose == "trial" else f"launch r{event.number}"
    again = f", attempt {event.attempt + 1}" if event.attempt else ""
    return f"{number} ({event.label}{again})"


def _ended(event: LaunchEnded) -> list[str]:
    measured, failure = event.outcome.measurement, event.outcome.failure
    if measured is not None:
        notes = [
            *(["stopped early"] if event.outcome.state == "stopped_early" else []),
            *(["unsteady"] if measured.unsteady else []),
            *(["check its notes: " + str(n) for k, n in measured.notes.items() if k == GAP]),
        ]
        suffix = f" ({', '.join(notes)})" if notes else ""
        return [f"  {measured.s_per_it:.4g} s/it, {measured.tokens_per_s:,.0f} tokens/s{suffix}"]
    assert failure is not None
    where = _where(failure.rank, failure.phase)
    lines = [f"  {failure.kind}{where}: {failure.reason}"]
    if failure.kind != "interrupted":
        lines.append(f"  log: {event.log}")
    return lines


GAP = "window_gap"
"""Note of a measurement whose window and iterations do not add up."""


def _where(rank: int | None, phase: Any) -> str:
    parts = [
        *([f"rank {rank}"] if rank is not None else []),
        *([f"phase {phase}"] if phase is not None else []),
    ]
    return f" ({', '.join(parts)})" if parts else ""


def _verdict(event: Finished) -> str:
    verdict = event.verdict
    interval = ""
    if verdict.ratio is not None and verdict.low is not None and verdict.high is not None:
        interval = f"{verdict.ratio:.3f}× (95 %: {verdict.low:.3f} … {verdict.high:.3f})"
    if verdict.verdict == "faster":
        return f"result: trial {verdict.best_trial} is faster than the baseline: {interval}"
    if verdict.verdict == "tie":
        return f"result: a tie, won by trial {verdict.best_trial}: {verdict.reason}; {interval}"
    if verdict.verdict == "keep_baseline":
        tail = f"; {interval}" if interval else ""
        return f"result: keep your baseline: {verdict.reason}{tail}"
    return f"result: nothing feasible: {verdict.reason}"
