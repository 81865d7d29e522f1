"""Time of a search from the command to the end of its last trial, and overhead of its trials.

    python benchmarks/search_time.py --output benchmarks/results/DATE-search_time-zero3.jsonl
    python benchmarks/search_time.py --space fsdp2.yaml --trials 8 --output …

The confirmation is timed apart. Overhead is a trial's wall time from submission to the last
process reaped, less its warm-up and timed iterations.

Targets on two CPU cores: 8 trials in 90 s, 40 trials in 360 s (medians of three runs); overhead
1.2 s for ZeRO-3 and 0.5 s for FSDP2 (median over the trials).
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import harness

TARGETS_S = {8: 90.0, 40: 360.0}
OVERHEAD_TARGETS_S = {"zero3.yaml": 1.2, "fsdp2.yaml": 0.5}


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
        "speedup": document["best"]["speedup"],
        "overhead_s": [trial["overhead_s"] for trial in document["trials"] if trial["s_per_it"]],
    }


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--space", default="zero3.yaml")
    parser.add_argument("--trials", type=int, nargs="+", default=[8, 40])
    parser.add_argument("--repeat", type=int, default=3, help="runs of each size")
    options = parser.parse_args()
    results: list[dict[str, Any]] = []
    head = "trials|to last trial, median|runs|target|with confirmation|overhead|quartiles|target"
    rows = [head.split("|")]
    overhead_target = OVERHEAD_TARGETS_S.get(options.space)
    for trials in options.trials:
        runs = [one_search(options.space, trials) for _ in range(options.repeat)]
        results += runs
        times = [run["to_last_trial_s"] for run in runs]
        target = TARGETS_S.get(trials)
        overheads = [seconds for run in runs for seconds in run["overhead_s"]]
        low, middle, high = statistics.quantiles(overheads, n=4)
        rows.append(
            [
                str(trials),
                f"{statistics.median(times):.1f} s",
                " ".join(f"{seconds:.1f}" for seconds in times),
                f"{target:.0f} s" if target else "-",
                f"{statistics.median(run['with_confirmation_s'] for run in runs):.1f} s",
                f"{middle:.2f} s",
                f"{low:.2f} … {high:.2f}",
                f"{overhead_target:.1f} s" if overhead_target else "-",
            ]
        )
    harness.finish("search_time", results, rows, options.output)


if __name__ == "__main__":
    main()
