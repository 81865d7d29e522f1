"""From what the ranks wrote to one outcome: a measurement that counts, or a failure by name.

The ranks' own records come first, exit codes and log text last. A trial that ran is still a
failure when a value was not in effect, the numbers differ from the baseline's, or the memory
margin is not kept.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence
from typing import Any, Final

from autotune.analysis import kernels, numerics, timing
from autotune.contract.failures import Phase
from autotune.contract.folder import AttemptFolder
from autotune.contract.outcome import (
    Failure,
    Measurement,
    Outcome,
    PeakMemory,
    RankMeasurement,
    RankRecord,
    ReadBack,
    State,
)
from autotune.contract.plan import CommandWorkload, Plan, Workload
from autotune.errors import RecordError
from autotune.launchers.base import JobStatus
from autotune.search.causes import RankReading, find_cause, shortened

GPU_MARGIN_BYTES: Final = 2 * 1024**3
"""Memory that must stay free on a GPU whatever the share (docs/explanation/measuring.md)."""
SAME: Final = 1e-6
"""Relative difference up to which two ranks' global loss or gradient norm are the same."""


def judge(
    plan: Plan,
    folder: AttemptFolder,
    status: JobStatus,
    *,
    oom_kills: int = 0,
    flops_per_s_at_peak: float | None = None,
    flops_per_iteration: float | None = None,
) -> Outcome:
    """Return the outcome of one launch that has ended.

    Args:
        plan: What was to run.
        folder: Where its ranks wrote their records and logs.
        status: The launcher's last word; its state is ``ended``.
        oom_kills: Processes that the kernel killed for memory during the trial.
        flops_per_s_at_peak: Peak rate of all devices together; ``None`` where unknown (CPU).
        flops_per_iteration: Model FLOPs of one mean iteration; ``None`` where unknown.
    """
    readings = [_read(plan, folder, rank) for rank in range(plan.num_launched)]
    records = [reading.record for reading in readings if reading.record is not None]
    if status.stopped_for == "cancelled":
        failure = Failure(kind="interrupted", reason="the search was stopped", phase=status.phase)
        return _failed(plan, status, records, failure)
    cause = find_cause(plan, folder, status, readings, oom_kills=oom_kills)
    if cause is not None:
        return _failed(plan, status, records, cause)
    return judge_measured(
        plan,
        records,
        status,
        flops_per_s_at_peak=flops_per_s_at_peak,
        flops_per_iteration=flops_per_iteration,
    )


def judge_measured(
    plan: Plan,
    records: Sequence[RankRecord],
    status: JobStatus,
    *,
    flops_per_s_at_peak: float | None = None,
    flops_per_iteration: float | None = None,
) -> Outcome:
    """As :func:`judge`, for the records of ranks that all reached their end."""
    measured = [record.measurement for record in records if record.measurement is not None]
    problem = _invalid(plan, measured)
    if problem is not None:
        return _failed(plan, status, records, problem)
    measurement = _merge(plan, measured)
    if flops_per_s_at_peak and flops_per_iteration:
        mfu = flops_per_iteration / measurement.s_per_it / flops_per_s_at_peak
        measurement = dataclasses.replace(measurement, mfu=mfu)
    early = any(record.status == "stopped_early" for record in records)
    state: State = "stopped_early" if early else "complete"
    return _outcome(plan, status, records, state=state, measurement=measurement)


def _read(plan: Plan, folder: AttemptFolder, rank: int) -> RankReading:
    try:
        record = folder.read_rank(rank)
    except (RecordError, OSError) as error:
        return RankReading(rank, None, f"rank {rank}'s record is damaged: {error}")
    if record is None:
        return RankReading(rank, None)
    if record.rank != rank or record.plan_digest != plan.digest:
        return RankReading(rank, None, f"rank {rank}'s record belongs to another plan or rank")
    return RankReading(rank, record)


def _invalid(plan: Plan, measured: Sequence[RankMeasurement]) -> Failure | None:
    """Why measurements of all ranks do not count."""
    speed = max(m.window_s / len(m.iteration_s) for m in measured)
    # A command's engine cannot be asked: its record lists the values as unverified.
    asked = () if isinstance(plan.workload, CommandWorkload) else plan.verify
    for rank, one in enumerate(measured):
        for name in asked:
            problem = _not_in_effect(name, plan.config.get(name), one.read_back.get(name))
            if problem is not None:
                return Failure(
                    kind="not_in_effect", reason=problem, rank=rank, measured_s_per_it=speed
                )
        for name, back in one.read_back.items():
            if not back.in_effect:
                reason = _differs(name, back.requested, back.actual)
                return Failure(
                    kind="not_in_effect", reason=reason, rank=rank, measured_s_per_it=speed
                )
    lengths = {len(m.iteration_s) for m in measured}
    if len(lengths) > 1 or lengths.pop() % plan.workload.distinct_batches:
        counts = ", ".join(str(len(m.iteration_s)) for m in measured)
        reason = f"the ranks' windows are not the same whole cycles ({counts} iterations)"
        return Failure(kind="crash", reason=reason, phase="measure")
    return (
        _kernels_problem(plan, measured, speed)
        or _numbers_problem(plan, measured, speed)
        or _memory_problem(plan, measured, speed)
    )


