"""Adapters on GPUs: do the engines train the same, and what do frozen weights save?

    PYTHONPATH=. python benchmarks/adapters_gpu.py [--processes 1] [--model qwen3-0.6b]

Two GPUs, or one, bf16, samples of at most 1,024 tokens, adapters of rank 16 at all linear layers.
Prints of each engine first loss and gradient norm, seconds per iteration, peak memory and MFU; then
the same of training all weights. JSON Lines go to ``$OUT`` unless ``--output`` says otherwise, each
when its trial ends. Exits with 1 when a first loss differs by more than 1e-3, a norm by more than
1e-2, or a trial fails. Without a GPU the script is only tried: the tiny model in float32, whose
losses may differ by 1e-5 and norms by 1e-4.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
import tempfile
from pathlib import Path
from typing import Any, Literal

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import harness
import support_trials

from autotune.contract.plan import Measuring, Precision, Topology
from autotune.search.devices import visible_devices
from autotune.search.launching import Flops
from autotune.search.mfu import flops_of

LORA: dict[str, Any] = {"rank": 16, "alpha": 32.0}
TRIALS: tuple[tuple[str, str, dict[str, Any], dict[str, Any] | None], ...] = (
    ("fsdp2", "fsdp2", {}, LORA),
    ("zero3", "zero3", {}, LORA),
    ("zero2", "deepspeed", {"deepspeed.zero_stage": 2}, LORA),
    ("ddp", "ddp", {}, LORA),
    ("zero3, checkpointed", "zero3", {"workload.activation_checkpointing": "full"}, LORA),
    ("fsdp2, checkpointed", "fsdp2", {"workload.activation_checkpointing": "full"}, LORA),
    ("fsdp2, all weights", "fsdp2", {}, None),
)
MEASURING = Measuring(
    warmup_tolerance=0.05,
    warmup_max_cycles=2,
    interval_share=0.02,
    window_s=4.0,
    window_iterations=12,
)
GIB = 1024**3


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """What a machine can train, and how near its engines' first numbers lie."""

    model: str
    precision: Precision
    max_length: int
    loss_apart: float
    norm_apart: float


SETTINGS: dict[Literal["cpu", "cuda"], Setting] = {
    "cuda": Setting(
        model="qwen3-0.6b",
        precision=support_trials.BF16,
        max_length=1024,
        loss_apart=1e-3,
        norm_apart=1e-2,
    ),
    "cpu": Setting(
        model="qwen3-tiny",
        precision=support_trials.FP32,
        max_length=64,
        loss_apart=1e-5,
        norm_apart=1e-4,
    ),
}


def run(
    trial: tuple[str, str, dict[str, Any], dict[str, Any] | None],
    setting: Setting,
    place: Topology,
    folder: Path,
) -> dict[str, Any]:
    """Run one trial and return its numbers, or why there are none."""
    name, backend, changes, adapters = trial
    plan = support_trials.make_plan(
        backend,
        model_name=setting.model,
        processes=place.processes,
        changes=changes,
        adapters=adapters,
        precision=setting.precision,
        max_length=setting.max_length,
        measuring=MEASURING,
        verify=tuple(changes),
        lr=1e-4,
    )
    plan = dataclasses.replace(plan, topology=place)
    record = support_trials.run_trial(plan, folder)[0]
    row: dict[str, Any] = {
        "trial": name,
        "model": setting.model,
        "processes": place.processes,
        "device": place.device,
        "adapters": adapters,
    }
    if record is None or record.measurement is None:
        error = None if record is None else record.error
        return row | {"error": "no record" if error is None else f"{error.kind}: {error.message}"}
    measurement = record.measurement
    s_per_it = measurement.window_s / len(measurement.iteration_s)
    flops = flops_of(plan.training, plan.topology, visible_devices())
    return row | {
        "loss": measurement.checks[0].loss,
        "norm": measurement.checks[0].grad_norm,
        "s_per_it": s_per_it,
        "peak_gib": measurement.peak_timed_bytes / GIB,
        "mfu": mfu(flops, s_per_it),
        "trained": plan.training.num_trainable,
        "raw_s": list(measurement.iteration_s),
        "wall_s": sum(record.phase_s.values()),
    }


def mfu(flops: Flops, s_per_it: float) -> float | None:
    """The share of the devices' peak that was used; unknown without devices."""
    if flops.per_iteration is None or flops.per_s_at_peak is None:
        return None
    return flops.per_iteration / s_per_it / flops.per_s_at_peak


def agree(rows: list[dict[str, Any]], setting: Setting) -> bool:
    """Whether every trial was measured, and all with adapters began alike."""
    if any("error" in row for row in rows):
        return False
    adapted = [row for row in rows if row["adapters"] is not None]
    return all(
        abs(row["loss"] / adapted[0]["loss"] - 1) <= setting.loss_apart
        and abs(row["norm"] / adapted[0]["norm"] - 1) <= setting.norm_apart
        for row in adapted
    )


def shown(row: dict[str, Any]) -> str:
    """One line of the table."""
    if "error" in row:
        return f"{row['trial']:20} {row['error'][:300]}"
    mfu = "none" if row["mfu"] is None else f"{row['mfu']:.1%}"
    return (
        f"{row['trial']:20} {row['loss']:9.5f} {row['norm']:9.5f} {row['s_per_it']:8.4f} "
        f"{row['peak_gib']:6.1f} {mfu:>6} {row['trained']:13,}"
    )


def main() -> int:
    visible = len(visible_devices().found)
    device: Literal["cpu", "cuda"] = "cuda" if visible else "cpu"
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=SETTINGS[device].model, help="preset")
    parser.add_argument("--processes", type=int, choices=(1, 2), default=min(2, visible or 2))
    default = Path(os.environ.get("OUT", ".")) / "adapters.jsonl"
    parser.add_argument("--output", type=Path, default=default, help="JSON Lines file to append to")
    arguments = parser.parse_args()
    if 0 < visible < arguments.processes:
        parser.error(f"--processes {arguments.processes}, and {visible} GPUs are visible")
    setting = dataclasses.replace(SETTINGS[device], model=arguments.model)
    count = arguments.processes
    place = Topology(processes=count, device=device, devices_per_node=count)
    rows: list[dict[str, Any]] = []
    about = harness.machine()
    print(f"{'trial':20} {'loss':>9} {'norm':>9} {'s/it':>8} {'GiB':>6} {'MFU':>6} {'trained':>13}")
    with tempfile.TemporaryDirectory() as folder:
        for number, trial in enumerate(TRIALS):
            rows.append(run(trial, setting, place, Path(folder) / str(number)))
            harness.append("adapters_gpu", rows[-1:], arguments.output, about)
            print(shown(rows[-1]), flush=True)
    fine = agree(rows, setting)
    print("the engines agree" if fine else "THE ENGINES DO NOT AGREE")
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
