"""Packed against padded rows, for every choice of attention, linear attention and convolution.

    PYTHONPATH=. python benchmarks/packing.py [--models tiny qwen3_5 qwen3] [--output FILE]

Each combination of kernels that the machine has is a trial as a search makes it: planned by the
search's own planner, launched by its launcher, judged by its gates. Packed ones pass the leak test
first. Prints s/it, padding, peak and the distance from the baseline's numbers; what fails is shown
with its reason. Exits with 1 where a combination that is offered fails.

Kernels are compiled at first use, fla's by TileLang for two minutes and more. ``--caches FOLDER``
keeps what the compilers make there, so that it can be packed, brought back and carried to the next
machine: a trial then starts in seconds.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import configs
import harness
from launches import launched, launcher_of

from autotune.contract.outcome import Outcome
from autotune.contract.plan import Plan, Reference
from autotune.launchers.caches import locations
from autotune.search.judging import judge
from autotune.search.preflight import Prepared, prepare
from autotune.search.request import SearchRequest
from autotune.space import domains
from autotune.space.model import Config

KERNELS = ("attention", "linear_attention", "convolution")
MODELS: dict[str, dict[str, Any]] = {
    "tiny": {"preset": "qwen3_5-tiny", "max_length": 512, "global_batch": 16},
    "qwen3_5": {"config": configs.qwen3_5(16), "max_length": 8192, "global_batch": 12},
    "qwen3": {"config": configs.qwen3(12), "max_length": 8192, "global_batch": 12},
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
  batching: padded
  kernel.attention: sdpa
  kernel.linear_attention: torch
  kernel.convolution: torch
params:
  batching: {{choices: [padded, packed]}}
  kernel.attention: {{choices: [sdpa, flex_attention, flash_attention_2, varlen]}}
  kernel.linear_attention: {{choices: [torch, fla]}}
  kernel.convolution: {{choices: [torch, causal_conv1d, fla]}}
search: {{max_trial_time: 9m}}
"""


def configurations(prepared: Prepared) -> Iterator[Config]:
    """The baseline; packed rows with all kernels that may; padded ones with the same kernels.

    And padded ones with another linear attention or convolution alone. Layer types that the model
    does not have make no difference: a key comes once.
    """
    space = prepared.space
    baseline = space.baseline_config()
    grid = [[(p.name, value) for value in domains.values(p.domain)] for p in space.params]
    found = [space.resolve(dict(each)) for each in itertools.product(*grid)]
    found = [one for one in found if prepared.planner.refusal(one) is None]
    both = {kernels_of(one) for one in found if batching_of(one) == "packed"}
    seen: set[str] = set()
    for one in [baseline, *found]:
        mine, usual = kernels_of(one), kernels_of(baseline)
        alone = mine[0] == usual[0] and sum(map(str.__ne__, mine, usual)) == 1
        wanted = one is baseline or batching_of(one) == "packed" or mine in both or alone
        if wanted and one.key not in seen:
            seen.add(one.key)
            yield one


def kernels_of(config: Config) -> tuple[str, ...]:
    """The choices of ``KERNELS``; those of layer types that the model lacks are empty."""
    names = (f"kernel.{kernel}" for kernel in KERNELS)
    return tuple("" if name in config.dead else str(config.values[name]) for name in names)


def batching_of(config: Config) -> str:
    return str(config.values["workload.batching"])


def shortened(plan: Plan) -> Plan:
    """One cycle of warm-up, the check included, and one of timing."""
    rules = dataclasses.replace(
        plan.measuring,
        warmup_tolerance=0.5,
        warmup_max_cycles=1,
        interval_share=0.0,
        window_s=0.001,
        window_iterations=1,
    )
    return dataclasses.replace(plan, measuring=rules)


