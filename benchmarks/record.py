"""Run one search and record each of its trials: raw times, settings, peaks, failures, overhead.

    python benchmarks/record.py --space both.yaml --trials 8 --output benchmarks/results/….jsonl
    python benchmarks/record.py --runs runs --output … --set workload.model=qwen3-0.6b --set …

The first record of a search is about the search: its command, verdict, overhead a backend, and
what was left on the devices. Each attempt follows as a record of its own. Run folders stay under
``--runs`` when it is given; the same command then goes on with an interrupted search.
"""

from __future__ import annotations

import json
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import harness

RUNS = ("trials", "remeasurements")


def used_mib() -> list[int]:
    """Memory in use on each device, empty without one."""
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return []
    return [int(line) for line in said.split()]


def attempts(study: Path) -> Iterator[dict[str, Any]]:
    """Each attempt of each trial and remeasurement, as it lies in the run folder."""
    for kind in RUNS:
        for path in sorted(study.glob(f"{kind}/*/attempt-*/outcome.json")):
            outcome = json.loads(path.read_text())
            plan = json.loads((path.parent / "plan.json").read_text())
            yield {
                "record": kind.removesuffix("s"),
                "number": int(path.parent.parent.name),
                "attempt": int(path.parent.name.removeprefix("attempt-")),
                "backend": plan["backend"],
                "config": plan["config"],
                **outcome,
                "ranks": [times_of(file) for file in sorted(path.parent.glob("rank-*.json"))],
            }


def times_of(path: Path) -> dict[str, Any]:
    """One rank's raw times (s) and seconds in each phase."""
    rank = json.loads(path.read_text())
    measured = rank["measurement"] or {}
    return {
        "rank": rank["rank"],
        "warmup_s": measured.get("warmup_s"),
        "iteration_s": measured.get("iteration_s"),
        "phase_s": rank["phase_s"],
    }


def overheads(document: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Median and quartiles of the overhead (s) of the measured trials of each backend."""
    groups: dict[str, list[float]] = defaultdict(list)
    for trial in document["trials"]:
        if trial["s_per_it"]:
            groups[trial["backend"]].append(trial["overhead_s"])
    found = {}
    for backend, seconds in sorted(groups.items()):
        spread = statistics.quantiles(seconds, n=4) if len(seconds) > 1 else seconds * 3
        low, middle, high = (round(value, 3) for value in spread)
        found[backend] = {"median": middle, "low": low, "high": high, "trials": len(seconds)}
    return found


def search(*words: str, folder: Path, limit_s: float | None) -> int:
    """Search, interrupted as by Ctrl-C where it takes longer; return its exit code."""
    process = subprocess.Popen(
        harness.program("search", *words), cwd=folder, env=harness.environment()
    )
    try:
        return process.wait(timeout=limit_s)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
        return process.wait()


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--space", default="both.yaml")
    parser.add_argument("--trials", type=int, default=8)
    parser.add_argument("--study", default="record")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--runs", type=Path, help="keep the run folders here")
    parser.add_argument("--limit", type=float, help="interrupt the search after so many seconds")
    options = parser.parse_args()
    overrides = [word for value in options.set for word in ("--set", value)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        runs = (options.runs or folder / "runs").absolute()
        before, started = used_mib(), time.time()
        code = search(
            "--space", options.space, "--trials", str(options.trials),
            "--study", options.study, "--runs", str(runs), *overrides,
            folder=folder,
            limit_s=options.limit,
        )  # fmt: skip
        wall_s, after = time.time() - started, used_mib()
        words = ("report", options.study, "--runs", str(runs), "--json")
        said = harness.autotune(*words, folder=folder)
        document = json.loads(said)
        records = list(attempts(runs / options.study))
    ends = [one["submitted_at"] + one["wall_s"] for one in records if one["record"] == "trial"]
    best = document["best"] or {}
    about = {
        "record": "search",
        "space": options.space,
        "set": options.set,
        "topology": document["topology"],
        "exit_code": code,
        "wall_s": round(wall_s, 2),
        "to_last_trial_s": round(max(ends) - started, 2) if ends else None,
        "counts": document["counts"],
        "verdict": best.get("verdict"),
        "best": best.get("trial"),
        "backend": best.get("backend"),
        "speedup": best.get("speedup"),
        "overhead_s": overheads(document),
        "device_mib_before": before,
        "device_mib_after": after,
    }
    rows = [["backend", "trials", "overhead, median", "quartiles"]]
    for backend, seconds in about["overhead_s"].items():
        spread = f"{seconds['low']:.2f} … {seconds['high']:.2f}"
        rows.append([backend, str(seconds["trials"]), f"{seconds['median']:.2f} s", spread])
    harness.finish("record", [about, *records], rows, options.output)
    print(f"verdict {about['verdict']}, best is {about['backend']}, speed-up {about['speedup']}")
    print(f"device memory in use before {before} MiB, after {after} MiB")
    sys.exit(code)


if __name__ == "__main__":
    main()
