"""Does measuring cost the measured step anything? Windows of a trial against a plain loop.

    PYTHONPATH=. python benchmarks/instrumentation.py [--backends zero3 fsdp2 ddp] [--output FILE]
    PYTHONPATH=. python benchmarks/instrumentation.py --device cuda

Trials run as always, on the local launcher with its watchdog. After a trial's own window, pairs of
blocks follow in its ranks, on its engine, in random order: M is a window as trials time it (marks,
heartbeat, exchange and collection of garbage after each cycle), P a plain training loop between
two readings of a clock, while the fork server with its watchdog is stopped. Each block begins when
the ranks have met, and the slowest rank counts. On CPUs each rank is bound to cores of its own,
which halves the scatter of blocks. ``CPU time`` is that of all ranks: work that a window adds,
whoever else makes the machine wait.

The mean logarithm of M/P is formed per launch, because what one launch has in common is no
independent evidence, and Student's 95 % interval over the launches is printed; likewise for one
plain block against the next, which shows what the machine alone does, and for the trial's own
window against the plain blocks of its launch. With ``--cold N``, N trials alternate with plain
loops in fresh processes that never import the worker: what differs between whole launches. Exits
with 1 where the interval of M/P misses 0 or leaves the limit.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import configs
import harness
import instrumented
import support_trials

from autotune.analysis import students_t
from autotune.contract.folder import AttemptFolder, StudyFolder
from autotune.contract.plan import Deadlines, Measuring, Plan, Topology
from autotune.launchers.local import LocalLauncher

LIMITS = {"cpu": 0.03, "cuda": 0.01}
DEFAULTS: dict[str, dict[str, Any]] = {
    "cpu": {
        "model": "qwen3-tiny",
        "launches": 10,
        "seconds": 8.0,
        "max_length": 128,
        "micro_batch": 2,
        "iterations": 8,
    },
    # Two layers, so that the devices bound the step: where the host does, its noise hides 1 %.
    "cuda": {
        "layers": 2,
        "launches": 4,
        "seconds": 4.0,
        "max_length": 4096,
        "micro_batch": 8,
        "iterations": 4,
    },
}
"""``seconds`` is the length of the blocks of one launch; a global batch has 16 samples."""
WINDOW = Measuring(
    warmup_tolerance=0.1,
    warmup_max_cycles=2,
    interval_share=1e-9,
    window_s=60.0,
    window_iterations=8,
)
POLL_S = 0.25
"""As often as a search looks at its trial."""
Interval = tuple[float, float, float]


def make_plan(backend: str, arguments: argparse.Namespace) -> Plan:
    """The trial of every launch."""
    cuda = arguments.device == "cuda"
    plan = support_trials.make_plan(
        backend,
        model_name=arguments.model,
        changes={"workload.micro_batch": arguments.micro_batch},
        precision=support_trials.BF16 if cuda else support_trials.FP32,
        max_length=arguments.max_length,
        processes=arguments.processes,
        batches=4,
        lr=1e-5,
        measuring=WINDOW,
    )
    place = Topology(
        processes=arguments.processes,
        device=arguments.device,
        devices_per_node=arguments.processes,
    )
    limits = Deadlines(total_s=1800.0, phase_s={})
    return dataclasses.replace(plan, topology=place, deadlines=limits)


def launch(
    launcher: LocalLauncher, plan: Plan, folder: AttemptFolder, task: dict[str, Any]
) -> list[list[instrumented.Block]]:
    """Run one trial with its blocks; return what each rank wrote of them."""
    instrumented.task_file(folder.path).write_text(json.dumps(task))
    job = launcher.submit(folder, plan)
    while launcher.poll(job, timeout_s=POLL_S).state != "ended":
        pass
    ranks = range(plan.topology.processes)
    support_trials.measured([folder.read_rank(rank) for rank in ranks], folder.path)
    return [json.loads(instrumented.blocks_file(folder.path, rank).read_text()) for rank in ranks]


def own_s_per_it(folder: AttemptFolder, ranks: int) -> float:
    """What the trial itself says: the window's time over its iterations, of the slowest rank."""
    found = []
    for rank in range(ranks):
        record = folder.read_rank(rank)
        assert record is not None
        assert record.measurement is not None
        found.append(record.measurement.window_s / len(record.measurement.iteration_s))
    return max(found)