def _kernels_problem(
    plan: Plan, measured: Sequence[RankMeasurement], speed: float
) -> Failure | None:
    """Whether some rank computes with other kernels than the baseline, or than rank 0."""
    first = measured[0].implementations
    for rank, one in enumerate(measured):
        problem = kernels.difference(one.implementations, plan.numerics.implementations)
        if problem is None and one.implementations != first:
            problem = f"ranks 0 and {rank} are bound to different kernels"
        if problem is not None:
            return Failure(kind="not_in_effect", reason=problem, rank=rank, measured_s_per_it=speed)
    return None


def _not_in_effect(name: str, requested: Any, back: ReadBack | None) -> str | None:
    if back is None:
        if requested is None:  # nothing was set: micro_batch of a cut by tokens
            return None
        return f"{name} = {requested!r} could not be read back from the running engine"
    asked = ReadBack(requested=requested, actual=back.actual, level=back.level)
    if not asked.in_effect:
        return _differs(name, requested, back.actual)
    return None


def _differs(name: str, requested: Any, actual: Any) -> str:
    return shortened(f"{name} was set to {requested!r}, but the running engine has {actual!r}")


def _numbers_problem(
    plan: Plan, measured: Sequence[RankMeasurement], speed: float
) -> Failure | None:
    problem = None
    first = measured[0].checks
    for rank, one in enumerate(measured[1:], start=1):
        if len(one.checks) != len(first) or not all(
            _same(a.loss, b.loss) and _same(a.grad_norm, b.grad_norm)
            for a, b in zip(first, one.checks, strict=True)
        ):
            problem = f"ranks 0 and {rank} report different losses or gradient norms"
    reference = plan.numerics.reference
    if len(first) < len(reference):
        problem = f"{len(first)} of {len(reference)} check iterations were recorded"
    problem = problem or numerics.first_problem(first, plan.numerics)
    phase: Phase = "check"
    if problem is None:
        phase, cycle = "measure", plan.workload.distinct_batches
        problem = numerics.later_problem(_path(measured[0]), plan.numerics, cycle)
    final = measured[0].final_loss
    if problem is None and final is not None and not (math.isfinite(final) and final > 0):
        problem = f"the loss of the last timed iteration is {final!r}"
    if problem is None:
        return None
    return Failure(kind="numerics", reason=problem, rank=0, phase=phase, measured_s_per_it=speed)


def _path(one: RankMeasurement) -> numerics.Path:
    return numerics.Path(losses=one.losses, grad_norms=one.grad_norms)


def _same(left: float | None, right: float | None) -> bool:
    if left is None or right is None:
        return left is right
    return math.isclose(left, right, rel_tol=SAME)


