"""How far a study is, for ``autotune status``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autotune.contract import jsonfile
from autotune.contract.plan import Purpose
from autotune.errors import RecordError
from autotune.report import words
from autotune.store.records import RemeasurementRecord, StudyContents, TrialRecord


def progress(contents: StudyContents, report: Mapping[str, Any]) -> dict[str, Any]:
    """Return the status document."""
    states = Counter(trial["state"] for trial in report["trials"])
    best = report["best"]
    return {
        "schema_version": 1,
        "study": report["study"],
        "running": report["running"],
        "states": {
            state: states[state]
            for state in ("running", "complete", "stopped_early", "failed", "interrupted")
        },
        "counts": report["counts"],
        "num_remeasurements": len(report["remeasurements"]),
        "baseline_s_per_it": _median(report["baseline"]),
        "best": {
            "trial": best["trial"],
            "s_per_it": _median(best),
            "speedup": best["speedup"],
            "verdict": best["verdict"],
        },
        "now": _now(contents) if report["running"] else None,
        "problems": report["problems"],
    }


def _median(configuration: Mapping[str, Any]) -> float | None:
    time = configuration["s_per_it"]
    return None if time is None else float(time["median"])


def _now(contents: StudyContents) -> dict[str, Any] | None:
    """The launch that runs and the phase of its first rank."""
    launched: list[tuple[Purpose, TrialRecord | RemeasurementRecord]] = [
        *(("trial", trial) for trial in contents.trials),
        *(("remeasurement", again) for again in contents.remeasurements),
    ]
    for purpose, item in reversed(launched):
        if item.state != "running" or not item.attempts:
            continue
        attempt = item.attempts[-1].number
        folder = contents.folder.attempt(purpose, item.number, attempt)
        return {
            "purpose": purpose,
            "number": item.number,
            "attempt": attempt,
            "phase": _phase(folder.heartbeat_file(0)),
        }
    return None


def _phase(heartbeat: Path) -> str:
    try:
        found = jsonfile.read_json(heartbeat)
    except (OSError, RecordError):
        return "launch"
    phase = found.get("phase") if isinstance(found, dict) else None
    return phase if isinstance(phase, str) else "launch"


def lines(status: Mapping[str, Any], report: Mapping[str, Any]) -> tuple[str, ...]:
    """Say the status in plain lines."""
    now = status["now"]
    doing = "running" if status["running"] else "not running"
    if now is not None:
        doing += f": {now['purpose']} {now['number']}, phase {now['phase']}"
    states = ", ".join(f"{count} {state}" for state, count in status["states"].items() if count)
    baseline = report["baseline"]["s_per_it"]
    return (
        f"study     {status['study']} ({doing})",
        f"trials    {states or 'none yet'}",
        f"counted   {words.counts_text(status['counts'])}",
        f"baseline  {words.time_text(baseline)}",
        *(f"result    {line}" for line in words.verdict_lines(report)),
    )
