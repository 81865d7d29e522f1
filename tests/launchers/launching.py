"""Plans, folders and launchers for the launcher's tests."""

from __future__ import annotations

import itertools
import json
import time
from pathlib import Path

import psutil

from autotune.contract import plan as p
from autotune.contract.folder import AttemptFolder, StudyFolder
from autotune.launchers.local import LocalLauncher

HERE = Path(__file__).parent
WAIT_S = 60.0
"""Far beyond what anything here takes: reached only when something is broken."""


def make_plan(*, processes=2, total_s=60.0, phase_s=None, environment=None) -> p.Plan:
    step = p.MicroStep(samples=(0,), rows=1, length=8)
    batch = p.BatchSchedule(ranks=(p.RankSchedule(micro_steps=(step,)),) * processes)
    fp32 = p.Precision(compute="fp32", master="fp32", accumulate="fp32", reduce="fp32")
    return p.Plan(
        study="s",
        number=0,
        key="k",
        backend="fsdp2",
        config={},
        verify=(),
        workload=p.Workload(
            model=p.Model(name="tiny", family="qwen3", config={}, num_parameters=1),
            global_batch=processes,
            distinct_batches=1,
            samples=p.Samples(lengths=(8,) * processes, max_length=8, seed=0, source="x"),
            optimizer=p.Optimizer(lr=1e-5, weight_decay=0.0, gradient_clipping=1.0),
            precision=fp32,
        ),
        schedule=p.Schedule(
            batching="padded",
            batches=(batch,),
            worst_case=step,
            padding_share=0.0,
            distinct_shapes=1,
        ),
        topology=p.Topology(processes=processes, device="cpu", devices_per_node=processes),
        measuring=p.Measuring(
            warmup_tolerance=0.1,
            warmup_max_cycles=2,
            interval_share=0.05,
            window_s=4.0,
            window_iterations=24,
        ),
        numerics=p.Numerics(
            first_loss_tolerance=1e-5,
            first_norm_tolerance=1e-5,
            loss_tolerance=1e-4,
            norm_tolerance=1e-3,
        ),
        deadlines=p.Deadlines(total_s=total_s, phase_s=phase_s or {}),
        environment=environment or {},
    )


def make_attempt(study: StudyFolder, number: int, actions: list, plan: p.Plan) -> AttemptFolder:
    folder = study.attempt("trial", number, 0)
    folder.write_plan(plan)
    (folder.path / "script.json").write_text(json.dumps(actions))
    return folder


def is_running(pid: int | None) -> bool:
    """Whether the process exists and is no zombie."""
    assert pid is not None, "the process left no number"  # psutil would take this very process
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_for(condition, what: str):
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(0.01)
    raise AssertionError(f"waited in vain for {what}")


def read_pid(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


class Bench:
    """A launcher with scripted ranks."""

    def __init__(self, launcher: LocalLauncher, study: StudyFolder) -> None:
        self.launcher = launcher
        self.study = study
        self._numbers = itertools.count()

    def submit(self, *actions, **plan):
        plan = make_plan(processes=len(actions), **plan)
        folder = make_attempt(self.study, next(self._numbers), list(actions), plan)
        return self.launcher.submit(folder, plan), folder

    def run(self, *actions, **plan):
        job, folder = self.submit(*actions, **plan)
        status = self.launcher.poll(job, timeout_s=WAIT_S)
        assert status.state == "ended"
        return status, folder


def open_bench(path, *, warm):
    study = StudyFolder(path)
    return Bench(LocalLauncher(study, 2, "cpu", warm, entry="scripted_ranks:run_rank"), study)