def _merge(plan: Plan, measured: Sequence[RankMeasurement]) -> Measurement:
    cycle = plan.workload.distinct_batches
    slowest = max(measured, key=lambda m: m.window_s / len(m.iteration_s))
    s_per_it = slowest.window_s / len(slowest.iteration_s)
    interval = timing.mean_interval(timing.cycle_means(slowest.iteration_s, cycle))
    scale = s_per_it / interval.mean
    notes: dict[str, Any] = {}
    for one in measured:
        notes.update(one.notes)
    if not timing.agrees_with_clock(slowest.iteration_s, slowest.window_s):
        gap = abs(slowest.window_s / math.fsum(slowest.iteration_s) - 1.0)
        notes["window_gap"] = (
            f"the window's clock and the sum of its iterations differ by {gap:.0%}"
        )
    read_back: dict[str, ReadBack] = {}
    for one in measured:
        read_back.update(one.read_back)
    tokens = None
    if isinstance(plan.workload, Workload):
        tokens = sum(plan.workload.samples.lengths) / cycle
    schedule = plan.schedule
    return Measurement(
        s_per_it=s_per_it,
        low=interval.low * scale,
        high=interval.high * scale,
        median_s=statistics.median(slowest.iteration_s),
        p95_s=timing.quantile(slowest.iteration_s, 0.95),
        batch_median_s=timing.batch_medians(slowest.iteration_s, cycle),
        iterations=len(slowest.iteration_s),
        iteration_s=slowest.iteration_s,
        window_s=slowest.window_s,
        warmup_iterations=len(slowest.warmup_s),
        warmup_total_s=math.fsum(slowest.warmup_s),
        compile_s=max(one.compile_s for one in measured),
        unsteady=any(one.unsteady for one in measured),
        tokens_per_s=None if tokens is None else tokens / s_per_it,
        samples_per_s=plan.workload.global_batch / s_per_it,
        mfu=None,
        peak_memory=_peak_memory(measured),
        micro_steps=schedule.micro_steps if schedule else None,
        padding_share=schedule.padding_share if schedule else None,
        distinct_shapes=schedule.distinct_shapes if schedule else None,
        checks=measured[0].checks,
        final_loss=measured[0].final_loss,
        losses=measured[0].losses,
        grad_norms=measured[0].grad_norms,
        gaps=numerics.gaps(measured[0].checks, plan.numerics)
        | numerics.later_gaps(_path(measured[0]), plan.numerics, cycle),
        read_back=read_back,
        implementations=measured[0].implementations,
        backward=measured[0].backward,
        notes=notes,
        alloc_retries=sum(one.alloc_retries for one in measured),
        recompiled_iterations=max(one.recompiled_iterations for one in measured),
        throttled=_throttled(measured),
        memory_margin_bytes=max(_margin(plan, one) for one in measured),
        worst_case=schedule.worst_case if schedule else None,
    )


def _throttled(measured: Sequence[RankMeasurement]) -> dict[str, float]:
    """The largest share of any rank: the slowest device holds all others up."""
    found: dict[str, float] = {}
    for one in measured:
        for reason, share in one.throttled.items():
            found[reason] = max(found.get(reason, 0.0), share)
    return found


def _margin(plan: Plan, one: RankMeasurement) -> int:
    """Bytes that must stay free of what a rank may use."""
    smallest = GPU_MARGIN_BYTES if plan.topology.device == "cuda" else 0
    return max(int(one.memory_limit_bytes * plan.memory_margin_share), smallest)


def _memory_problem(
    plan: Plan, measured: Sequence[RankMeasurement], speed: float
) -> Failure | None:
    """Why the memory of some rank does not hold its worst case with a margin."""
    gib = 1024**3
    for rank, one in enumerate(measured):
        limit, needed = one.memory_limit_bytes, max(one.peak_timed_bytes, one.peak_worst_case_bytes)
        margin = _margin(plan, one)
        if needed + margin <= limit:
            continue
        return Failure(
            kind="oom_device" if plan.topology.device == "cuda" else "oom_host",
            reason=(
                f"peak memory {needed / gib:.2f} GiB leaves no margin of {margin / gib:.2f} GiB "
                f"under the limit of {limit / gib:.2f} GiB"
            ),
            rank=rank,
            phase="probe" if one.peak_worst_case_bytes > one.peak_timed_bytes else "measure",
            peak_memory=_peak_memory(measured),
            measured_s_per_it=speed,
        )
    return None


def _peak_memory(measured: Sequence[RankMeasurement]) -> PeakMemory:
    return PeakMemory(
        timed=max(one.peak_timed_bytes for one in measured),
        worst_case=max(one.peak_worst_case_bytes for one in measured),
        is_bound=any(one.worst_case_is_bound for one in measured),
        limit=min(one.memory_limit_bytes for one in measured),
        first=max(one.peak_first_bytes for one in measured),
    )


def _failed(
    plan: Plan, status: JobStatus, records: Sequence[RankRecord], failure: Failure
) -> Outcome:
    state: State = "interrupted" if failure.kind == "interrupted" else "failed"
    return _outcome(plan, status, records, state=state, failure=failure)


def _outcome(
    plan: Plan,
    status: JobStatus,
    records: Sequence[RankRecord],
    *,
    state: State,
    measurement: Measurement | None = None,
    failure: Failure | None = None,
) -> Outcome:
    # A configuration may have been timed whole and fail all the same.
    timed = [record.measurement for record in records if record.measurement is not None]
    useful = max((math.fsum(one.warmup_s) + one.window_s for one in timed), default=0.0)
    phases: dict[str, float] = {}
    for record in records:
        for phase, seconds in record.phase_s.items():
            phases[phase] = max(phases.get(phase, 0.0), seconds)
    return Outcome(
        plan_digest=plan.digest,
        state=state,
        measurement=measurement,
        failure=failure,
        submitted_at=status.submitted_at,
        wall_s=status.wall_s,
        overhead_s=max(0.0, status.wall_s - useful),
        timed_s=max((one.window_s for one in timed), default=0.0),
        phase_s=phases,
    )
