"""The report for people. Text from trials is shown as text: no markup, no control characters."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Mapping
from typing import IO, TYPE_CHECKING, Any, Final

from autotune.contract.duration import seconds_text
from autotune.contract.failures import next_step
from autotune.knobs.words import changed_settings as changed_from_baseline
from autotune.knobs.words import settings_words
from autotune.report import document, words
from autotune.store.records import StudyContents

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_PIPE_WIDTH: Final = 100
"""Columns where stdout is no terminal."""
_LABEL: Final = 11
"""Columns of the names at the left."""
_INDENT: Final = 7
"""Columns before a trial's settings, below its figures."""


def show(contents: StudyContents, report: Mapping[str, Any], stream: IO[str] | None = None) -> None:
    """Print the report; colours and the terminal's width only where there is a terminal."""
    from rich.console import Console

    out = stream if stream is not None else sys.stdout
    console = Console(
        file=out,
        width=None if out.isatty() else _PIPE_WIDTH,
        force_terminal=None if out.isatty() else False,
        color_system="auto" if out.isatty() else None,
        markup=False,
        highlight=False,
        emoji=False,
    )
    _headline(console, contents, report)
    _changed(console, report)
    _failures(console, contents)
    _trials(console, report)
    _environment(console, report)
    for problem in report["problems"]:
        console.print(f"! {words.plain(problem)}", style="yellow")


def _line(console: Console, label: str, text: str, style: str = "") -> None:
    from rich.text import Text

    first, *more = _wrapped(words.plain(text), console.width - _LABEL)
    console.print(Text.assemble((f"{label:<{_LABEL}}", "dim"), (first, style)), soft_wrap=True)
    for part in more:
        console.print(Text(" " * _LABEL + part, style), soft_wrap=True)


def _wrapped(text: str, width: int) -> list[str]:
    """Lines of at most ``width`` columns; a word that is longer stays whole, to be copied."""
    wide = max(width, 20)
    return textwrap.wrap(text, wide, break_long_words=False, break_on_hyphens=False) or [""]


def _headline(console: Console, contents: StudyContents, report: Mapping[str, Any]) -> None:
    baseline, best = report["baseline"], report["best"]
    _line(console, "study", f"{report['study']}  ({contents.study.space_file})")
    first, *more = words.verdict_lines(report)
    _line(console, "result", first, "bold")
    verdict = document.current_verdict(contents)
    several = verdict is not None and len(verdict.compared) > 1
    if verdict is not None and (several or verdict.verdict == "keep_baseline"):
        more = [*more, *words.compared_lines(verdict)]
    for line in more:
        _line(console, "", line)
    outside = "  [outside the ranges of params]" if baseline["outside_space"] else ""
    if baseline["trial"] is not None:
        text = f"trial {baseline['trial']}: {words.time_text(baseline['s_per_it'])}"
        _line(console, "baseline", text + _launches(baseline) + outside)
    if best["trial"] is not None and best["trial"] != baseline["trial"]:
        text = f"trial {best['trial']}: {words.time_text(best['s_per_it'])}"
        _line(console, "best", text + _launches(best))
        memory = best["peak_memory_bytes"]
        if memory is not None:
            timed, worst = (words.bytes_text(memory[key]) for key in ("timed", "worst_case"))
            at_most = "at most " if memory["worst_case_is_bound"] else ""
            _line(console, "memory", f"peak {timed} timed, {at_most}{worst} worst case")
    _line(console, "trials", words.counts_text(report["counts"]))
    shown = best if best["trial"] is not None else baseline
    for name, value in words.leaves(shown["unverified"]):
        _line(console, "unverified", f"{name} = {value!r} was passed on and not read back")
    for name in shown["rounding"]:
        _line(console, "rounding", f"{name} changes rounding; the numerics gate has passed it")
    for name, gap in shown["numerics"].items():
        far = f"{gap['apart']:.1g} from the baseline's, {gap['allowed']:.1g} allowed"
        text = f"{words.GAPS[name]}: {far}"
        _line(console, "numerics", text)
    _projection(console, report)


def _launches(configuration: Mapping[str, Any]) -> str:
    count = configuration["num_launches"]
    return f", {count} launches" if count > 1 else ""


def _projection(console: Console, report: Mapping[str, Any]) -> None:
    projection = report["projection"]
    if projection is None:
        return
    device = "GPU-hours" if report["topology"]["device"] == "cuda" else "process-hours"
    for label in ("baseline", "best"):
        hours = projection[label]
        if hours is not None:
            text = (
                f"{label}: {hours['hours']:.2f} h, {hours['device_hours']:.2f} {device} for all "
                f"{projection['num_samples']:,} samples"
            )
            _line(console, "whole data", text)


def _table(title: str, *columns: tuple[str, str]) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(title=title, box=SIMPLE_HEAD, title_justify="left", pad_edge=False)
    for name, justify in columns:
        table.add_column(name, justify=justify, overflow="fold")  # type: ignore[arg-type]  # a literal
    return table