def plain_launch(plan: Plan, folder: AttemptFolder) -> float:
    """s/it of a plain loop in fresh processes."""
    count = plan.topology.processes
    threads = str(max(1, len(os.sched_getaffinity(0)) // count))  # as the launcher's ranks have
    environment = {"OMP_NUM_THREADS": threads, **os.environ}
    if plan.topology.device == "cpu":
        environment["CUDA_VISIBLE_DEVICES"] = ""
    started = [
        subprocess.Popen(
            [sys.executable, instrumented.__file__, str(folder.path), str(rank)],
            env=environment,
            stdout=subprocess.DEVNULL,
        )
        for rank in range(count)
    ]
    codes = [process.wait(600) for process in started]
    if any(codes):
        sys.exit("a rank of a plain loop failed")
    files = (instrumented.blocks_file(folder.path, rank) for rank in range(count))
    return max(float(json.loads(file.read_text())) for file in files)


def run(
    launcher: LocalLauncher, backend: str, arguments: argparse.Namespace, home: Path
) -> dict[str, Any]:
    """All launches of one backend; returns its figures."""
    plan = make_plan(backend, arguments)
    task = {"seconds": arguments.seconds, "iterations": arguments.iterations}
    launches: list[list[instrumented.Block]] = []
    own: list[float] = []
    for number in range(arguments.launches):
        folder = _folder(home / f"{number}", plan)
        ranks = launch(launcher, plan, folder, task | {"seed": number})
        launches.append([together(blocks) for blocks in zip(*ranks, strict=True)])
        own.append(own_s_per_it(folder, arguments.processes))
    cold = [cold_pair(launcher, plan, home, number) for number in range(arguments.cold)]
    return {
        "backend": backend,
        "device": arguments.device,
        "model": Path(arguments.model).name,
        "max_length": arguments.max_length,
        "micro_batch": arguments.micro_batch,
        "launches": len(launches),
        "iterations": arguments.iterations,
        "distinct_batches": len(plan.cut.batches),
        "load_average": os.getloadavg()[0],
        **figures(launches, own, cold),
        "blocks": launches,
        "own_s_per_it": own,
        "cold_s_per_it": cold,
    }


def together(blocks: Sequence[instrumented.Block]) -> instrumented.Block:
    """One block of all ranks: the slowest one's time, and the CPU time of all."""
    return blocks[0][0], max(block[1] for block in blocks), sum(block[2] for block in blocks)


def cold_pair(launcher: LocalLauncher, plan: Plan, home: Path, number: int) -> tuple[float, float]:
    """s/it of a trial and of a plain loop in processes of its own, in random order."""
    pair = {}
    for kind in random.Random(number).sample("MP", 2):
        folder = _folder(home / f"cold-{number}{kind}", plan)
        if kind == "M":
            launch(launcher, plan, folder, {"seconds": 0.0, "iterations": 0, "seed": 0})
            pair[kind] = own_s_per_it(folder, plan.topology.processes)
        else:
            pair[kind] = plain_launch(plan, folder)
    return pair["M"], pair["P"]


def _folder(path: Path, plan: Plan) -> AttemptFolder:
    path.mkdir(parents=True)
    folder = AttemptFolder(path)
    folder.write_plan(plan)
    return folder


def figures(
    launches: list[list[instrumented.Block]], own: list[float], cold: list[tuple[float, float]]
) -> dict[str, Any]:
    """Intervals over launches, of logarithms; two neighbouring blocks are one of each kind."""
    effects: list[float] = []
    cpu: list[float] = []
    alone: list[float] = []
    against: list[float] = []
    for blocks, trial in zip(launches, own, strict=True):
        pairs = [
            {block[0]: block[1:] for block in blocks[at : at + 2]}
            for at in range(0, len(blocks), 2)
        ]
        plain = [pair["P"][0] for pair in pairs]
        for found, part in ((effects, 0), (cpu, 1)):
            ratios = [math.log(pair["M"][part] / pair["P"][part]) for pair in pairs]
            found.append(statistics.fmean(ratios))
        if len(plain) > 1:
            both = zip(plain[::2], plain[1::2], strict=False)
            alone.append(statistics.fmean(math.log(later / earlier) for earlier, later in both))
        against.append(math.log(trial / statistics.fmean(plain)))
    everything = [block[1] for blocks in launches for block in blocks if block[0] == "P"]
    return {
        "pairs": len(everything),
        "plain_s_per_it": statistics.median(everything),
        "effect": interval(effects),
        "cpu_time": interval(cpu),
        "plain_against_plain": interval(alone),
        "own_window_against_plain": interval(against),
        "cold": interval([math.log(trial / plain) for trial, plain in cold]),
    }


def interval(values: list[float]) -> Interval | None:
    """Mean and both ends of its 95 % interval; ``None`` of fewer than two values."""
    if len(values) < 2:
        return None
    mean = statistics.fmean(values)
    error = statistics.stdev(values) / math.sqrt(len(values))
    half = students_t.quantile(0.975, len(values) - 1) * error
    return mean, mean - half, mean + half


def main() -> int:
    arguments = _arguments()
    here = [str(Path(__file__).resolve().parent), str(Path(support_trials.__file__).parent)]
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(harness.ROOT), *here, os.environ.get("PYTHONPATH", "")]
    )
    limit = LIMITS[arguments.device]
    head = "backend|plain s/it|launches|pairs|window / plain|CPU time|plain / plain|trial / plain"
    rows = [[*head.split("|"), "cold", "seconds", "fine"]]
    about, fine = harness.machine(), True
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        if arguments.layers is not None:
            cut = {"config": configs.qwen3(arguments.layers)}
            arguments.model = configs.model_of(cut, Path(folder) / f"qwen3-4b-{arguments.layers}")
        launcher = LocalLauncher(
            StudyFolder(Path(folder)),
            arguments.processes,
            arguments.device,
            backends=tuple(arguments.backends),
            entry="instrumented:run_rank",
        )
        stack.callback(launcher.close)
        launcher.start()
        for backend in arguments.backends:
            started = time.monotonic()
            result = run(launcher, backend, arguments, Path(folder) / backend)
            _, low, high = result["effect"]
            good = low <= 0 <= high and -limit <= low and high <= limit
            fine &= good
            harness.append("instrumentation", [result], arguments.output, about)
            names = ["effect", "cpu_time", "plain_against_plain", "own_window_against_plain"]
            counts = [str(result["launches"]), str(result["pairs"])]
            rows.append(
                [backend, f"{result['plain_s_per_it']:.3f}", *counts]
                + [_percent(result[name]) for name in [*names, "cold"]]
                + [f"{time.monotonic() - started:.0f}", "yes" if good else "NO"]
            )
    harness.finish("instrumentation", [], rows, None, where=lambda: about)
    return 0 if fine else 1


