"""What every benchmark does: run the program as a user does, and record where it ran.

Only the command line, ``report --json`` and the documented run folder are used. No record holds a
host name or a path of the machine.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("torch", "transformers", "deepspeed", "optuna", "typer", "scipy")


def environment() -> dict[str, str]:
    """The caller's environment, with this checkout first on the path."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path}


def program(*arguments: str) -> list[str]:
    """The command line of ``autotune ARGUMENTS``."""
    return [sys.executable, "-m", "autotune", *arguments]


def autotune(*arguments: str, folder: Path) -> str:
    """Run autotune in ``folder`` and return its standard output; exit if it fails."""
    done = subprocess.run(
        program(*arguments), cwd=folder, env=environment(), stdout=subprocess.PIPE, text=True
    )
    if done.returncode:
        sys.exit(f"autotune {' '.join(arguments)} ended with exit code {done.returncode}")
    return done.stdout


def wilson(count: int, total: int) -> tuple[float, float]:
    """95 % interval of a share (Wilson 1927)."""
    z = 1.959964
    share = count / total
    middle = share + z * z / (2 * total)
    half = z * math.sqrt(share * (1 - share) / total + z * z / (4 * total * total))
    scale = 1 + z * z / total
    return max(0.0, (middle - half) / scale), min(1.0, (middle + half) / scale)


def report(study: str, *, folder: Path) -> dict[str, Any]:
    """The report of a study under ``folder``/runs."""
    document: dict[str, Any] = json.loads(autotune("report", study, "--json", folder=folder))
    return document


def machine() -> dict[str, Any]:
    """Versions and hardware, without names of hosts or folders."""
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "not installed"
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "autotune": autotune("--version", folder=ROOT).split()[-1],
        "commit": _commit(),
        "versions": versions,
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "gpus": _gpus(),
        "kernel": platform.release(),
    }


def _commit() -> str | None:
    said = _said(["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12"])
    return said.strip() or None


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _gpus() -> list[str]:
    return _said(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]).splitlines()


def _said(command: Sequence[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return ""


def table(rows: Sequence[Sequence[str]]) -> str:
    """Rows as aligned text, the first one being the head."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]])


def parser(description: str | None) -> argparse.ArgumentParser:
    """A parser with the option that all benchmarks have."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument(
        "--output",
        type=Path,
        help="JSON Lines file to append to: benchmarks/results/DATE-NAME.jsonl",
    )
    return made


def append(
    name: str,
    results: Sequence[dict[str, Any]],
    output: Path | None,
    about: dict[str, Any],
) -> None:
    """Append one record a result: at once, where a script may be stopped before its end."""
    if output is None:
        return
    output.parent.mkdir(parents=True, exist_ok=True)
    with output.open("a") as file:
        for result in results:
            file.write(json.dumps({"benchmark": name, **result, **about}) + "\n")


def finish(
    name: str,
    results: Sequence[dict[str, Any]],
    rows: Sequence[Sequence[str]],
    output: Path | None,
    *,
    where: Callable[[], dict[str, Any]] = machine,
) -> None:
    """Print the table, and append what is not in the file yet."""
    about = where()
    print(table(rows))
    print(f"{about['cpu']}, {about['cores']} cores, {len(about['gpus'])} GPUs")
    append(name, results, output, about)
