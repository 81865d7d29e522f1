"""Time of a search from the command to the end of its last trial (confirmation apart).

    python benchmarks/search_time.py --output benchmarks/results/DATE-search_time.jsonl

Targets on two CPU cores: 8 trials in 90 s, 40 trials in 360 s (medians of three runs).
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import harness

TARGETS_S = {8: 90.0, 40: 360.0}


def one_search(space: str, trials: int) -> dict[str, Any]:
    """Run one search in an empty folder."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        started = time.time()
        harness.autotune(
            "search", "--space", space, "--trials", str(trials), "--study", "bench", folder=folder
        )
        total_s = time.time() - started
        outcomes = folder.glob("runs/bench/trials/*/attempt-*/outcome.json")
        last_s = max(outcome.stat().st_mtime for outcome in outcomes) - started
        document = harness.report("bench", folder=folder)
    return {
        "trials": trials,
        "space": space,
        "to_last_trial_s": round(last_s, 2),
        "with_confirmation_s": round(total_s, 2),
        "counts": document["counts"],
        "verdict": document["best"]["verdict"],
    }


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--space", default="zero3.yaml")
    parser.add_argument("--trials", type=int, nargs="+", default=[8, 40])
    parser.add_argument("--repeat", type=int, default=3, help="runs of each size")
    options = parser.parse_args()
    results: list[dict[str, Any]] = []
    rows = [["trials", "to last trial, median", "runs", "target", "with confirmation"]]
    for trials in options.trials:
        runs = [one_search(options.space, trials) for _ in range(options.repeat)]
        results += runs
        times = [run["to_last_trial_s"] for run in runs]
        target = TARGETS_S.get(trials)
        rows.append(
            [
                str(trials),
                f"{statistics.median(times):.1f} s",
                " ".join(f"{seconds:.1f}" for seconds in times),
                f"{target:.0f} s" if target else "-",
                f"{statistics.median(run['with_confirmation_s'] for run in runs):.1f} s",
            ]
        )
    harness.finish("search_time", results, rows, options.output)


if __name__ == "__main__":
    main()
