"""What happens in a search, in lines that a log should hold."""

from __future__ import annotations

import textwrap
from typing import Any, Final

from autotune.contract.duration import duration_text, seconds_text
from autotune.knobs.words import settings_words
from autotune.report.words import compared_lines, disturbances
from autotune.search.events import (
    ConfirmationStarted,
    Event,
    Finished,
    LaunchEnded,
    LaunchStarted,
    Message,
    Progress,
    SearchStarted,
)

WIDTH: Final = 100
"""Columns where there is no terminal that says how wide it is."""
GAP: Final = "window_gap"
"""Note of a measurement whose window and iterations do not add up."""


def lines_of(event: Event, width: int = WIDTH) -> list[str]:
    """The lines that an event leaves behind; none for what only the live panel shows."""
    if isinstance(event, SearchStarted):
        return [_started(event)]
    if isinstance(event, LaunchStarted):
        settings = settings_of(event)
        text = f"{launch_name(event)}{': ' if settings else ''}{settings}"
        return textwrap.wrap(
            text, width, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
        )
    if isinstance(event, LaunchEnded):
        return _ended(event)
    if isinstance(event, Progress):
        return [f"  {progress_text(event)}"]
    if isinstance(event, ConfirmationStarted):
        done = f", {event.done} of them done" if event.done else ""
        names = ", ".join(str(number) for number in (event.finalist, *event.others))
        trials = f"trials {names}" if event.others else f"trial {names}"
        return [
            f"confirmation: {trials} and the baseline are launched again in turns, "
            f"{event.rounds} rounds{done}"
        ]
    if isinstance(event, Finished):
        return _verdict(event)
    if isinstance(event, Message):
        mark = "warning: " if event.level == "warning" else ""
        return f"{mark}{event.text}".splitlines()
    return []


def launch_name(event: LaunchStarted | LaunchEnded) -> str:
    """``trial 3 (anchor hf_auto)``, ``round 2 of 5: baseline``, ``baseline again``."""
    again = f", attempt {event.attempt + 1}" if event.attempt else ""
    if event.purpose == "trial":
        return f"trial {event.number} ({event.label}{again})"
    return f"{event.label}{again}"


def settings_of(event: LaunchStarted) -> str:
    """The baseline's settings; of another trial those that differ; none of a known one's again."""
    if event.purpose != "trial":
        return ""
    if event.label == "baseline":
        return settings_words(event.params)
    return settings_words(event.changed) or "as the baseline"


def best_text(progress: Progress) -> str:
    """The best so far, with its speed-up over the baseline."""
    best, base = progress.best_s_per_it, progress.baseline_s_per_it
    if best is None:
        return "nothing measured yet"
    if progress.best_trial == progress.baseline_trial:
        return f"best is the baseline, {seconds_text(best)} s/it"
    text = f"best is trial {progress.best_trial}, {seconds_text(best)} s/it"
    return text if base is None else f"{text}, {base / best:.2f}× the baseline's speed"


def progress_text(progress: Progress) -> str:
    """Where the search stands, on one line."""
    text = f"{progress.counted} of {progress.trials} trials; {best_text(progress)}"
    if not progress.seconds_left:
        return text
    return f"{text}; about {duration_text(progress.seconds_left)} to the last trial"


def _started(event: SearchStarted) -> str:
    if not event.resumed:
        count = "1 trial" if event.trials == 1 else f"{event.trials} trials"
        return f"study {event.study}: {count}, sampler {event.sampler}"
    return (
        f"study {event.study} goes on: {event.counted} of {event.trials} trials are done, "
        f"sampler {event.sampler} learns from {event.observations}"
    )


def _ended(event: LaunchEnded) -> list[str]:
    measured, failure = event.outcome.measurement, event.outcome.failure
    if measured is not None:
        notes = [
            *(["stopped early"] if event.outcome.state == "stopped_early" else []),
            *(["unsteady"] if measured.unsteady else []),
            *disturbances(measured.alloc_retries, measured.throttled),
            *(["check its notes: " + str(n) for k, n in measured.notes.items() if k == GAP]),
        ]
        suffix = f" ({', '.join(notes)})" if notes else ""
        time = seconds_text(measured.s_per_it)
        rate = f"{measured.samples_per_s:,.1f} samples/s"
        if measured.tokens_per_s is not None:
            rate = f"{measured.tokens_per_s:,.0f} tokens/s"
        return [f"  {time} s/it, {rate}{suffix}"]
    assert failure is not None
    where = _where(failure.rank, failure.phase)
    lines = [f"  {failure.kind}{where}: {failure.reason}"]
    if failure.kind != "interrupted":
        lines.append(f"  log: {event.log}")
    return lines


def _where(rank: int | None, phase: Any) -> str:
    parts = [
        *([f"rank {rank}"] if rank is not None else []),
        *([f"phase {phase}"] if phase is not None else []),
    ]
    return f" ({', '.join(parts)})" if parts else ""


def _verdict(event: Finished) -> list[str]:
    verdict = event.verdict
    if verdict.verdict == "faster":
        lines = [f"result: trial {verdict.best_trial} is faster than the baseline"]
    elif verdict.verdict == "tie":
        lines = [f"result: a tie, won by trial {verdict.best_trial}: {verdict.reason}"]
    elif verdict.verdict == "keep_baseline":
        lines = [f"result: keep your baseline: {verdict.reason}"]
    else:
        return [f"result: nothing feasible: {verdict.reason}"]
    return [*lines, *(f"  {line}" for line in compared_lines(verdict))]
