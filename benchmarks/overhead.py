"""Overhead of a trial: wall time from submission to the last process reaped, less its iterations.

    python benchmarks/overhead.py --output benchmarks/results/DATE-overhead.jsonl

Targets without a GPU, median over the trials of three studies: FSDP2 0.5 s, ZeRO-3 1.2 s.
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path
from typing import Any

import harness

TARGETS_S = {"zero3": 1.2, "fsdp2": 0.5}


def one_study(backend: str, trials: int) -> dict[str, Any]:
    """Search once and return the overheads of the trials that were measured."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        harness.autotune(
            "search", "--space", f"{backend}.yaml", "--trials", str(trials), "--study", "bench",
            folder=folder,
        )  # fmt: skip
        trials_found = harness.report("bench", folder=folder)["trials"]
    measured = [trial for trial in trials_found if trial["s_per_it"] is not None]
    return {
        "backend": backend,
        "overhead_s": [trial["overhead_s"] for trial in measured],
        "timed_s": [trial["timed_s"] for trial in measured],
    }


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--trials", type=int, default=8)
    parser.add_argument("--repeat", type=int, default=3, help="studies of each backend")
    options = parser.parse_args()
    results: list[dict[str, Any]] = []
    rows = [["backend", "overhead, median", "largest", "trials", "target", "timed, median"]]
    for backend, target in TARGETS_S.items():
        studies = [one_study(backend, options.trials) for _ in range(options.repeat)]
        results += studies
        overheads = [seconds for study in studies for seconds in study["overhead_s"]]
        timed = [seconds for study in studies for seconds in study["timed_s"]]
        rows.append(
            [
                backend,
                f"{statistics.median(overheads):.2f} s",
                f"{max(overheads):.2f} s",
                str(len(overheads)),
                f"{target:.1f} s",
                f"{statistics.median(timed):.2f} s",
            ]
        )
    harness.finish("overhead", results, rows, options.output)


if __name__ == "__main__":
    main()
