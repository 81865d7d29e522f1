"""Does any trial compile an extension, or wait for one? A real search over what needs them.

    PYTHONPATH=. python benchmarks/extensions.py [--seconds 140] [--output FILE]

On two GPUs a search with empty caches over `deepcompile` and `zero_quantized_weights`, each off and
on, of the tiny preset. It is stopped as by Ctrl-C when all four have an outcome or the time is up:
what is looked at is how long each build took before trial 0, that nothing which a compiler made
changed after it, and what each trial spent beside its steps. A second search of one trial then
finds what is there. Prints a table and appends JSON Lines (default: $OUT/extensions.jsonl) as it
goes; exits with 1 where a trial compiled, or an extension was not built before. Without `nvcc` or
two GPUs it says SKIP and exits with 0.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import harness

from autotune.search.available import _has_compiler
from autotune.search.devices import visible_devices

SPACE = """
version: 1
backend: zero3
workload:
  model: qwen3-tiny
  global_batch: 8
  data: {lengths: ultrachat-like, max_length: 256}
  precision: bf16
topology: {processes: 2}
fixed: {micro_batch: 1}
params:
  deepcompile: {choices: [false, true]}
  zero_quantized_weights: {choices: [false, true]}
search: {allow: [zero_quantized_weights], max_trial_time: 100s}
"""
KNOBS = ("zero3.deepcompile", "zero3.zero_quantized_weights")
TRIALS = 4
BUILT = ("QuantizerBuilder", "DeepCompileBuilder")
HEAD = ["what", "end", "s", "overhead s", "phases s"]
AGAIN_S = 40.0
"""Kept for the second search."""


class Search:
    """One search in a process of its own, followed by what it leaves in its folder."""

    def __init__(self, folder: Path, study: str, trials: int) -> None:
        self.study = folder / "runs" / study
        self._process = subprocess.Popen(
            harness.program(
                "search", "--space", "space.yaml", "--study", study, "--trials", str(trials),
                "--no-anchors",
            ),
            cwd=folder,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )  # fmt: skip
        self.said: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.said.append(line.rstrip())
            print(f"    {line.rstrip()}", flush=True)

    def follow(self, trials: int, until: float) -> Iterator[dict[str, Any]]:
        """Yield each build and each trial when it ends; then stop the search."""
        seen: set[Path] = set()
        while True:
            ended = self._process.poll() is not None
            for file in self._files():
                if file not in seen:
                    seen.add(file)
                    yield result(file)
            if ended or time.monotonic() > until or self._trials(seen) >= trials:
                break
            time.sleep(0.2)
        self._stop()

    def _files(self) -> list[Path]:
        builds = self.study.glob("extensions/*/attempt-*/rank-0.json")
        trials = self.study.glob("trials/*/attempt-*/outcome.json")
        return sorted(builds) + sorted(trials)

    @staticmethod
    def _trials(files: set[Path]) -> int:
        return sum(file.name == "outcome.json" for file in files)

    def _stop(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(5)


def environment() -> dict[str, str]:
    """Caches of this search alone, and programs of packages that a folder on PYTHONPATH holds."""
    made = harness.environment()
    made.pop("TORCH_EXTENSIONS_DIR", None)
    installed = [f"{part}/bin" for part in made["PYTHONPATH"].split(os.pathsep) if part]
    made["PATH"] = os.pathsep.join([made.get("PATH", os.defpath), *installed])
    return made


def result(file: Path) -> dict[str, Any]:
    """What a build or a trial came to."""
    data = json.loads(file.read_text())
    if file.name == "rank-0.json":
        built, error = data["extension"], data["error"]
        return {
            "what": "build" if built is None else built["extension"],
            "end": data["status"] if built is None or built["compiled"] else "found",
            "seconds": None if built is None else round(built["seconds"], 1),
            "launch_s": round(data["ended_at"] - data["started_at"], 1),
            "phase_s": data["phase_s"],
            "ended_at": data["ended_at"],
            "reason": None if error is None else error["message"][:500],
        }
    plan = json.loads((file.parent / "plan.json").read_text())
    failure, measured = data["failure"], data["measurement"]
    return {
        "what": "trial",
        "config": {name.partition(".")[2]: plan["config"][name] for name in KNOBS},
        "end": data["state"] if failure is None else failure["kind"],
        "seconds": round(data["wall_s"], 1),
        "overhead_s": round(data["overhead_s"], 1),
        "phase_s": data["phase_s"],
        "s_per_it": None if measured is None else measured["s_per_it"],
        "reason": None if failure is None else failure["reason"],
    }


def row(one: dict[str, Any]) -> list[str]:
    """One line of the table."""
    config = one.get("config")
    named = ", ".join(name for name, value in config.items() if value) if config else ""
    what = one["what"] if config is None else f"trial: {named or 'neither'}"
    phases = " ".join(f"{name} {seconds:.1f}" for name, seconds in one["phase_s"].items())
    overhead = one.get("overhead_s")
    text = ["" if value is None else f"{value:.1f}" for value in (one["seconds"], overhead)]
    return [what, one["end"], *text, phases if one["reason"] is None else one["reason"][:90]]


def made_after(runs: Path, moment: float) -> list[str]:
    """Files of extensions' folders that changed after ``moment``, without their folder."""
    files = (path for path in (runs / ".cache").glob("*/*/slot-*/extensions/**/*"))
    return sorted(
        f"{path.parent.name}/{path.name}"
        for path in files
        if path.is_file() and path.stat().st_mtime > moment
    )


