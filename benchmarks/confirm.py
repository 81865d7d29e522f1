"""The best configuration against the baseline, launched again in turns (A B A B, five rounds).

    python benchmarks/confirm.py --output benchmarks/results/DATE-confirm.jsonl

"No gain" is a result; a wrong claim is not. The baseline is the engine's raw defaults.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import harness


def one_study(space: str, trials: int) -> dict[str, Any]:
    """Search, confirm, and return what the report claims."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        harness.autotune(
            "search", "--space", space, "--trials", str(trials), "--study", "bench", folder=folder
        )
        document = harness.report("bench", folder=folder)
    best, baseline = document["best"], document["baseline"]
    return {
        "space": space,
        "trials": trials,
        "verdict": best["verdict"],
        "speedup": best["speedup"],
        "baseline_s_per_it": baseline["s_per_it"],
        "best_s_per_it": best["s_per_it"],
        "best_params": best.get("params"),
        "remeasurements": document["remeasurements"],
    }


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--space", nargs="+", default=["zero3.yaml", "fsdp2.yaml"])
    parser.add_argument("--trials", type=int, default=16)
    parser.add_argument("--repeat", type=int, default=3, help="studies of each space")
    options = parser.parse_args()
    results: list[dict[str, Any]] = []
    rows = [["space", "verdict", "baseline / best", "95 % interval", "baseline", "best"]]
    for space in options.space:
        for _ in range(options.repeat):
            result = one_study(space, options.trials)
            results.append(result)
            rows.append(row_of(result))
    harness.finish("confirm", results, rows, options.output)


def row_of(result: dict[str, Any]) -> list[str]:
    """One line of the table."""
    speedup = result["speedup"]
    if speedup is None:
        return [result["space"], result["verdict"], "-", "-", "-", "-"]
    known = speedup["low"] is not None and speedup["high"] is not None
    return [
        result["space"],
        result["verdict"],
        f"{speedup['ratio']:.3f}",
        f"{speedup['low']:.3f} … {speedup['high']:.3f}" if known else "unknown",
        f"{result['baseline_s_per_it']['median']:.4f} s/it",
        f"{result['best_s_per_it']['median']:.4f} s/it",
    ]


if __name__ == "__main__":
    main()
