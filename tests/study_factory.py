"""Records of small studies for tests of store, report, exporters and their commands."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from autotune.contract.folder import StudyFolder
from autotune.contract.outcome import Failure, Measurement, Outcome, PeakMemory, ReadBack
from autotune.contract.plan import (
    BatchSchedule,
    CheckPoint,
    Deadlines,
    Measuring,
    MicroStep,
    Model,
    Numerics,
    Optimizer,
    Plan,
    Precision,
    RankSchedule,
    Samples,
    Schedule,
    Topology,
    Workload,
)
from autotune.store.database import Store, default_url
from autotune.store.recorder import StudyRecorder
from autotune.store.records import RemeasurementHeader, StudyRecord, TrialHeader, Verdict

SPACE = """\
version: 1
backend: zero3
workload: {model: qwen3-tiny, global_batch: 16}
params:
  reduce_bucket_size: {type: int, low: 1e5, high: 1e9, log: true}
"""
GIB = 1024**3
CONFIG: dict[str, Any] = {
    "zero3.reduce_bucket_size": 500_000_000,
    "zero3.stage3_prefetch_bucket_size": 50_000_000,
    "workload.micro_batch": 2,
    "workload.max_tokens": None,
    "workload.batching": "padded",
    "workload.activation_checkpointing": "none",
}


def make_plan(number: int = 0, *, config: dict[str, Any] | None = None, **changes: Any) -> Plan:
    fp32 = Precision(compute="fp32", master="fp32", accumulate="fp32", reduce="fp32")
    step = MicroStep(samples=(0, 1), rows=2, length=8)
    ranks = tuple(RankSchedule(micro_steps=(step, step, step, step)) for _ in range(2))
    plan = Plan(
        study="demo",
        number=number,
        key=f"key-{number}",
        backend="zero3",
        config=CONFIG | (config or {}),
        verify=("zero3.reduce_bucket_size",),
        workload=Workload(
            model=Model(
                name="qwen3-tiny",
                family="qwen3",
                config={"model_type": "qwen3", "hidden_size": 128},
                num_parameters=1000,
            ),
            global_batch=16,
            distinct_batches=1,
            samples=Samples(lengths=(8,) * 16, max_length=8, seed=0, source="ultrachat-like"),
            optimizer=Optimizer(lr=1e-5, weight_decay=0.0, gradient_clipping=1.0),
            precision=fp32,
        ),
        schedule=Schedule(
            batching="padded",
            batches=(BatchSchedule(ranks=ranks),),
            worst_case=MicroStep(samples=(), rows=2, length=8),
            padding_share=0.25,
            distinct_shapes=1,
        ),
        topology=Topology(processes=2, device="cpu", devices_per_node=2),
        measuring=Measuring(
            warmup_tolerance=0.1,
            warmup_max_cycles=2,
            interval_share=0.05,
            window_s=4.0,
            window_iterations=24,
        ),
        numerics=Numerics(
            first_loss_tolerance=1e-5,
            first_norm_tolerance=1e-5,
            loss_tolerance=1e-4,
            norm_tolerance=1e-3,
        ),
        deadlines=Deadlines(total_s=60.0, phase_s={}),
    )
    return dataclasses.replace(plan, **changes)


def make_measurement(
    s_per_it: float, *, low: float | None = None, high: float | None = None, **changes: Any
) -> Measurement:
    measurement = Measurement(
        s_per_it=s_per_it,
        low=s_per_it * 0.99 if low is None else low,
        high=s_per_it * 1.01 if high is None else high,
        median_s=s_per_it,
        p95_s=s_per_it * 1.1,
        batch_median_s=(s_per_it,),
        iterations=8,
        window_s=s_per_it * 8,
        warmup_iterations=4,
        warmup_total_s=s_per_it * 5,
        compile_s=s_per_it,
        unsteady=False,
        tokens_per_s=128 / s_per_it,
        samples_per_s=16 / s_per_it,
        mfu=None,
        peak_memory=PeakMemory(timed=2 * GIB, worst_case=3 * GIB, limit=10 * GIB),
        micro_steps=4,
        padding_share=0.25,
        distinct_shapes=1,
        checks=(CheckPoint(loss=6.24, grad_norm=0.93),),
        final_loss=6.0,
        read_back={
            "zero3.reduce_bucket_size": ReadBack(
                requested=500_000_000, actual=500_000_000, level="live"
            )
        },
        implementations={"attention": "sdpa"},
    )
    return dataclasses.replace(measurement, **changes)


def measured(s_per_it: float, *, state: str = "complete", **changes: Any) -> Outcome:
    return Outcome(
        plan_digest="",
        state=state,  # type: ignore[arg-type]
        measurement=make_measurement(s_per_it, **changes),
        submitted_at=30.0,
        wall_s=s_per_it * 13 + 0.5,
        overhead_s=0.5,
        timed_s=s_per_it * 8,
        phase_s={"measure": s_per_it * 8},
    )


def failed(kind: str, reason: str = "", **changes: Any) -> Outcome:
    failure = Failure(kind=kind, reason=reason or f"{kind} happened", **changes)  # type: ignore[arg-type]
    return Outcome(
        plan_digest="",
        state="interrupted" if kind == "interrupted" else "failed",
        failure=failure,
        submitted_at=30.0,
        wall_s=3.0,
        overhead_s=3.0,
        timed_s=0.0,
    )


def make_study(name: str = "demo", **changes: Any) -> StudyRecord:
    record = StudyRecord(
        name=name,
        created_at=10.0,
        updated_at=10.0,
        space_text=SPACE,
        space_file="zero3.yaml",
        overrides=("search.trials=4",),
        space_fingerprint="space-a",
        context="here",
        workload={"model": {"name": "qwen3-tiny"}, "global_batch": 16},
        topology=Topology(processes=2, device="cpu", devices_per_node=2),
        environment={"python": "3.11.2", "packages": {"torch": "2.13.0"}},
        sampler="tpe",
        seed=0,
    )
    return dataclasses.replace(record, **changes)


def make_header(number: int, **changes: Any) -> TrialHeader:
    header = TrialHeader(
        number=number,
        origin="baseline" if number == 0 else "proposal",
        params={"reduce_bucket_size": 500_000_000 - number},
        config=CONFIG | {"zero3.reduce_bucket_size": 500_000_000 - number},
        backend="zero3",
        key=f"key-{number}",
        context="here",
        space_fingerprint="space-a",
        created_at=20.0 + number,
    )
    return dataclasses.replace(header, **changes)


class StudyBuilder:
    """Records a study the way a coordinator does, on real files and a real database."""

    def __init__(self, runs: Path, record: StudyRecord | None = None) -> None:
        record = record or make_study()
        self.runs = runs
        self.store = Store(default_url(runs))
        self.folder = StudyFolder.of(runs, record.name)
        self.recorder = StudyRecorder(self.folder, self.store)
        self.recorder.save_study(record)

    def trial(self, outcome: Outcome | None, **changes: Any) -> int:
        number = self.recorder.next_number("trial")
        header = make_header(number, **changes)
        self.recorder.open_trial(header)
        self.launch("trial", number, outcome, config=header.config, backend=header.backend)
        return number

    def again(self, trial: int, outcome: Outcome | None, **changes: Any) -> int:
        number = self.recorder.next_number("remeasurement")
        values: dict[str, Any] = {"role": "finalist", "round": 0, "context": "here"} | changes
        header = RemeasurementHeader(number=number, trial=trial, created_at=50.0 + number, **values)
        self.recorder.open_remeasurement(header)
        self.launch("remeasurement", number, outcome)
        return number

    def launch(
        self, purpose: Any, number: int, outcome: Outcome | None, *, attempt: int = 0, **plan: Any
    ) -> None:
        folder = self.recorder.attempt_folder(purpose, number, attempt)
        made = make_plan(number, attempt=attempt, purpose=purpose, **plan)
        folder.write_plan(made)
        folder.log_file(0).write_text("a log\n")
        if outcome is not None:
            whole = dataclasses.replace(outcome, plan_digest=made.digest)
            self.recorder.record_outcome(purpose, number, attempt, whole)

    def verdict(self, word: str, best: int | None, **changes: Any) -> None:
        values: dict[str, Any] = {"context": "here", "space_fingerprint": "space-a", "at": 90.0}
        self.recorder.record_verdict(
            Verdict(verdict=word, best_trial=best, **(values | changes))  # type: ignore[arg-type]
        )
