"""Every kernel that can run here against its fallback: speed, memory, and distance from the truth.

    PYTHONPATH=. python benchmarks/kernels.py [--models tiny qwen3 qwen3_5] [--output FILE]

Each choice is compared with its reference as a search does it before trial 0, then timed in real
trials in turns with the fallback, everything else equal: planned by the search's own planner,
launched by its launcher in processes of their own, judged by its gates. The ratio of each round is
shown, so two rounds show its spread. What fails is shown with its reason and the rest goes on.

Kernels are compiled at first use, fla's by TileLang for two minutes and more. ``--caches FOLDER``
keeps what the compilers make there, so that it can be carried to the next machine.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import configs
import harness
from launches import launched, launcher_of

from autotune.contract.folder import AttemptFolder
from autotune.contract.outcome import Outcome
from autotune.contract.plan import Plan, Reference
from autotune.launchers.base import JobStatus, Launcher
from autotune.launchers.caches import locations
from autotune.search.judging import judge
from autotune.search.kernel_checks import plans
from autotune.search.kernels import full_name
from autotune.search.preflight import Prepared, prepare
from autotune.search.request import SearchRequest
from autotune.space.model import Config

MODELS: dict[str, dict[str, Any]] = {
    "tiny": {"preset": "qwen3_5-tiny", "max_length": 256, "global_batch": 8},
    "qwen3": {"config": configs.qwen3(8), "max_length": 8192, "global_batch": 16},
    "qwen3_5": {"config": configs.qwen3_5(16), "max_length": 8192, "global_batch": 16},
}
SPACE = """
version: 1
backend: fsdp2
workload:
  model: {model}
  global_batch: {global_batch}
  data: {{lengths: ultrachat-like, max_length: {max_length}, seed: 0}}
  precision: {precision}
topology: {{processes: {processes}}}
fixed: {{max_tokens: {max_length}, activation_checkpointing: {checkpointing}}}
baseline:
  kernel.attention: sdpa
  kernel.linear_attention: torch
  kernel.convolution: torch
params:
  kernel.attention: {{choices: [sdpa, flex_attention, flash_attention_2, varlen]}}
  kernel.linear_attention: {{choices: [torch, fla]}}
  kernel.convolution: {{choices: [torch, causal_conv1d, fla]}}
  kernel.norm: {{choices: [torch, liger]}}
  kernel.rope: {{choices: [torch, liger]}}
  kernel.mlp: {{choices: [torch, liger]}}
  kernel.loss: {{choices: [torch, chunked, liger]}}
  kernel.compile: {{choices: [none, layer]}}
search: {{max_trial_time: 9m}}
"""


class Bench:
    """One model on one launcher."""

    def __init__(
        self,
        name: str,
        arguments: argparse.Namespace,
        folder: Path,
        write: Callable[[dict[str, Any]], None],
    ) -> None:
        self._name = name
        self._write = write
        self._folder = folder / name
        self._rounds: int = arguments.rounds
        self._only: list[str] = arguments.only
        self._prepared = _prepared(name, arguments, self._folder)
        self._launches = 0
        self._reference = Reference()

    def run(self) -> list[dict[str, Any]]:
        for gone in self._prepared.space.dropped:
            self._say({"choice": f"{gone.param}={gone.value}", "left_out": gone.reason})
        launcher = launcher_of(self._prepared)
        try:
            print(launcher.start() or f"{self._name}: launcher ready", flush=True)
            checked = self._check(launcher)
            return self._race(launcher, checked)
        finally:
            launcher.close()

    def _check(self, launcher: Launcher) -> list[dict[str, Any]]:
        """Every choice beside its reference: one entry each."""
        found = []
        for plan, layer, choice in plans(self._prepared):
            label = f"{full_name(layer)}={choice}"
            if self._only and layer.knob not in self._only:
                continue
            status, folder = self._launched(launcher, plan)
            record = folder.read_rank(0)
            entry: dict[str, Any] = {"model": self._name, "choice": label}
            entry["check_s"] = round(status.wall_s, 1)
            if record is not None and record.kernel is not None:
                check = record.kernel
                entry |= {"passed": check.passed, "error": check.error, "allowed": check.allowed}
                entry |= {"tensor": check.tensor, "versions": check.versions}
            else:
                failure = judge(plan, folder, status).failure
                entry |= {"passed": False, "reason": failure.reason if failure else "no record"}
            self._say(entry)
            found.append({**entry, "knob": full_name(layer), "value": choice})
        return found

    def _race(self, launcher: Launcher, checked: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The fallback and each choice that passed, in turns."""
        base = self._prepared.space.baseline_config()
        passed = [one for one in checked if one["passed"]]
        ratios: dict[str, list[float]] = {one["choice"]: [] for one in passed}
        outcomes: dict[str, Outcome] = {}
        for _ in range(self._rounds):
            fallback = self._trial(launcher, base, "fallback")
            seconds = _seconds(fallback)
            if seconds is None:
                break
            for one in passed:
                knob, value = one["knob"], one["value"]
                if one["choice"] in outcomes and _seconds(outcomes[one["choice"]]) is None:
                    continue  # it failed: once is enough
                config = dataclasses.replace(base, values={**base.values, knob: value})
                outcome = self._trial(launcher, config, one["choice"])
                outcomes[one["choice"]] = outcome
                mine = _seconds(outcome)
                if mine is not None:
                    ratios[one["choice"]].append(seconds / mine)
        return [self._result(one, outcomes, ratios) for one in checked]

    def _trial(self, launcher: Launcher, config: Config, label: str) -> Outcome:
        plan = self._prepared.planner.plan(
            config,
            number=self._launches,
            attempt=0,
            purpose="trial",
            reference=self._reference,
            racing=None,
        )
        rules = dataclasses.replace(
            plan.measuring,
            warmup_tolerance=0.5,
            warmup_max_cycles=2,
            interval_share=0.0,
            window_s=0.001,
            window_iterations=1,
        )
        plan = dataclasses.replace(plan, measuring=rules)
        status, folder = self._launched(launcher, plan)
        outcome = judge(plan, folder, status)
        measured, failure = outcome.measurement, outcome.failure
        if label == "fallback" and measured is not None and not self._reference.checks:
            self._reference = Reference(
                checks=measured.checks, implementations=measured.implementations
            )
        said: dict[str, Any] = {"model": self._name, "launch": label}
        if measured is not None:
            said["s_per_it"] = measured.s_per_it
            said["iteration_s"] = list(measured.iteration_s)
            said["peak_gib"] = round(measured.peak_memory.timed / 2**30, 2)
            said["compile_s"] = round(measured.compile_s, 1)
            said["gaps"] = {kind: gap.apart for kind, gap in measured.gaps.items()}
        elif failure is not None:
            said |= {"failure": failure.kind, "reason": failure.reason}
        self._say(said)
        return outcome

    def _launched(self, launcher: Launcher, plan: Plan) -> tuple[JobStatus, AttemptFolder]:
        self._launches += 1
        return launched(launcher, plan, self._folder / f"launch-{self._launches - 1}")

    def _result(
        self,
        checked: dict[str, Any],
        outcomes: dict[str, Outcome],
        ratios: dict[str, list[float]],
    ) -> dict[str, Any]:
        label = checked["choice"]
        entry = {key: value for key, value in checked.items() if key not in ("knob", "value")}
        outcome = outcomes.get(label)
        if outcome is None:
            return entry
        entry["ratios"] = ratios[label]
        if outcome.measurement is not None:
            measured = outcome.measurement
            entry |= {
                "s_per_it": measured.s_per_it,
                "peak_gib": round(measured.peak_memory.timed / 2**30, 2),
                "compile_s": round(measured.compile_s, 1),
                "gaps": {kind: gap.apart for kind, gap in measured.gaps.items()},
                "implementations": measured.implementations,
            }
        elif outcome.failure is not None:
            entry |= {"failure": outcome.failure.kind, "reason": outcome.failure.reason}
        return entry

    def _say(self, entry: dict[str, Any]) -> None:
        """Print a check or a launch and write it at once: compilers take minutes."""
        print(json.dumps(entry), flush=True)
        self._write(entry)


