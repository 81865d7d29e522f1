"""Ranks of ``instrumentation.py``: a trial with blocks after its window, or a plain loop alone."""

from __future__ import annotations

import dataclasses
import gc
import json
import os
import random
import signal
import sys
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from autotune.backends.base import Engine
    from autotune.data.stream import TokenStream
    from autotune.worker.measure import Meter
    from autotune.worker.timing import Marks

Block = tuple[str, float, float]
"""Kind, and per iteration seconds and CPU seconds."""


def task_file(folder: Path) -> Path:
    """What the ranks are to do."""
    return folder / "task.json"


def blocks_file(folder: Path, rank: int) -> Path:
    """What one rank found."""
    return folder / f"blocks-{rank}.json"


def run_rank(folder: Path, rank: int) -> int:
    """Run one rank of a trial; the blocks come between its window and its memory probe."""
    from autotune.contract.folder import AttemptFolder
    from autotune.worker import measure, session

    bind(rank, AttemptFolder(folder).read_plan().topology.processes)
    original = measure.Meter.probe

    def probe(self: Meter) -> None:
        blocks = _alternate(self, rank, **json.loads(task_file(folder).read_text()))
        blocks_file(folder, rank).write_text(json.dumps(blocks))
        original(self)

    measure.Meter.probe = probe  # type: ignore[method-assign]  # in this process alone
    return session.run_rank(folder, rank)


def _alternate(
    meter: Meter, rank: int, *, seconds: float, iterations: int, seed: int
) -> list[Block]:
    """Pairs of blocks until their time is over, on all ranks alike."""
    stepper = meter._stepper
    draw = random.Random(seed)  # the same on all ranks
    # Python collects all generations when a quarter as much as the last such collection found has
    # been added. The trial's last one saw little, for most was frozen: a plain loop's sees all.
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    blocks: list[Block] = []
    spent = 0.0
    while spent < seconds:
        for kind in draw.sample("MP", 2):
            gc.collect(1)
            stepper.exchange([0.0])
            started = time.perf_counter()
            run = _window if kind == "M" else _undisturbed
            blocks.append((kind, *run(meter, rank, iterations)))
            spent += time.perf_counter() - started
        spent = float(stepper.exchange([spent]).max())
    return blocks


def bind(rank: int, ranks: int) -> None:
    """Give this process, and the threads that it will start, its share of the cores.

    Where ranks have no device: their threads would wander between the cores. On fewer cores than
    it has threads a rank would spin for most of its time.
    """
    cores = sorted(os.sched_getaffinity(0))
    if os.environ.get("CUDA_VISIBLE_DEVICES") == "":
        os.sched_setaffinity(0, cores[rank::ranks] or {cores[rank % len(cores)]})


class _Counted:
    """Marks that also read this process's CPU time, at the first and at the last one."""

    def __init__(self, marks: Marks) -> None:
        self._marks = marks
        self._begun_s: float | None = None
        self.cpu_s = 0.0

    def mark(self) -> None:
        if self._begun_s is None:
            self._begun_s = time.process_time()
        self._marks.mark()

    def take(self) -> list[float]:
        seconds = self._marks.take()
        assert self._begun_s is not None
        self.cpu_s += time.process_time() - self._begun_s
        self._begun_s = None
        return seconds


def _window(meter: Meter, _rank: int, iterations: int) -> tuple[float, float]:
    """Seconds an iteration of a window as a trial times it, and CPU seconds of this process."""
    from autotune.worker.measure import Meter

    rules = dataclasses.replace(
        meter._plan.measuring, window_iterations=iterations, window_s=1e9, interval_share=1e-9
    )
    plan = dataclasses.replace(meter._plan, measuring=rules)
    device = meter._stepper._device
    again = Meter(plan, meter._stepper, meter._memory, device, meter._heart)
    marks = _Counted(again._marks)
    again._marks = marks
    again.measure()
    count = len(again.timed.mine_s)
    return again.window_s / count, marks.cpu_s / count


def _undisturbed(meter: Meter, rank: int, iterations: int) -> tuple[float, float]:
    """Seconds an iteration of a plain loop while nobody watches, and CPU seconds of this process.

    Python collects garbage as it does by itself, and the fork server stands still.
    """
    stepper = meter._stepper
    server = os.getppid() if rank == 0 else None
    gc.unfreeze()
    gc.enable()
    try:
        if server is not None:
            os.kill(server, signal.SIGSTOP)
        begun_s = time.process_time()
        seconds = plain(
            stepper._engine, stepper._stream, stepper._processes, stepper._device, iterations
        )
        return seconds, (time.process_time() - begun_s) / iterations
    finally:
        if server is not None:
            os.kill(server, signal.SIGCONT)
        gc.disable()
        gc.freeze()


def plain(
    engine: Engine, stream: TokenStream, processes: int, device: torch.device, iterations: int
) -> float:
    """Seconds an iteration of the loop that one would write without autotune."""
    import torch
    from torch.nn import functional

    start = time.perf_counter()
    for index in range(iterations):
        batches = stream.micro_batches(index)
        scale = processes / stream.target_tokens(index)
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
    return (time.perf_counter() - start) / iterations


def plain_rank(path: Path, rank: int) -> None:
    """One rank of a plain loop in a process of its own: the same engine, warmed up alike."""
    import torch
    import torch.distributed as dist

    from autotune.backends.base import RankContext, backend_of
    from autotune.contract.folder import AttemptFolder
    from autotune.data.stream import TokenStream
    from autotune.models.family import family_of
    from autotune.worker import rendezvous

    # As in a trial: torch 2.13 warns at every call of a collective by its former name.
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.distributed")
    plan = AttemptFolder(path).read_plan()
    count = plan.topology.processes
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    os.environ |= {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count)}
    cuda = plan.topology.device == "cuda"
    bind(rank, count)
    device = torch.device("cuda", rank) if cuda else torch.device("cpu")
    rendezvous.init_process_group(plan, rank, folder=path)
    engine = backend_of(plan.backend).build(
        plan, RankContext(rank=rank, local_rank=rank, device=device)
    )
    model = plan.training.model
    vocabulary = family_of(model.family).vocab_size(model.config)
    stream = TokenStream(plan.training, plan.cut, rank, vocabulary, device)
    stream.prepare()
    cycle = len(plan.cut.batches)
    plain(engine, stream, count, device, plan.measuring.warmup_max_cycles * cycle)
    dist.barrier()
    seconds = plain(engine, stream, count, device, plan.measuring.window_iterations)
    blocks_file(path, rank).write_text(json.dumps(seconds))
    dist.barrier()


if __name__ == "__main__":
    plain_rank(Path(sys.argv[1]), int(sys.argv[2]))
    sys.stdout.flush()
    os._exit(0)