def run(name: str, arguments: Any, folder: Path, until: float) -> Iterator[dict[str, Any]]:
    """Yield what each configuration came to; none is begun after ``until`` (monotonic clock)."""
    shape = MODELS[name]
    text = SPACE.format(
        model=configs.model_of(shape, folder / name),
        global_batch=shape["global_batch"],
        max_length=shape["max_length"],
        precision=arguments.precision,
        processes=arguments.processes,
        checkpointing=arguments.checkpointing,
    )
    path = folder / f"{name}.yaml"
    path.write_text(text)
    prepared = prepare(
        SearchRequest(space=str(path), runs=folder / "runs", anchors=False), staging=folder
    )
    for gone in prepared.space.dropped:
        print(f"{name}: {gone.param} {gone.value} is left out: {gone.reason}", flush=True)
    launcher = launcher_of(prepared)
    reference = Reference()
    try:
        print(launcher.start() or f"{name}: launcher ready", flush=True)
        for number, config in enumerate(configurations(prepared)):
            if time.monotonic() > until:
                print(f"{name}: out of time before {batching_of(config)} {kernels_of(config)}")
                continue
            plan = prepared.planner.plan(
                config,
                number=number,
                attempt=0,
                purpose="trial",
                reference=reference,
                racing=None,
            )
            plan = shortened(plan)
            status, attempt = launched(launcher, plan, folder / f"{name}-{number}")
            outcome = judge(plan, attempt, status)
            yield _result(name, config, outcome)
            if number == 0 and outcome.measurement is not None:
                measured = outcome.measurement
                reference = Reference(
                    checks=measured.checks, implementations=measured.implementations
                )
    finally:
        launcher.close()


def _result(name: str, config: Config, outcome: Outcome) -> dict[str, Any]:
    found: dict[str, Any] = {
        "model": name,
        "batching": batching_of(config),
        "kernels": " ".join(filter(None, kernels_of(config))),
        "wall_s": round(outcome.wall_s, 1),
        "check_s": round(outcome.phase_s.get("check", 0.0), 1),
    }
    measured = outcome.measurement
    if measured is None:
        assert outcome.failure is not None
        return {**found, "failure": outcome.failure.kind, "reason": outcome.failure.reason}
    return {
        **found,
        "s_per_it": measured.s_per_it,
        "iteration_s": list(measured.iteration_s),
        "micro_steps": measured.micro_steps,
        "padding_share": measured.padding_share,
        "distinct_shapes": measured.distinct_shapes,
        "peak_gib": round(measured.peak_memory.timed / 2**30, 1),
        "gaps": {kind: gap.apart for kind, gap in measured.gaps.items()},
        "implementations": measured.implementations,
    }


def rows_of(results: list[dict[str, Any]]) -> list[list[str]]:
    """The table, with each time against the first of its model."""
    rows = [["model", "batching", "kernels", "s/it", "times", "padding", "GiB", "norm apart"]]
    for one in results:
        first = next(other for other in results if other["model"] == one["model"])
        start = [one["model"], one["batching"], one["kernels"]]
        if "failure" in one:
            rows.append([*start, one["failure"], "", "", "", one["reason"][:80]])
            continue
        times = first["s_per_it"] / one["s_per_it"] if "s_per_it" in first else float("nan")
        apart = one["gaps"].get("first_grad_norm", 0.0)
        rows.append(
            [
                *start,
                f"{one['s_per_it']:.3f}",
                f"{times:.2f}",
                f"{one['padding_share']:.1%}",
                f"{one['peak_gib']}",
                f"{apart:.1e}",
            ]
        )
    return rows


def main() -> int:
    parser = harness.parser(__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=["qwen3_5", "qwen3"])
    parser.add_argument("--limit-s", type=float, default=math.inf, help="begin no trial after it")
    parser.add_argument("--processes", default="auto")
    parser.add_argument("--precision", choices=("bf16", "fp32"), default="bf16")
    parser.add_argument("--checkpointing", choices=("none", "full"), default="none")
    parser.add_argument(
        "--caches", type=Path, help="what compilers make is kept here; needs --processes 1"
    )
    arguments = parser.parse_args()
    if arguments.caches is not None and arguments.processes != "1":
        parser.error("ranks that share a cache corrupt it: --caches needs --processes 1")
    results: list[dict[str, Any]] = []
    about = harness.machine()
    until = time.monotonic() + arguments.limit_s
    with tempfile.TemporaryDirectory() as folder:
        if arguments.caches is not None:
            os.environ |= locations(arguments.caches.resolve())
        for name in arguments.models:
            for one in run(name, arguments, Path(folder), until):
                print(json.dumps(one), flush=True)
                harness.append("packing", [one], arguments.output, about)
                results.append(one)
    harness.finish("packing", [], rows_of(results), None, where=lambda: about)
    return int(any("failure" in one for one in results))


if __name__ == "__main__":
    sys.exit(main())
