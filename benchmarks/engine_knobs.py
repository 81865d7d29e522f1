"""Is every value of the engines' and the environment's newer knobs real on this machine?

    PYTHONPATH=. python benchmarks/engine_knobs.py [--layers 4] [--seconds 170] [--slow]

One short trial a value, through autotune's own launcher, on a Qwen3-0.6B cut to a few layers: what
was measured or why not, what was read back of the running engine, and whether loss and gradient
norm are those of the default. What the machine lacks is listed, not launched. `--slow` adds what
compiles for minutes. Prints a table and writes JSON Lines to $OUT/engine_knobs.jsonl; exits with 1
where a value ended in another way than measured or refused by its kind. On a machine without
a GPU it runs on the tiny preset, to try the script itself.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import harness
import support_trials
from launches import launched

from autotune.backends.base import backend_of
from autotune.contract.folder import StudyFolder
from autotune.contract.outcome import Outcome
from autotune.contract.plan import Deadlines, Measuring, Plan, Reference, Topology
from autotune.knobs import environment
from autotune.knobs.kernels import KNOBS as KERNELS
from autotune.knobs.workload import KNOBS as WORKLOAD
from autotune.launchers.local import LocalLauncher
from autotune.models.presets import PRESETS
from autotune.search import planning
from autotune.search.available import lacking
from autotune.search.devices import visible_devices
from autotune.search.judging import judge

MEASURING = Measuring(
    check_iterations=3,
    warmup_tolerance=0.5,
    warmup_max_cycles=2,
    interval_share=0.5,
    window_s=2.0,
    window_iterations=4,
)
RECOMPUTE: tuple[dict[str, Any], ...] = (
    {"activation_checkpointing": "full"},
    {"activation_checkpointing": "full", "checkpoint_every": 2},
    {"activation_checkpointing": "full", "use_reentrant": True},
    {"activation_checkpointing": "selective"},
)
CASES: dict[str, tuple[dict[str, Any], ...]] = {
    "fsdp2": (
        *({f"workload.{key}": value for key, value in one.items()} for one in RECOMPUTE),
        {"kernel.adamw": "foreach"},
        {"kernel.adamw": "loop"},
        {"fsdp2.replicate": 2},
        {"fsdp2.replicate": 2, "fsdp2.gradient_sync": "scatter"},
        {"fsdp2.gradient_sync": "each"},
        {"fsdp2.reshard_after_backward": False},
        {"fsdp2.keep_last_unit": True},
        {"fsdp2.force_sum_reduction": True},
        {"fsdp2.allocate_from_process_group": True},
        {"fsdp2.separate_reduce_scatter_group": True},
        {"fsdp2.reduce_scatter_input_buffers": 2},
        {"fsdp2.wrap_embeddings": True},
        {"fsdp2.wrap_embeddings": True, "fsdp2.unshard_in_backward": False},
        {"env.PYTORCH_ALLOC_CONF": "expandable_segments:True"},
        {"env.PYTORCH_ALLOC_CONF": "garbage_collection_threshold:0.8,max_split_size_mb:512"},
        {"env.PYTORCH_ALLOC_CONF": None},
        {"env.CUDA_DEVICE_MAX_CONNECTIONS": 1},
        {"env.CUDA_DEVICE_MAX_CONNECTIONS": 32},
        {"env.NCCL_MIN_CTAS": 16},
        {"env.NCCL_MAX_CTAS": 4},
        {"env.NCCL_BUFFSIZE": 8_388_608},
        {"env.TORCH_NCCL_HIGH_PRIORITY": True},
    ),
    "zero3": (
        *({f"workload.{key}": value for key, value in one.items()} for one in RECOMPUTE),
        {"kernel.adamw": "foreach"},
        {"kernel.adamw": "loop"},
        {"zero3.zero_hpz_partition_size": 2},
        {"env.PYTORCH_ALLOC_CONF": "expandable_segments:True"},
    ),
    "ddp": (
        {"workload.activation_checkpointing": "selective"},
        {"workload.activation_checkpointing": "full", "workload.use_reentrant": True},
        {"kernel.adamw": "loop"},
    ),
}
SLOW: dict[str, tuple[dict[str, Any], ...]] = {
    "fsdp2": (
        {"kernel.compile": "layer"},
        {"kernel.compile": "layer", "workload.activation_checkpointing": "full"},
        {"kernel.compile": "layer", "workload.activation_checkpointing": "selective"},
        {
            "kernel.compile": "layer",
            "workload.activation_checkpointing": "full",
            "workload.use_reentrant": True,
        },
    ),
    "zero3": (
        {"zero3.deepcompile": True},
        {"zero3.zero_quantized_weights": True},
    ),
}
OTHER_MODEL = {"fsdp2.wrap_embeddings"}
"""It needs a head of its own, and so a reference of its own."""
EXPECTED = ("measured", "incompatible", "numerics", "lacking")
"""How a value may end: any other way is a fault of ours."""


class Bench:
    """Runs trials one after the other on one launcher."""

    def __init__(self, folder: Path, arguments: argparse.Namespace, device: str) -> None:
        self._folder = folder
        self._arguments = arguments
        self.place = Topology(
            processes=arguments.processes,
            device="cuda" if device == "cuda" else "cpu",
            devices_per_node=arguments.processes,
        )
        self._study = StudyFolder.of(folder, "knobs")
        self.launcher = LocalLauncher(
            self._study, arguments.processes, self.place.device, backends=tuple(CASES)
        )
        self._number = 0
        self._models: dict[bool, str] = {}

    def run(self, backend: str, changes: dict[str, Any], reference: Reference) -> Outcome:
        """Launch one configuration and judge it."""
        plan = self.plan(backend, changes, reference)
        path = self._study.path / "trials" / f"{self._number:04d}" / "attempt-0"
        self._number += 1
        status, folder = launched(self.launcher, plan, path)
        return judge(plan, folder, status)

    def plan(self, backend: str, changes: dict[str, Any], reference: Reference) -> Plan:
        tied = not changes.get("fsdp2.wrap_embeddings")
        precision = support_trials.BF16 if self.place.device == "cuda" else support_trials.FP32
        variables, unset = environment.variables(changes)
        limit = 280.0 if self._arguments.slow else 60.0
        plan = support_trials.make_plan(
            backend,
            model_name=self._model(tied=tied),
            changes={**changes, "workload.micro_batch": 2},
            verify=tuple(changes),
            processes=self._arguments.processes,
            precision=precision,
            measuring=MEASURING,
            numerics=planning.numerics(precision, reference),
            global_batch=8,
            batches=2,
            max_length=512 if self.place.device == "cuda" else 48,
            lr=1e-5,
            environment=variables,
            unset=unset,
        )
        deadlines = Deadlines(total_s=limit, phase_s={"init": limit / 2})
        return dataclasses.replace(
            plan, topology=self.place, deadlines=deadlines, number=self._number
        )

    def _model(self, *, tied: bool) -> str:
        if tied not in self._models:
            preset = "qwen3-0.6b" if self.place.device == "cuda" else "qwen3-tiny"
            config = {
                **PRESETS[preset],
                "num_hidden_layers": self._arguments.layers,
                "tie_word_embeddings": tied,
            }
            folder = self._folder / f"model-{'tied' if tied else 'untied'}"
            folder.mkdir()
            (folder / "config.json").write_text(json.dumps(config))
            self._models[tied] = str(folder)
        return self._models[tied]


def missing(backend: str, changes: dict[str, Any], plan: Plan) -> str | None:
    """Why a value is not launched here: it is not on this machine, or the engine refuses it."""
    place = plan.topology
    known = (*backend_of(backend).knobs, *WORKLOAD, *KERNELS, *environment.KNOBS)
    table = {knob.full_name: knob for knob in known}
    for name, value in changes.items():
        reason = lacking(table[name], value, place)
        # On a CPU the script is only tried: variables reach the ranks there too.
        if reason is not None and not (name.startswith("env.") and place.device == "cpu"):
            return reason
    refusal = backend_of(backend).validate(plan.config, plan.training, place)
    return None if refusal is None else refusal.reason


def row(backend: str, changes: dict[str, Any], outcome: Outcome | None) -> dict[str, Any]:
    """One line of the results."""
    found: dict[str, Any] = {"backend": backend, "changes": changes}
    if outcome is None:
        return found
    measured, failure = outcome.measurement, outcome.failure
    if failure is not None:
        return found | {
            "end": failure.kind,
            "reason": failure.reason,
            "combination": failure.combination,
            "detail": failure.detail[-1500:],
        }
    assert measured is not None
    back = {name: measured.read_back.get(name) for name in changes}
    return found | {
        "end": "measured",
        "s_per_it": measured.s_per_it,
        "peak_gib": measured.peak_memory.timed / 2**30,
        "alloc_retries": measured.alloc_retries,
        "read_back": {
            name: None if one is None else [one.actual, one.level] for name, one in back.items()
        },
        "gaps": {name: gap.apart for name, gap in measured.gaps.items()},
        "notes": {
            name: value for name, value in measured.notes.items() if name.startswith("fsdp2_")
        },
    }


def shown(one: dict[str, Any]) -> str:
    """One line of the table."""
    changes = ", ".join(
        f"{name.partition('.')[2]}={value}" for name, value in one["changes"].items()
    )
    head = f"{one['backend']:6} {changes or 'defaults':62.62} {one['end']:12}"
    if one["end"] != "measured":
        return f"{head} {one['reason'][:120]}"
    levels = ",".join(sorted({back[1] for back in one["read_back"].values() if back}))
    gap = max(one["gaps"].values(), default=0.0)
    return (
        f"{head} {one['s_per_it']:.4f} s/it {one['peak_gib']:6.2f} GiB  {levels:17} "
        f"apart {gap:.1e}  retries {one['alloc_retries']}"
    )


def cases(arguments: argparse.Namespace) -> list[tuple[str, dict[str, Any]]]:
    """What is to run, defaults of each backend first."""
    found: list[tuple[str, dict[str, Any]]] = []
    for backend, listed in CASES.items():
        more = SLOW.get(backend, ()) if arguments.slow else ()
        only = SLOW.get(backend, ()) if arguments.only_slow else (*listed, *more)
        chosen = [one for one in only if arguments.only in f"{backend} {one}"]
        if chosen:
            found += [(backend, {}), *((backend, one) for one in chosen)]
    return found


def main() -> int:
    """Run all values and print the table."""
    arguments = _arguments()
    begun = time.monotonic()
    device = "cuda" if visible_devices().found else "cpu"
    about, faults = harness.machine(), 0
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), arguments, device)
        bench.launcher.start()
        references: dict[tuple[str, bool], Reference] = {}
        for backend, changes in cases(arguments):
            if time.monotonic() - begun > arguments.seconds:
                print(f"{backend} {changes}: no time left (--seconds)", flush=True)
                continue
            reason = missing(backend, changes, bench.plan(backend, changes, Reference()))
            if reason is not None:
                one = row(backend, changes, None) | {"end": "lacking", "reason": reason}
            else:
                key = (backend, bool(changes.get("fsdp2.wrap_embeddings")))
                outcome = bench.run(backend, changes, references.get(key, Reference()))
                one = row(backend, changes, outcome)
                if outcome.measurement is not None and changes.keys() <= OTHER_MODEL:
                    references[key] = Reference(checks=outcome.measurement.checks)
            faults += one["end"] not in EXPECTED
            harness.append("engine_knobs", [one], arguments.output, about)
            print(shown(one), flush=True)
        bench.launcher.close()
    print(f"{time.monotonic() - begun:.0f} s; {faults} ended in no expected way")
    return 1 if faults else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    visible = len(visible_devices().found)
    parser.add_argument("--processes", type=int, default=min(2, visible or 2))
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=170.0, help="begin no trial after it")
    parser.add_argument("--slow", action="store_true", help="with what compiles for minutes")
    parser.add_argument("--only-slow", action="store_true", help="nothing but that")
    parser.add_argument("--only", default="", help="values whose text holds this")
    default = Path(os.environ.get("OUT", ".")) / "engine_knobs.jsonl"
    parser.add_argument("--output", type=Path, default=default, help="JSON Lines file to append to")
    arguments = parser.parse_args()
    arguments.slow = arguments.slow or arguments.only_slow
    return arguments


if __name__ == "__main__":
    sys.exit(main())