def lacking() -> str | None:
    """Why this cannot be seen here."""
    found = len(visible_devices().found)
    if found < 2:
        return f"two GPUs are needed, and {found} are here"
    return None if _has_compiler() else "there is no nvcc"


def main() -> int:
    """Search twice and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=140.0)
    parser.add_argument("--keep", type=Path, help="copy the study's logs here")
    parser.add_argument(
        "--output", type=Path, default=Path(os.environ.get("OUT", ".")) / "extensions.jsonl"
    )
    arguments = parser.parse_args()
    reason = lacking()
    if reason is not None:
        print(f"SKIP: {reason}")
        return 0
    begun, about = time.monotonic(), harness.machine()
    rows, results = [HEAD], []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "space.yaml").write_text(SPACE)
        for study, trials, until in (
            ("first", TRIALS, begun + arguments.seconds - AGAIN_S),
            ("again", 1, begun + arguments.seconds),
        ):
            search = Search(folder, study, trials)
            for one in search.follow(trials, until):
                results.append({"study": study, **one})
                harness.append("extensions", results[-1:], arguments.output, about)
                rows.append(row(one))
        builds = [one for one in results if one["study"] == "first" and "ended_at" in one]
        built = max((one["ended_at"] for one in builds), default=0.0)
        changed = made_after(folder / "runs", built)
        if arguments.keep is not None:
            shutil.copytree(folder / "runs", arguments.keep, dirs_exist_ok=True)
    compiled = [name for name in changed if name.endswith((".o", ".so"))]
    early = {one["what"] for one in builds if one["end"] == "built"}
    found = {one["what"] for one in results if one["end"] == "found"}
    summary = {
        "what": "summary",
        "built_before": sorted(early),
        "found_again": sorted(found),
        "changed_since": changed,
        "compiled_in_trials": compiled,
        "trials": sum(one["what"] == "trial" for one in results),
    }
    harness.append("extensions", [summary], arguments.output, about)
    print(harness.table(rows))
    print(f"changed after the builds: {changed or 'nothing'}; compiled: {compiled or 'nothing'}")
    print(f"{time.monotonic() - begun:.0f} s")
    return int(bool(compiled) or early != set(BUILT) or found != set(BUILT))


if __name__ == "__main__":
    sys.exit(main())
