"""Real trials for tests: a real plan, two real gloo ranks, the real tiny model.

The ranks are forked from a process that has imported the libraries once (multiprocessing's own
fork server), because a cold start costs several seconds a rank.
"""

from __future__ import annotations

import dataclasses
import importlib
import multiprocessing
import os
from collections.abc import Sequence
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from autotune.contract.folder import AttemptFolder
from autotune.contract.outcome import RankRecord
from autotune.contract.plan import (
    Deadlines,
    Lora,
    Measuring,
    Model,
    Numerics,
    Optimizer,
    Plan,
    Precision,
    Topology,
    Workload,
)
from autotune.data.samples import make_samples
from autotune.data.schedule import make_schedule
from autotune.models import lora
from autotune.models.family import family_of
from autotune.models.resolve import resolve_model

FP32 = Precision(compute="fp32", master="fp32", accumulate="fp32", reduce="fp32")
BF16 = Precision(compute="bf16", master="fp32", accumulate="fp32", reduce="fp32")
QUICK = Measuring(
    check_iterations=3,
    warmup_tolerance=0.1,
    warmup_max_cycles=2,
    interval_share=0.05,
    window_s=2.0,
    window_iterations=2,
)
NUMERICS = Numerics(
    first_loss_tolerance=1e-5,
    first_norm_tolerance=1e-4,
    loss_tolerance=1e-4,
    norm_tolerance=1e-3,
)
HERE = str(Path(__file__).parent)


def defaults(backend: str) -> dict[str, Any]:
    """Every knob of the backend and of the workload at its default."""
    owner = importlib.import_module(f"autotune.knobs.{backend}")
    workload = importlib.import_module("autotune.knobs.workload")
    values = {knob.full_name: knob.default for knob in (*owner.KNOBS, *workload.KNOBS)}
    values["workload.micro_batch"] = 2
    return values


def make_plan(
    backend: str,
    *,
    model_name: str = "qwen3-tiny",
    changes: dict[str, Any] | None = None,
    verify: tuple[str, ...] | None = None,
    processes: int = 2,
    tied: bool = True,
    precision: Precision = FP32,
    measuring: Measuring = QUICK,
    numerics: Numerics = NUMERICS,
    clipping: float = 1.0,
    global_batch: int = 16,
    batches: int = 2,
    max_length: int = 64,
    lr: float = 1e-3,
    adapters: dict[str, Any] | None = None,
    **more: Any,
) -> Plan:
    """A plan for the tiny model; ``changes`` are knobs by full name.

    ``adapters`` are settings of :func:`lora_of`; ``None`` trains all weights.
    """
    model = resolve_model(model_name, load_weights=False)
    if not tied:
        config = {**model.config, "tie_word_embeddings": False}
        table = config["vocab_size"] * config["hidden_size"]
        model = dataclasses.replace(
            model, config=config, num_parameters=model.num_parameters + table
        )
    samples = make_samples(
        lengths="ultrachat-like",
        jsonl=None,
        tokenizer=None,
        max_length=max_length,
        seed=0,
        num_samples=global_batch * batches,
        vocab_size=model.config["vocab_size"],
        folder=None,
    )
    config = defaults(backend) | (changes or {})
    if config["workload.max_tokens"] is not None:
        config["workload.micro_batch"] = None
    schedule = make_schedule(
        samples,
        global_batch=global_batch,
        distinct_batches=batches,
        batching=config["workload.batching"],
        micro_batch=config["workload.micro_batch"],
        max_tokens=config["workload.max_tokens"],
        processes=processes,
    )
    return Plan(
        study="test",
        number=0,
        key="0",
        backend=backend,
        config=config,
        verify=tuple(changes or ()) if verify is None else verify,
        workload=Workload(
            model=model,
            finetune="full" if adapters is None else "lora",
            lora=None if adapters is None else lora_of(model, **adapters),
            global_batch=global_batch,
            distinct_batches=batches,
            samples=samples,
            optimizer=Optimizer(lr=lr, weight_decay=0.0, gradient_clipping=clipping),
            precision=precision,
        ),
        schedule=schedule,
        topology=Topology(processes=processes, device="cpu", devices_per_node=processes),
        measuring=measuring,
        numerics=numerics,
        deadlines=Deadlines(total_s=120.0, phase_s={"init": 60.0}),
        **more,
    )


def lora_of(
    model: Model, *, rank: int = 4, alpha: float = 8.0, targets: tuple[str, ...] | None = None
) -> Lora:
    """Adapters for the model."""
    family = family_of(model.family)
    return lora.resolve(family, model.config, rank=rank, alpha=alpha, targets=targets)


def run_trial(
    plan: Plan, path: Path, *, fault: str | None = None, limit_s: float = 100
) -> list[RankRecord | None]:
    """Run the plan on real ranks and return their records."""
    folder = start_trial(plan, path)
    processes = launch(folder, plan.topology.processes, fault=fault)
    for process in processes:
        process.join(limit_s)
        if process.is_alive():
            process.kill()
            process.join()
    return [folder.read_rank(rank) for rank in range(plan.topology.processes)]


def start_trial(plan: Plan, path: Path) -> AttemptFolder:
    """Write the plan."""
    path.mkdir(parents=True, exist_ok=True)
    folder = AttemptFolder(path)
    folder.write_plan(plan)
    return folder


def launch(folder: AttemptFolder, ranks: int, *, fault: str | None = None) -> Sequence[BaseProcess]:
    """Start the ranks of a trial whose plan is written."""
    os.environ["OMP_NUM_THREADS"] = "1"
    context = multiprocessing.get_context("forkserver")
    _start_server()
    started = [
        context.Process(target=rank_main, args=(str(folder.path), rank, ranks, fault))
        for rank in range(ranks)
    ]
    for process in started:
        process.start()
    return started


def _start_server() -> None:
    """Start the fork server, once; before Python 3.13 it knows no ``sys.path`` but its own."""
    forkserver.set_forkserver_preload(["rank_server"])
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (HERE, before)))
    try:
        forkserver.ensure_running()
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


def rank_main(path: str, rank: int, ranks: int, fault: str | None) -> None:
    """Body of one rank: plant a fault if asked, then what the launcher would call."""
    folder = AttemptFolder(Path(path))
    log = os.open(folder.log_file(rank), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "OMP_NUM_THREADS": "1",
    }
    if fault is not None:
        module, _, name = fault.partition(":")
        getattr(importlib.import_module(module), name)(rank)
    from autotune.worker.session import run_rank

    os._exit(run_rank(folder.path, rank))


def measured(records: list[RankRecord | None], path: Path) -> list[RankRecord]:
    """The records, all of them measured; otherwise show why not."""
    for rank, record in enumerate(records):
        log = AttemptFolder(path).log_file(rank)
        text = log.read_text(errors="replace")[-3000:] if log.exists() else "no log"
        assert record is not None, f"rank {rank} left no record:\n{text}"
        assert record.error is None, f"{record.error.message}\n{record.error.traceback}\n{text}"
    return [record for record in records if record is not None]
