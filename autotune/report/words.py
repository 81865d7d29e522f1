"""The result in words, from the report document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from autotune.contract.duration import seconds_text
from autotune.store.records import Verdict


def verdict_lines(report: Mapping[str, Any]) -> tuple[str, ...]:
    """Say what was found; the first line is the answer."""
    best = report["best"]
    lines = _unconfirmed(report) if best["verdict"] is None else _confirmed(report)
    if best["reason"] and not _baseline_failed(report):
        lines = (*lines, str(best["reason"]))
    if best["later_trials"]:
        later = f"{best['later_trials']} trials were launched after this verdict; "
        lines = (*lines, later + "the same search command goes on and confirms again.")
    played = report["replayed_from"]
    if played is not None:
        text = "Nothing was run: every launch was played from the table {table}, recorded at {at}."
        lines = (*lines, text.format(table=played["table"], at=played["recorded_at"]))
    return lines


def _confirmed(report: Mapping[str, Any]) -> tuple[str, ...]:
    best, trial = report["best"], report["best"]["trial"]
    if best["verdict"] == "none_feasible":
        return ("No valid configuration was found.", *_baseline_failed(report))
    if best["verdict"] == "keep_baseline":
        return ("Keep your baseline: nothing was faster than it beyond noise.",)
    if best["verdict"] == "tie":
        winner = "your baseline" if trial == report["baseline"]["trial"] else f"trial {trial}"
        text = f"Tie: no difference that launches could tell apart; it goes to {winner}."
        return (text, *_ratio_line(best))
    return (f"Trial {trial} is {speedup_text(best)}.",)


def _unconfirmed(report: Mapping[str, Any]) -> tuple[str, ...]:
    best, trial = report["best"], report["best"]["trial"]
    state = "The search is running." if report["running"] else "The search was not finished."
    if trial is None:
        return (f"{state} Nothing was measured yet.",)
    if trial == report["baseline"]["trial"]:
        return (f"{state} So far nothing is faster than your baseline.",)
    if best["speedup"] is None:
        return (
            f"{state} Fastest so far is trial {trial}; the baseline has no valid time.",
            *_baseline_failed(report),
        )
    ratio = best["speedup"]["ratio"]
    return (f"{state} Fastest so far is trial {trial}, {ratio:.2f}×, not confirmed yet.",)


def _baseline_failed(report: Mapping[str, Any]) -> tuple[str, ...]:
    number = report["baseline"]["trial"]
    for trial in report["trials"]:
        if trial["number"] == number and trial["state"] == "failed":
            return (f"The baseline itself failed ({trial['kind']}): {trial['reason']}",)
    return ()


def speedup_text(best: Mapping[str, Any]) -> str:
    """``1.68× as fast as your baseline (95 % interval 1.66 … 1.70)``."""
    speedup = best["speedup"]
    if speedup is None:
        return "not comparable with your baseline"
    text = f"{speedup['ratio']:.2f}× as fast as your baseline"
    if speedup["low"] is None or speedup["high"] is None:
        return text
    return f"{text} (95 % interval {speedup['low']:.2f} … {speedup['high']:.2f})"


def compared_lines(verdict: Verdict) -> tuple[str, ...]:
    """What the alternating launches of the confirmation measured, if there were enough."""
    if len(verdict.compared) > 1:
        return tuple(
            f"Trial {one.trial} ran at {one.ratio:.2f}× the baseline's speed in {one.rounds} rounds"
            + ("" if one.low is None else f" ({one.low:.2f} … {one.high:.2f})")
            for one in verdict.compared
        )
    if verdict.ratio is None or verdict.low is None or verdict.high is None:
        return ()
    trial = verdict.best_trial if verdict.finalist is None else verdict.finalist
    return (
        f"Launched in turns, trial {trial} ran at {verdict.ratio:.2f}× the baseline's speed "
        f"(95 % interval {verdict.low:.2f} … {verdict.high:.2f}).",
    )


def _ratio_line(best: Mapping[str, Any]) -> tuple[str, ...]:
    if best["speedup"] is None or best["speedup"]["low"] is None:
        return ()
    speedup = best["speedup"]
    return (
        f"Measured {speedup['ratio']:.3f}× (95 % interval {speedup['low']:.3f} … "
        f"{speedup['high']:.3f}) of the baseline's speed.",
    )


def time_text(seconds: Mapping[str, float] | None) -> str:
    """``0.770 s/it (0.765 … 0.776)``; without the interval where one cycle showed no spread."""
    if seconds is None:
        return "no valid time"
    if seconds["low"] == seconds["high"]:
        return f"{seconds_text(seconds['median'])} s/it"
    median, low, high = (seconds_text(seconds[key]) for key in ("median", "low", "high"))
    return f"{median} s/it ({low} … {high})"


def value_text(value: Any) -> str:
    """A setting as people read it: whole numbers in full with separators."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "–"}[value]
    if isinstance(value, int):
        return f"{value:,}"
    return str(value)


def leaves(settings: Mapping[str, Any], place: str = "") -> tuple[tuple[str, Any], ...]:
    """Each value of a nested mapping with its path: ``zero_optimization.some_key``."""
    found: list[tuple[str, Any]] = []
    for key, value in settings.items():
        if isinstance(value, Mapping):
            found += leaves(value, f"{place}{key}.")
        else:
            found.append((f"{place}{key}", value))
    return tuple(found)


GAPS: Final = {
    "first_loss": "first loss",
    "first_grad_norm": "first gradient norm",
    "loss": "later losses",
    "grad_norm": "later gradient norms",
    "cycle_loss": "mean losses",
    "cycle_grad_norm": "mean gradient norms",
}
"""What the numerics gate compares."""


def disturbances(alloc_retries: int | None, throttled: Mapping[str, float] | None) -> list[str]:
    """What held a launch up while it was timed. The power cap is left out: it holds all alike."""
    found = []
    if alloc_retries:
        times = "once" if alloc_retries == 1 else f"{alloc_retries} times"
        found.append(f"the allocator ran out of room {times}")
    for reason, share in (throttled or {}).items():
        if reason != "power":
            found.append(f"clocks held down ({reason.replace('_', ' ')}, {share:.0%})")
    return found


def bytes_text(count: int | None) -> str:
    """A number of bytes in GiB or MiB."""
    if count is None:
        return "–"
    gib = count / 1024**3
    return f"{gib:.2f} GiB" if gib >= 1 else f"{count / 1024**2:.0f} MiB"


def counts_text(counts: Mapping[str, int]) -> str:
    """``37 measured, 3 oom_device``."""
    return ", ".join(f"{count} {kind}" for kind, count in counts.items())


def plain(text: str) -> str:
    """Text from trials without control characters, so that a log cannot drive the terminal."""
    return "".join(c if c.isprintable() or c == "\n" else "�" for c in text)