def _row(table: Table, *cells: str) -> None:
    from rich.text import Text

    table.add_row(*(Text(words.plain(cell)) for cell in cells))


def changed_settings(report: Mapping[str, Any]) -> tuple[tuple[str, Any, Any], ...]:
    """Settings of the best that differ from the baseline: (full name, baseline's, best's)."""
    old, new = report["baseline"]["config"], report["best"]["config"]
    names = sorted(old.keys() | new.keys())
    return tuple((n, old.get(n), new.get(n)) for n in names if old.get(n) != new.get(n))


def _changed(console: Console, report: Mapping[str, Any]) -> None:
    if report["best"]["trial"] in (None, report["baseline"]["trial"]):
        return
    table = _table(
        "Changed settings",
        ("setting", "left"),
        ("baseline", "right"),
        ("best", "right"),
        ("read back", "left"),
    )
    seen = report["best"]["read_back"]
    for name, old, new in changed_settings(report):
        _row(table, name, words.value_text(old), words.value_text(new), seen.get(name, "–"))
    console.print(table)


def _failures(console: Console, contents: StudyContents) -> None:
    groups = document.failures(contents)
    if not groups:
        return
    table = _table("Failures", ("trials", "right"), ("kind", "left"), ("what to try", "left"))
    for group in groups:
        _row(table, str(group.count), group.kind, next_step(group.kind, group.reason))
    console.print(table)
    for group in groups:
        _line(console, "", f"{group.kind}: {group.reason}")
        if group.log is not None:
            # Printed whole on one line, so that it can be copied.
            console.print(f"          log: {words.plain(group.log)}", soft_wrap=True)


def _trials(console: Console, report: Mapping[str, Any]) -> None:
    if not report["trials"]:
        return
    baseline = report["baseline"]["params"]
    heads = ("trial", "s/it", "tokens/s", "peak", "state")
    rows = [_trial_cells(trial) for trial in report["trials"]]
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    console.print("Trials", style="italic")
    _trial_line(console, heads, widths, style="bold")
    for trial, cells in zip(report["trials"], rows, strict=True):
        _trial_line(console, cells, widths)
        for part in _wrapped(_settings(trial, baseline), console.width - _INDENT):
            console.print(" " * _INDENT + part, style="dim", soft_wrap=True)
    if any(trial["unsteady"] for trial in report["trials"]):
        _line(console, "", "unsteady: times within the launch still varied when it was timed")
    console.print()


def _trial_line(
    console: Console, cells: tuple[str, ...], widths: list[int], style: str = ""
) -> None:
    *numbers, state = cells
    padded = [cell.rjust(width) for cell, width in zip(numbers, widths, strict=False)]
    console.print(words.plain("  ".join([*padded, state])), style=style, soft_wrap=True)


def _settings(trial: Mapping[str, Any], baseline: Mapping[str, Any]) -> str:
    """Where a trial comes from and what it changes; of the baseline all its settings."""
    origin = trial["origin"].replace(":", " ")
    settings = trial["params"]
    if origin != "baseline":
        settings = changed_from_baseline(settings, baseline)
    shown = settings_words(settings) or "as the baseline"
    return words.plain(f"{origin}: {shown}")


def _trial_cells(trial: Mapping[str, Any]) -> tuple[str, ...]:
    seconds, tokens = trial["s_per_it"], trial["tokens_per_s"]
    flags = [
        text
        for key, text in (
            ("unsteady", "unsteady"),
            ("unstable", "unstable"),
            ("other_context", "not comparable"),
            ("outside_space", "outside the space"),
        )
        if trial[key]
    ]
    flags += words.disturbances(trial["alloc_retries"], trial["throttled"])
    state = trial["kind"] or trial["state"]
    return (
        str(trial["number"]),
        "–" if seconds is None else seconds_text(seconds),
        "–" if tokens is None else f"{tokens:,.0f}",
        words.bytes_text(trial["peak_memory_bytes"]),
        ", ".join([state, *flags]),
    )


def _environment(console: Console, report: Mapping[str, Any]) -> None:
    found, topology = report["environment"], report["topology"]
    packages = found.get("packages", {})
    versions = ", ".join(f"{name} {version}" for name, version in packages.items())
    bound = report["best"]["implementations"] or report["baseline"]["implementations"]
    if bound:
        _line(console, "bound", ", ".join(f"{kind}: {name}" for kind, name in bound.items()))
    _line(console, "versions", f"python {found.get('python', '?')}, {versions}")
    gpus = found.get("gpus") or []
    device = gpus[0]["name"] if gpus else found.get("cpu", topology["device"])
    _line(
        console,
        "machine",
        f"{topology['processes']} processes on {topology['nodes']} node(s), {device}",
    )
