"""A launcher that keeps state and writes real rank records, as scripted; no process starts."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from autotune.contract.extensions import ExtensionBuild
from autotune.contract.failures import FailureKind, Phase
from autotune.contract.folder import AttemptFolder
from autotune.contract.kernels import KernelCheck
from autotune.contract.outcome import (
    PeakMemory,
    RankError,
    RankMeasurement,
    RankRecord,
    ReadBack,
)
from autotune.contract.plan import CheckPoint, Plan
from autotune.launchers.base import JobStatus, RankExit
from autotune.search.events import Event
from autotune.search.interrupts import Interrupts
from autotune.search.request import SearchRequest, SearchResult
from autotune.search.session import run_search

GIB = 1024**3
CHECKS = tuple(CheckPoint(loss=6.0 - i / 10, grad_norm=0.9) for i in range(3))


@dataclasses.dataclass(kw_only=True)
class Act:
    """What the ranks of one launch do."""

    s_per_it: float = 0.1
    error: str | None = None
    error_type: str = "builtins.RuntimeError"
    kind: FailureKind | None = None
    error_peak: PeakMemory | None = None
    phase: Phase = "measure"
    checks: tuple[CheckPoint, ...] = CHECKS
    peak_bytes: int = GIB
    worst_bytes: int | None = None
    """Peak of the worst case; ``None``: as the timed one."""
    worst_is_bound: bool = False
    limit_bytes: int = 10 * GIB
    alloc_retries: int = 0
    actual: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Values that the engine has instead of the requested ones."""
    stopped_early: bool = False
    window_factor: float = 1.0
    signal: int | None = None
    """Signal that ends rank 1 without a record."""
    stopped_for: Any = None
    forever: bool = False
    """Runs until it is cancelled."""
    record_text: str | None = None
    """Bytes in place of rank 0's record."""
    kernel_error: float = 1e-6
    """How far off a kernel is that is compared with its reference; 1e-4 is allowed."""
    compiled: bool = True
    """Whether an extension has to be compiled."""


Script = Callable[[Plan], Act]


def kernel_check(plan: Plan, act: Act) -> KernelCheck:
    (knob,) = plan.verify
    return KernelCheck(
        knob=knob,
        choice=plan.config[knob],
        passed=act.kernel_error <= 1e-4,
        tensor="gradient of lm_head.weight",
        error=act.kernel_error,
        allowed=1e-4,
        num_tensors=9,
        cases=("rows of 64 and 32 tokens",),
        reference="the reference in float32",
        versions={"torch": "2.13.0"},
    )


def record_of(plan: Plan, rank: int, act: Act) -> RankRecord:
    """The record that rank ``rank`` leaves."""
    now = time.time()
    error = measurement = kernel = extension = None
    status: Any = "stopped_early" if act.stopped_early else "measured"
    if act.error is not None:
        status = "failed"
        error = RankError(
            type=act.error_type,
            message=act.error,
            traceback="Traceback …",
            at=now + rank,
            phase=act.phase,
            kind=act.kind,
            peak_memory=act.error_peak,
        )
    elif plan.purpose == "kernel":
        status, kernel = "checked", kernel_check(plan, act)
    elif plan.purpose == "extension":
        status = "built"
        extension = ExtensionBuild(
            extension="X", library="/x.so", compiled=act.compiled, seconds=61.0
        )
    else:
        iterations = (act.s_per_it,) * (2 * plan.workload.distinct_batches)
        measurement = RankMeasurement(
            warmup_s=(act.s_per_it,) * 4,
            iteration_s=iterations,
            window_s=sum(iterations) * act.window_factor,
            unsteady=False,
            checks=act.checks,
            final_loss=5.0,
            peak_timed_bytes=act.peak_bytes,
            peak_worst_case_bytes=act.worst_bytes or act.peak_bytes,
            worst_case_is_bound=act.worst_is_bound,
            memory_limit_bytes=act.limit_bytes,
            alloc_retries=act.alloc_retries,
            read_back={
                name: ReadBack(
                    requested=plan.config[name],
                    actual=act.actual.get(name, plan.config[name]),
                    level="live",
                )
                for name in plan.verify
                if plan.config[name] is not None  # as the worker: nothing was set
            },
            implementations={"attention": "sdpa"},
        )
    return RankRecord(
        rank=rank,
        pid=100 + rank,
        plan_digest=plan.digest,
        status=status,
        phase=act.phase,
        started_at=now,
        ended_at=now,
        phase_s={"build": 0.5},
        error=error,
        measurement=measurement,
        kernel=kernel,
        extension=extension,
    )