def _arguments() -> argparse.Namespace:
    parser = harness.parser(__doc__.splitlines()[0])
    parser.add_argument("--backends", nargs="+", default=["zero3", "fsdp2", "ddp"])
    parser.add_argument("--device", choices=LIMITS, default="cpu")
    model = parser.add_mutually_exclusive_group()
    model.add_argument("--model", help="preset, or a folder with a config.json")
    model.add_argument("--layers", type=int, help="so many layers of Qwen3 4B")
    parser.add_argument("--launches", type=int, help="per backend, at least two")
    parser.add_argument("--seconds", type=float, help="of blocks per launch")
    parser.add_argument("--max-length", type=int)
    parser.add_argument("--micro-batch", type=int)
    parser.add_argument("--iterations", type=int, help="of one block: whole cycles of 4")
    parser.add_argument("--cold", type=int, default=0, help="pairs of whole launches")
    parser.add_argument("--processes", type=int, default=2)
    arguments = parser.parse_args()
    defaults = dict(DEFAULTS[arguments.device])
    if arguments.model is not None or arguments.layers is not None:
        defaults |= {"model": None, "layers": None}
    for name, value in defaults.items():
        if getattr(arguments, name) is None:
            setattr(arguments, name, value)
    return arguments


def _percent(found: Interval | None) -> str:
    if found is None:
        return "-"
    mean, low, high = (math.expm1(value) * 100 for value in found)
    return f"{mean:+.2f} % ({low:+.2f} … {high:+.2f})"


if __name__ == "__main__":
    sys.exit(main())
