"""Does measuring cost the measured step anything? Windows of a trial against a plain loop.

    PYTHONPATH=. python benchmarks/instrumentation.py [--backends zero3 fsdp2 ddp] [--pairs 20]

A real trial runs as always: two ranks, check, warm-up, timed window. Then, in the same ranks and
with the same engine, pairs of blocks follow, in turns M P and P M: M is a window as trials time it
(marks, exchange, heartbeat, collection of garbage held back), P a plain training loop, with nothing
but a clock read before and after it. The slowest rank counts. Prints the mean of the logarithm of
M/P over pairs with Student's 95 % interval, and the same of two halves of the plain blocks, which
shows what the machine alone does. Exits with 1 where the interval misses 0 or leaves the limit.
"""

from __future__ import annotations

import dataclasses
import gc
import json
import math
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import harness
import support_trials

from autotune.analysis import students_t
from autotune.contract.plan import Topology

LIMITS = {"cpu": 0.03, "cuda": 0.01}
_PAIRS = "AUTOTUNE_BENCHMARK_PAIRS"
_BLOCK = "AUTOTUNE_BENCHMARK_ITERATIONS"


def plant(rank: int) -> None:
    """Run in each rank before its trial: let the blocks follow the trial's own window."""
    from autotune.worker import measure

    original = measure.Meter.probe

    def probe(meter: Any) -> None:
        folder = meter._heart._path.parent
        blocks = _alternate(meter, int(os.environ[_PAIRS]), int(os.environ[_BLOCK]))
        (folder / f"blocks-{rank}.json").write_text(json.dumps(blocks))
        original(meter)

    measure.Meter.probe = probe


def _alternate(meter: Any, pairs: int, iterations: int) -> list[tuple[str, float]]:
    blocks = []
    for pair in range(pairs):
        for kind in ("MP", "PM")[pair % 2]:
            run = _window if kind == "M" else _plain
            blocks.append((kind, run(meter, iterations)))
    return blocks


def _window(meter: Any, iterations: int) -> float:
    """Seconds an iteration of a window as a trial times it."""
    from autotune.worker.measure import Meter

    rules = dataclasses.replace(
        meter._plan.measuring, window_iterations=iterations, window_s=1e9, interval_share=1e-9
    )
    plan = dataclasses.replace(meter._plan, measuring=rules)
    device = meter._stepper._device
    again = Meter(plan, meter._stepper, meter._memory, device, meter._heart)
    again.measure()
    return again.window_s / len(again.timed.mine_s)


def _plain(meter: Any, iterations: int) -> float:
    """Seconds an iteration of the loop that one would write without autotune."""
    import torch
    from torch.nn import functional

    stepper = meter._stepper
    engine, stream, device = stepper._engine, stepper._stream, stepper._device
    gc.enable()
    gc.unfreeze()
    start = time.perf_counter()
    for index in range(iterations):
        batches = stream.micro_batches(index)
        scale = stepper._processes / stream.target_tokens(index)
        for number, batch in enumerate(batches, start=1):
            last = number == len(batches)
            engine.before_forward(last=last)
            logits = engine.model(
                input_ids=batch.input_ids,
                attention_mask=batch.attention_mask,
                position_ids=batch.position_ids,
                use_cache=False,
            ).logits
            loss = functional.cross_entropy(
                logits.float().flatten(0, -2), batch.labels.flatten(), reduction="sum"
            )
            engine.backward(loss * scale, last=last)
        engine.step()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    seconds = time.perf_counter() - start
    gc.collect()
    gc.freeze()
    gc.disable()
    return seconds / iterations


def run(backend: str, arguments: Any, folder: Path) -> dict[str, Any]:
    """One trial with its blocks; returns the figures of the backend."""
    plan = support_trials.make_plan(
        backend,
        model_name=arguments.model,
        precision=support_trials.BF16 if arguments.device == "cuda" else support_trials.FP32,
        max_length=arguments.max_length,
        processes=arguments.processes,
        lr=1e-5,
    )
    place = Topology(
        processes=arguments.processes,
        device=arguments.device,
        devices_per_node=arguments.processes,
    )
    plan = dataclasses.replace(plan, topology=place)
    os.environ |= {_PAIRS: str(arguments.pairs), _BLOCK: str(arguments.iterations)}
    support_trials.measured(
        support_trials.run_trial(plan, folder, fault="instrumentation:plant", limit_s=1800),
        folder,
    )
    ranks = [
        json.loads((folder / f"blocks-{rank}.json").read_text())
        for rank in range(arguments.processes)
    ]
    slowest = [
        (blocks[0][0], max(seconds for _, seconds in blocks)) for blocks in zip(*ranks, strict=True)
    ]
    pairs = [dict(slowest[at : at + 2]) for at in range(0, len(slowest), 2)]
    effect = _interval([math.log(pair["M"] / pair["P"]) for pair in pairs])
    plain = [pair["P"] for pair in pairs]
    alone = _interval([math.log(b / a) for a, b in zip(plain[::2], plain[1::2], strict=False)])
    return {
        "backend": backend,
        "device": arguments.device,
        "model": arguments.model,
        "pairs": len(pairs),
        "iterations": arguments.iterations,
        "plain_s_per_it": statistics.median(plain),
        "effect": effect,
        "plain_against_plain": alone,
        "blocks": slowest,
    }


def _interval(values: list[float]) -> tuple[float, float, float]:
    """Mean and both ends of its 95 % interval."""
    mean = statistics.fmean(values)
    error = statistics.stdev(values) / math.sqrt(len(values))
    half = students_t.quantile(0.975, len(values) - 1) * error
    return mean, mean - half, mean + half


def main() -> int:
    parser = harness.parser(__doc__.splitlines()[0])
    parser.add_argument("--backends", nargs="+", default=["zero3", "fsdp2", "ddp"])
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--iterations", type=int, default=8, help="of one block; even")
    parser.add_argument("--device", choices=LIMITS, default="cpu")
    parser.add_argument("--model", default="qwen3-tiny")
    parser.add_argument("--max-length", type=int, default=128)
    parser.add_argument("--processes", type=int, default=2)
    arguments = parser.parse_args()
    here = str(Path(__file__).resolve().parent)
    os.environ["PYTHONPATH"] = os.pathsep.join([here, os.environ.get("PYTHONPATH", "")])
    limit = LIMITS[arguments.device]
    rows = [["backend", "plain s/it", "pairs", "window / plain", "plain / plain", "fine"]]
    results, fine = [], True
    with tempfile.TemporaryDirectory() as folder:
        for backend in arguments.backends:
            result = run(backend, arguments, Path(folder) / backend)
            _, low, high = result["effect"]
            good = low <= 0 <= high and -limit <= low and high <= limit
            fine &= good
            results.append(result)
            rows.append(
                [
                    backend,
                    f"{result['plain_s_per_it']:.3f}",
                    str(result["pairs"]),
                    _percent(result["effect"]),
                    _percent(result["plain_against_plain"]),
                    "yes" if good else "NO",
                ]
            )
    harness.finish("instrumentation", results, rows, arguments.output)
    return 0 if fine else 1


def _percent(interval: tuple[float, float, float]) -> str:
    mean, low, high = (math.expm1(value) * 100 for value in interval)
    return f"{mean:+.2f} % ({low:+.2f} … {high:+.2f})"


if __name__ == "__main__":
    sys.exit(main())