def _prepared(name: str, arguments: argparse.Namespace, folder: Path) -> Prepared:
    shape = MODELS[name]
    folder.mkdir(parents=True)
    path = folder / f"{name}.yaml"
    path.write_text(
        SPACE.format(
            model=configs.model_of(shape, folder),
            global_batch=shape["global_batch"],
            max_length=shape["max_length"],
            precision=arguments.precision,
            processes=arguments.processes,
            checkpointing=arguments.checkpointing,
        )
    )
    request = SearchRequest(space=str(path), runs=folder / "runs", anchors=False)
    return prepare(request, staging=folder)


def _seconds(outcome: Outcome) -> float | None:
    return None if outcome.measurement is None else outcome.measurement.s_per_it


def rows_of(results: list[dict[str, Any]]) -> list[list[str]]:
    """The table."""
    rows = [["model", "choice", "times faster", "GiB", "compile s", "error of allowed", ""]]
    for one in results:
        ratios = one.get("ratios") or []
        spread = ""
        if ratios:
            spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"
        error = "not finite" if one.get("error") is None else f"{one['error']:.1e}"
        compared = f"{error} of {one['allowed']:.1e}" if "allowed" in one else ""
        rows.append(
            [
                one["model"],
                one["choice"],
                spread,
                str(one.get("peak_gib", "")),
                str(one.get("compile_s", "")),
                compared,
                one.get("reason", "" if one["passed"] else f"wrong: {one['tensor']}")[:90],
            ]
        )
    return rows


def main() -> int:
    parser = harness.parser(__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=["qwen3", "qwen3_5"])
    parser.add_argument("--only", nargs="+", default=[], help="knobs by bare name, such as loss")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--processes", default="1")
    parser.add_argument("--precision", choices=("bf16", "fp32"), default="bf16")
    parser.add_argument("--checkpointing", choices=("none", "full"), default="none")
    parser.add_argument("--caches", type=Path, help="what compilers make is kept here")
    arguments = parser.parse_args()
    if arguments.caches is not None and arguments.processes != "1":
        parser.error("ranks that share a cache corrupt it: --caches needs --processes 1")
    results: list[dict[str, Any]] = []
    about = harness.machine()

    def write(entry: dict[str, Any]) -> None:
        harness.append("kernels", [entry], arguments.output, about)

    with tempfile.TemporaryDirectory() as folder:
        if arguments.caches is not None:
            os.environ |= locations(arguments.caches.resolve())
        for name in arguments.models:
            found = Bench(name, arguments, Path(folder), write).run()
            for one in found:
                write({"summary": True, **one})
            results += found
    harness.finish("kernels", [], rows_of(results), None, where=lambda: about)
    return int(any(not one["passed"] or "failure" in one for one in results))


if __name__ == "__main__":
    sys.exit(main())
