"""Start-up of the command line against a bare interpreter, and the coordinator's peak memory.

    python benchmarks/startup.py --output benchmarks/results/DATE-startup.jsonl

Targets: ``autotune --help`` 0.3 s; the coordinator 250 MB, or 450 MB with the GP sampler.
"""

from __future__ import annotations

import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import harness

HELP_TARGET_S = 0.3
MEMORY_TARGETS_MB = {"auto": 250, "gp": 450}


def seconds_of(command: Sequence[str], folder: Path) -> float:
    """Wall time of one run of ``command``."""
    started = time.perf_counter()
    subprocess.run(
        command, cwd=folder, env=harness.environment(), stdout=subprocess.DEVNULL, check=True
    )
    return time.perf_counter() - started


def startup(repeat: int) -> dict[str, Any]:
    """Alternate ``autotune --help`` and a bare interpreter, after one run of each."""
    script = Path(sys.executable).parent / "autotune"
    own = [str(script), "--help"] if script.exists() else harness.program("--help")
    bare = [sys.executable, "-c", "pass"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pairs = [(seconds_of(own, folder), seconds_of(bare, folder)) for _ in range(repeat + 1)][1:]
    helps, bares = (statistics.median(column) for column in zip(*pairs, strict=True))
    return {
        "what": "help",
        "help_s": round(helps, 4),
        "bare_python_s": round(bares, 4),
        "ratio": round(helps / bares, 2),
        "repeat": repeat,
    }


def coordinator_peak(sampler: str, trials: int, space: str) -> dict[str, Any]:
    """Search once and watch the coordinator's own high-water mark.

    ``ru_maxrss`` of a child holds its reaped children too, so the kernel's mark of that one
    process is read while it runs.
    """
    with tempfile.TemporaryDirectory() as name:
        process = subprocess.Popen(
            harness.program(
                "search", "--space", space, "--trials", str(trials), "--study", "bench",
                "--set", f"search.sampler={sampler}",
            ),
            cwd=name,
            env=harness.environment(),
            stdout=subprocess.DEVNULL,
        )  # fmt: skip
        peak_kib = 0
        while process.poll() is None:
            peak_kib = max(peak_kib, high_water_kib(process.pid))
            time.sleep(0.1)
    if process.returncode:
        sys.exit(f"the search ended with exit code {process.returncode}")
    return {
        "what": "memory",
        "sampler": sampler,
        "trials": trials,
        "peak_mb": round(peak_kib * 1024 / 1e6, 1),
    }


def high_water_kib(pid: int) -> int:
    """Peak resident size of a process so far, or 0 if it has just ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    return int(found[1]) if found else 0


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--repeat", type=int, default=15, help="runs of --help")
    parser.add_argument("--trials", type=int, default=16, help="trials of each search")
    parser.add_argument("--space", default="zero3.yaml")
    parser.add_argument("--searches", type=int, default=1, help="searches of each sampler; 0: none")
    options = parser.parse_args()
    first = startup(options.repeat)
    results = [first]
    rows = [
        ["what", "median", "target", "beside"],
        [
            "autotune --help",
            f"{first['help_s']:.3f} s",
            f"{HELP_TARGET_S} s",
            f"{first['ratio']} x python -c pass ({first['bare_python_s']:.3f} s)",
        ],
    ]
    for sampler, target in MEMORY_TARGETS_MB.items() if options.searches else ():
        peaks = [
            coordinator_peak(sampler, options.trials, options.space)
            for _ in range(options.searches)
        ]
        results += peaks
        peak = statistics.median(result["peak_mb"] for result in peaks)
        rows.append(
            [
                f"coordinator, {sampler}",
                f"{peak:.0f} MB",
                f"{target} MB",
                f"{options.trials} trials",
            ]
        )
    harness.finish("startup", results, rows, options.output)


if __name__ == "__main__":
    main()
