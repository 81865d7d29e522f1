"""Does any trial compile an extension, or wait for one? A real search over what needs them.

    PYTHONPATH=. python benchmarks/extensions.py [--processes 1] [--seconds 400] [--output FILE]

On one or two GPUs a search with empty caches over `deepcompile` and `zero_quantized_weights` (which
needs two), each off and on, of the tiny preset. It is stopped as by Ctrl-C when every configuration
has an outcome or the time is up: what is looked at is how long each build took before trial 0, that
nothing which a compiler made changed after it, and what each trial spent beside its steps. A second
search of one trial then finds what is there. Prints a table and appends JSON Lines (default:
$OUT/extensions.jsonl) as it goes; exits with 1 where a trial compiled or has no outcome, or an
extension was not built before. What cannot be on this machine is one line that says SKIP and why;
where nothing is left it exits with 0.

Without a GPU nothing of that can be built: an extension that tests plant into DeepSpeed's ranks,
one file of C++, takes its place, so that all this has run before a GPU is paid for.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import harness
import support_trials

from autotune.backends.base import backend_of
from autotune.contract.plan import Topology
from autotune.search.available import lacking
from autotune.search.devices import visible_devices

TESTS = harness.ROOT / "tests"
SPACE = """
version: 1
backend: zero3
workload:
  model: qwen3-tiny
  global_batch: 8
  data: {{lengths: ultrachat-like, max_length: {length}}}
  precision: {precision}
topology: {{processes: {processes}}}
fixed: {{micro_batch: 1}}
params:
{params}
search: {{allow: [zero_quantized_weights], max_trial_time: 100s}}
"""
BUILDERS = {
    "deepcompile": "DeepCompileBuilder",
    "zero_quantized_weights": "QuantizerBuilder",
}
"""Knob to what it compiles on GPUs."""
PLANTED = {"allgather_sequential": "PlantedBuilder"}
"""And without one: see ``tests/search/planted_extension.py``."""
SOURCE = """
#include <Python.h>
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "planted", nullptr, -1, nullptr};
PyMODINIT_FUNC PyInit_planted() {
  PyObject* made = PyModule_Create(&module);
  PyModule_AddIntConstant(made, "answer", 42);
  return made;
}
"""
HEAD = ["what", "end", "s", "overhead s", "phases s"]
AGAIN_S = 40.0
"""Kept for the second search."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """What is searched, and by which program."""

    builders: dict[str, str]
    """Bare name of a knob of ZeRO-3 to the extension that it needs when on."""
    space: str
    command: Callable[[str, int], list[str]]
    """Of a study's name and its number of trials."""
    variables: dict[str, str]

    @property
    def trials(self) -> int:
        """Configurations: each knob off and on."""
        return int(2 ** len(self.builders))


def on_gpus(processes: int) -> Task:
    """The extensions that can be there; says of the others why not."""
    builders = {}
    for name, builder in BUILDERS.items():
        reason = missing(name, processes)
        if reason is None:
            builders[name] = builder
        else:
            print(f"SKIP {name}: {reason}")

    def command(study: str, trials: int) -> list[str]:
        count = ["--trials", str(trials), "--no-anchors"]
        return harness.program("search", "--space", "space.yaml", "--study", study, *count)

    space = space_of(builders, processes=processes, length=256, precision="bf16")
    return Task(builders=builders, space=space, command=command, variables={})


def without_gpu(processes: int, folder: Path) -> Task:
    """A setting of ZeRO-3 for which one file of C++ is compiled."""
    (folder / "planted.cpp").write_text(SOURCE)
    program = TESTS / "search" / "extension_search.py"
    path = os.pathsep.join([str(program.parent), harness.environment()["PYTHONPATH"]])
    return Task(
        builders=PLANTED,
        space=space_of(PLANTED, processes=processes, length=32, precision="fp32"),
        command=lambda study, trials: [
            sys.executable, str(program), str(folder), study, str(trials),
        ],
        variables={"PLANTED_SOURCES": str(folder), "PYTHONPATH": path},
    )  # fmt: skip


def space_of(builders: dict[str, str], *, processes: int, length: int, precision: str) -> str:
    """The space file: each knob off and on."""
    params = "\n".join(f"  {name}: {{choices: [false, true]}}" for name in builders)
    return SPACE.format(processes=processes, length=length, precision=precision, params=params)