class ScriptedLauncher:
    """Keeps every plan that it was given."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.plans: list[Plan] = []
        self.kernel_plans: list[Plan] = []
        """Comparisons of kernels: no trials."""
        self.kernel_script: Script = lambda plan: Act()
        self.extension_plans: list[Plan] = []
        """Builds of extensions: no trials either."""
        self.extension_script: Script = lambda plan: Act()
        self.started = 0
        self.closed = 0
        self.on_submit: Callable[[Plan], None] = lambda plan: None
        self._jobs: dict[str, JobStatus] = {}

    def start(self) -> None:
        self.started += 1

    def submit(self, folder: AttemptFolder, plan: Plan) -> str:
        assert self.started
        assert folder.read_plan().digest == plan.digest
        script, plans = {
            "kernel": (self.kernel_script, self.kernel_plans),
            "extension": (self.extension_script, self.extension_plans),
        }.get(plan.purpose, (self.script, self.plans))
        act = script(plan)
        plans.append(plan)
        ranks = range(plan.topology.processes)
        for rank in ranks:
            if act.forever or (act.signal is not None and rank == 1):
                continue
            folder.write_rank(record_of(plan, rank, act))
        if act.record_text is not None:
            folder.rank_file(0).write_bytes(act.record_text.encode("latin-1"))
        job = str(len(self._jobs))
        self._jobs[job] = JobStatus(
            state="running" if act.forever else "ended",
            phase=act.phase,
            exits=tuple(
                RankExit(rank=r, exit_code=None, signal=act.signal)
                if act.signal is not None and r == 1
                else RankExit(rank=r, exit_code=1 if act.error else 0, signal=None)
                for r in ranks
            ),
            stopped_for=act.stopped_for,
            submitted_at=time.time(),
            wall_s=5.0,
        )
        self.on_submit(plan)
        return job

    def poll(self, job: str, *, timeout_s: float = 0.0) -> JobStatus:
        return self._jobs[job]

    def cancel(self, job: str) -> None:
        self._jobs[job] = dataclasses.replace(
            self._jobs[job], state="ended", stopped_for="cancelled"
        )

    def close(self) -> None:
        self.closed += 1

    def trials(self) -> list[Plan]:
        """Plans of trials, re-measurements left out."""
        return [plan for plan in self.plans if plan.purpose == "trial"]


THREE_BUCKETS = """
version: 1
backend: ddp
workload: {model: qwen3-tiny, global_batch: 16, data: {lengths: ultrachat-like, max_length: 64}}
topology: {processes: 2}
baseline: {bucket_cap_mb: 1}
params:
  bucket_cap_mb: {choices: [1, 2, 4]}
"""
"""DDP with one knob, so that two configurations may tie."""

SPACE = """
version: 1
backend: zero3
workload: {model: qwen3-tiny, global_batch: 16, data: {lengths: ultrachat-like, max_length: 64}}
topology: {processes: 2}
baseline: {micro_batch: 1}
params:
  micro_batch: {choices: [1, 2, 4, 8]}
  reduce_bucket_size: {type: int, low: 1e5, high: 5e8, log: true}
"""


class Bench:
    """Runs scripted searches in one runs folder."""

    def __init__(self, folder: Path) -> None:
        self.runs = folder / "runs"
        self.file = folder / "space.yaml"
        self.events: list[Event] = []
        self.launcher: ScriptedLauncher | None = None

    def search(
        self,
        script: Script,
        *,
        space: str = SPACE,
        trials: int = 6,
        study: str = "s",
        interrupts: Interrupts | None = None,
        prepare: Callable[[ScriptedLauncher], None] = lambda launcher: None,
        **options: Any,
    ) -> SearchResult:
        self.file.write_text(space, encoding="utf-8")
        self.launcher = ScriptedLauncher(script)
        prepare(self.launcher)
        self.events = []
        launcher = self.launcher
        request = SearchRequest(
            space=str(self.file),
            trials=trials,
            study=study,
            runs=self.runs,
            make_launcher=lambda folder, topology, space: launcher,
            command=("autotune", "search", "--space", str(self.file)),
            **options,
        )
        return run_search(request, self.events.append, interrupts=interrupts or Interrupts())

    def messages(self) -> str:
        return "\n".join(e.text for e in self.events if hasattr(e, "text"))


def by_micro_batch(plan: Plan) -> Act:
    """BUG-038's timing: 0.30, 0.40, 0.60, 1.00 s a micro-step of 1, 2, 4, 8 rows."""
    rows = plan.config["workload.micro_batch"]
    each = {1: 0.30, 2: 0.40, 4: 0.60, 8: 1.00}[rows]
    return Act(s_per_it=each * plan.schedule.micro_steps)
