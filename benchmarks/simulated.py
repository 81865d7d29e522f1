"""Ranks that take no time and report drawn times, for studies whose truth is known.

The noise is that of the stated model: each iteration varies by 1 %, each launch by 0.5 %, the
machine slows down linearly by 3 % over a study, and 2 % of the iterations take half as long again.
The rules by which warm-up and window end are the worker's own (``autotune.analysis.windows``); the
rest of a trial (plan, judging, ranking, confirmation, report) is the program itself.

:func:`record_of` is a rank's record without a process; :func:`run_rank` is what a real process
runs, forked by the program's own launcher.
"""

from __future__ import annotations

import dataclasses
import json
import os
import random
import time
from collections.abc import Callable
from pathlib import Path

from autotune.analysis import timing, windows
from autotune.contract import codec, jsonfile
from autotune.contract.folder import AttemptFolder
from autotune.contract.outcome import RankMeasurement, RankRecord, ReadBack
from autotune.contract.plan import CheckPoint, Measuring, Plan
from autotune.launchers.base import JobStatus, Launcher
from autotune.worker.heartbeat import Heartbeat

GIB = 1024**3
KNOB = "ddp.bucket_cap_mb"
"""The knob whose value says which configuration it is: 1 is the first."""
SCRIPT = "simulated.json"
"""File in an attempt's folder that tells a real rank what to report."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Noise:
    """How times vary."""

    iteration: float = 0.01
    launch: float = 0.005
    drift: float = 0.03
    """Over ``launches`` of a study; it goes on at that pace."""
    launches: int = 15
    spikes: float = 0.02
    """Share of the iterations that take ``spike`` times as long."""
    spike: float = 1.5


@dataclasses.dataclass(frozen=True, kw_only=True)
class Truth:
    """One simulated study."""

    seconds: tuple[float, ...]
    """True s/it of each configuration, in the order of the knob's values."""
    noise: Noise
    seed: int
    measuring: Measuring | None = None
    """Rules to measure by, but for racing; ``None``: the plan's."""

    def launch(self, plan: Plan, index: int) -> RankMeasurement:
        """What the ``index``-th launch of the study measures; equal on every rank."""
        draw = random.Random(f"{self.seed}:{index}")
        iterations = self.level_of(index, draw, self.seconds[plan.config[KNOB] - 1])
        measuring = plan.measuring
        if self.measuring is not None:
            share = min(self.measuring.interval_share, plan.measuring.interval_share)
            measuring = dataclasses.replace(
                self.measuring, interval_share=share, racing=plan.measuring.racing
            )
        return _measured(plan, measuring, iterations)

    def level_of(
        self, index: int, draw: random.Random, true_s: float = 1.0
    ) -> Callable[[int], list[float]]:
        """Return what draws the next iterations of the ``index``-th launch."""
        level = true_s * (1 + self.noise.drift * index / (self.noise.launches - 1))
        level *= draw.gauss(1, self.noise.launch)

        def iterations(count: int) -> list[float]:
            return [
                level
                * draw.gauss(1, self.noise.iteration)
                * (self.noise.spike if draw.random() < self.noise.spikes else 1)
                for _ in range(count)
            ]

        return iterations


def _measured(
    plan: Plan, measuring: Measuring, iterations: Callable[[int], list[float]]
) -> RankMeasurement:
    cycle = plan.workload.distinct_batches
    warmup: list[float] = []
    while (state := windows.warm(warmup, cycle, measuring) if warmup else "no") == "no":
        warmup += iterations(cycle)
        if len(warmup) == cycle:
            warmup[0] *= 3  # the first step compiles and allocates
    timed = iterations(cycle)
    verdict = windows.window(timed, cycle, measuring)
    while verdict == "go_on":
        timed += iterations(cycle)
        verdict = windows.window(timed, cycle, measuring)
    checks = tuple(
        CheckPoint(loss=6.0 - i / 10, grad_norm=0.9) for i in range(measuring.check_iterations)
    )
    return RankMeasurement(
        warmup_s=tuple(warmup),
        iteration_s=tuple(timed),
        window_s=sum(timed),
        unsteady=state == "limit" or timing.is_unsteady(timed, cycle),
        checks=checks,
        final_loss=5.0,
        peak_timed_bytes=GIB,
        peak_worst_case_bytes=GIB,
        memory_limit_bytes=10 * GIB,
        compile_s=windows.compile_seconds(warmup, timed, cycle),
        read_back={
            name: ReadBack(requested=plan.config[name], actual=plan.config[name], level="live")
            for name in plan.verify
        },
        implementations={"attention": "simulated"},
        notes={"stopped_early": verdict == "slower"},
    )


def record_of(plan: Plan, rank: int, measured: RankMeasurement) -> RankRecord:
    """The record of one rank."""
    now = time.time()
    return RankRecord(
        rank=rank,
        pid=os.getpid(),
        plan_digest=plan.digest,
        status="stopped_early" if measured.notes["stopped_early"] else "measured",
        phase="teardown",
        started_at=now,
        ended_at=now,
        phase_s={},
        measurement=measured,
    )


class ScriptedLauncher:
    """Real processes of a real launcher, which are told by a file what to report.

    One fork server serves several studies, one after the other.
    """

    def __init__(self, launcher: Launcher, truth: Truth) -> None:
        self._launcher = launcher
        self._truth = truth
        self.num_launches = 0

    def start(self) -> str | None:
        return self._launcher.start()

    def submit(self, folder: AttemptFolder, plan: Plan) -> str:
        script = {"truth": codec.to_json(self._truth), "index": self.num_launches}
        jsonfile.write_json(folder.path / SCRIPT, script)
        self.num_launches += 1
        return self._launcher.submit(folder, plan)

    def poll(self, job: str, *, timeout_s: float = 0.0) -> JobStatus:
        return self._launcher.poll(job, timeout_s=timeout_s)

    def cancel(self, job: str) -> None:
        self._launcher.cancel(job)

    def close(self) -> None:
        """The server goes on to serve the next study."""


def run_rank(path: Path, rank: int) -> int:
    """Go through the phases as a rank does, and report what the script says."""
    folder = AttemptFolder(path)
    script = json.loads((path / SCRIPT).read_text())
    truth = codec.from_json(Truth, script["truth"])
    plan = folder.read_plan()
    heart = Heartbeat(folder.heartbeat_file(rank))
    for phase in ("launch", "init", "build", "check", "warmup", "measure", "probe", "teardown"):
        heart.enter(phase)
        time.sleep(0.001)
    record = record_of(plan, rank, truth.launch(plan, script["index"]))
    folder.write_rank(dataclasses.replace(record, phase_s=heart.finish()))
    return 0