def missing(name: str, processes: int) -> str | None:
    """Why a knob of ZeRO-3 cannot be on, or need not be built, on the visible GPUs."""
    place = Topology(processes=processes, device="cuda", devices_per_node=processes)
    backend = backend_of("zero3")
    knob = next(knob for knob in backend.knobs if knob.name == name)
    plan = support_trials.make_plan(
        "zero3", changes={knob.full_name: True}, processes=processes, precision=support_trials.BF16
    )
    refusal = backend.validate(plan.config, plan.training, place)
    return lacking(knob, True, place) or (None if refusal is None else refusal.reason)


class Search:
    """One search in a process of its own, followed by what it leaves in its folder."""

    def __init__(self, task: Task, folder: Path, study: str, trials: int) -> None:
        self.study = folder / "runs" / study
        self._process = subprocess.Popen(
            task.command(study, trials),
            cwd=folder,
            env={**environment(), **task.variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
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
        "on": [name for name in (*BUILDERS, *PLANTED) if plan["config"][f"zero3.{name}"]],
        "end": data["state"] if failure is None else failure["kind"],
        "seconds": round(data["wall_s"], 1),
        "overhead_s": round(data["overhead_s"], 1),
        "phase_s": data["phase_s"],
        "s_per_it": None if measured is None else measured["s_per_it"],
        "reason": None if failure is None else failure["reason"],
    }


def row(one: dict[str, Any]) -> list[str]:
    """One line of the table."""
    what = one["what"] if "on" not in one else f"trial: {', '.join(one['on']) or 'all off'}"
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


def searched(
    task: Task, folder: Path, ends: dict[str, float], write: Callable[[dict[str, Any]], None]
) -> Iterator[dict[str, Any]]:
    """Both searches: every build and trial, written when it ends."""
    (folder / "space.yaml").write_text(task.space)
    for study, trials in (("first", task.trials), ("again", 1)):
        search = Search(task, folder, study, trials)
        for one in search.follow(trials, ends[study]):
            found = {"study": study, **one}
            write(found)
            yield found


def summary(task: Task, results: list[dict[str, Any]], runs: Path) -> dict[str, Any]:
    """What came of both searches, and whether that is right."""
    builds = [one for one in results if one["study"] == "first" and "ended_at" in one]
    changed = made_after(runs, max((one["ended_at"] for one in builds), default=0.0))
    compiled = [name for name in changed if name.endswith((".o", ".so"))]
    early = {one["what"] for one in builds if one["end"] == "built"}
    found = {one["what"] for one in results if one["end"] == "found"}
    measured = sum(one["what"] == "trial" and one["end"] == "complete" for one in results)
    expected = set(task.builders.values())
    return {
        "what": "summary",
        "built_before": sorted(early),
        "found_again": sorted(found),
        "changed_since": changed,
        "compiled_in_trials": compiled,
        "trials": sum(one["what"] == "trial" for one in results),
        "measured": measured,
        "right": not compiled
        and early == expected
        and found == expected
        and sum(one["what"] == "trial" for one in results) == task.trials + 1,
    }


def main() -> int:
    """Search twice and print what came of it."""
    arguments = _arguments()
    begun, about = time.monotonic(), harness.machine()
    rows, results = [HEAD], []
    ends = {"first": arguments.seconds - AGAIN_S, "again": arguments.seconds}
    ends = {study: begun + seconds for study, seconds in ends.items()}

    def write(one: dict[str, Any]) -> None:
        harness.append("extensions", [one], arguments.output, about)

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if visible_devices().found:
            task = on_gpus(arguments.processes)
        else:
            task = without_gpu(arguments.processes, folder)
        if not task.builders:
            return 0
        for one in searched(task, folder, ends, write):
            results.append(one)
            rows.append(row(one))
        came_of_it = summary(task, results, folder / "runs")
        if arguments.keep is not None:
            shutil.copytree(folder / "runs", arguments.keep, dirs_exist_ok=True)
    write(came_of_it)
    print(harness.table(rows))
    for name in ("changed_since", "compiled_in_trials"):
        print(f"{name.replace('_', ' ')}: {', '.join(came_of_it[name]) or 'nothing'}")
    print(f"{came_of_it['trials']} trials, {came_of_it['measured']} of them measured")
    print(f"{'right' if came_of_it['right'] else 'WRONG'}, {time.monotonic() - begun:.0f} s")
    return int(not came_of_it["right"])


def _arguments() -> argparse.Namespace:
    visible = len(visible_devices().found)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, choices=(1, 2), default=min(2, visible or 2))
    parser.add_argument("--seconds", type=float, default=400.0)
    parser.add_argument("--keep", type=Path, help="copy the studies' folders here")
    parser.add_argument(
        "--output", type=Path, default=Path(os.environ.get("OUT", ".")) / "extensions.jsonl"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
