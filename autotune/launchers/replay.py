"""Plays a recorded table instead of running anything: ``--launcher replay=FILE``.

Each trial leaves the records that its ranks left when the table was recorded, so judging, racing,
confirmation and reports work as ever, and no time passes: wall time and overhead are the recorded
ones. Topology, devices and environment are those of the table, not of this machine.

A trial plays the configuration's recorded iterations in their order. Where the search's rules want
more of them than were recorded, the rest is drawn: the batch's recorded mean with a relative
deviation that was recorded too, of this configuration, or of the whole table where this one was
timed for one cycle only. A re-measurement is drawn whole, at a level that varies between launches
as the table's repeated launches did. All draws are seeded by ``search.seed``, the configuration
and the launch's number, so a study that is played again is the same. One that is resumed has
confirmed in between: its trials are played alike, its re-measurements have other numbers.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import random
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from autotune.analysis import played, timing, windows
from autotune.contract import codec
from autotune.contract.failures import PHASES, Phase
from autotune.contract.folder import AttemptFolder
from autotune.contract.outcome import RankError, RankMeasurement, RankRecord, RankStatus
from autotune.contract.plan import CommandWorkload, Plan, Workload
from autotune.contract.table import Table, TableRow, read_table
from autotune.errors import InputError, RecordError
from autotune.launchers.base import JobStatus, Order, RankExit, Site, SiteDevice

NOT_WORK: Final = (
    ("model", "name"),
    ("model", "weights"),
    ("model", "hidden_size_from"),
    ("samples", "token_file"),
)
"""Where things lie, and what they are called: equal work may differ in it."""
FAILED_TYPE: Final = f"{__name__}.Recorded"
"""Type of an error whose rank left no record when the table was recorded."""


class Replay:
    """See :class:`autotune.launchers.base.LauncherKind`."""

    def __init__(self, argument: str | None) -> None:
        if not argument:
            raise InputError(
                "the launcher replay needs the table that it is to play",
                hint="write --launcher replay=TABLE.jsonl.gz",
            )
        self.argument = str(Path(argument).expanduser().absolute())
        self.table = read_table(Path(self.argument))
        header = self.table.header
        try:
            self._workload = codec.from_json(Workload, header.workload, where="its workload")
        except RecordError as error:
            raise InputError(
                f"table {header.name} is not of this version of autotune: {error}",
                hint="record it anew",
            ) from error

    @property
    def site(self) -> Site:
        """The machine that the table was recorded on."""
        header = self.table.header
        replayed = {
            "table": header.name,
            "sha256": self.table.digest,
            "recorded_at": header.recorded_at,
        }
        return Site(
            topology=header.topology,
            devices=tuple(
                SiteDevice(name=one.name, memory_bytes=one.memory_bytes) for one in header.devices
            ),
            host_memory_bytes=header.host_memory_bytes,
            environment={**header.environment, "replayed_from": replayed},
            facts=header.facts,
        )

    def refused_work(self, workload: CommandWorkload | Workload) -> str | None:
        """Refuse all work but that of the table."""
        name = self.table.header.name
        if isinstance(workload, CommandWorkload):
            return f"table {name} has no launches of a command"
        mine, theirs = _work(codec.to_json(workload)), _work(codec.to_json(self._workload))
        differing = [
            path for path in sorted({*mine, *theirs}) if mine.get(path) != theirs.get(path)
        ]
        if not differing:
            return None
        shown = ", ".join(
            f"{path} {_short(theirs.get(path))} there, {_short(mine.get(path))} here"
            for path in differing[:3]
        )
        return f"table {name} was recorded with other work: {shown}"

    def refused_values(self, knob: str, values: Collection[Any]) -> dict[Any, str]:
        """Refuse values that no launch had: what the recording machine lacked, say."""
        had = [row.config[knob] for row in self.table.rows if knob in row.config]
        reason = f"table {self.table.header.name} has no launch with it"
        return {
            value: reason
            for value in values
            if had and not any(type(one) is type(value) and one == value for one in had)
        }

    def refused_config(
        self, key: str, backend: str, config: Mapping[str, Any], stated: Collection[str]
    ) -> str | None:
        """Refuse what was not recorded."""
        if self.table.launches(key, backend, config, stated):
            return None
        return f"table {self.table.header.name} has no launch of it"

    def launcher(self, order: Order) -> ReplayLauncher:
        """Return the launcher of one study."""
        return ReplayLauncher(self.table, seed=order.seed)


class ReplayLauncher:
    """Every trial has ended when it is submitted."""

    def __init__(self, table: Table, *, seed: int) -> None:
        self._table = table
        self._seed = seed
        self._jobs: dict[str, JobStatus] = {}

    def start(self) -> str | None:
        """Say what is played."""
        header = self._table.header
        device = f"{len(header.devices)} × {header.devices[0].name}" if header.devices else "CPUs"
        return (
            f"nothing is run: trials are played from the table {header.name}, recorded at "
            f"{header.recorded_at} on {device}"
        )

    def submit(self, folder: AttemptFolder, plan: Plan) -> str:
        """Write the ranks' records of a recorded launch.

        Raises:
            InputError: The table has no launch of this configuration.
        """
        launches = self._table.launches(plan.key, plan.backend, plan.config, plan.verify)
        if not launches:
            raise InputError(
                f"table {self._table.header.name} has no launch of this configuration, and "
                "nothing else can be run in a study of replayed trials",
                hint="only what lies in the table's grid can be compared",
            )
        now = time.time()
        first = launches[0]
        if _all_measured(first):
            records, wall_s = self._measured(plan, launches, now)
        else:
            records, wall_s = tuple(_failed(plan, first, now)), first.wall_s
        job = f"{plan.purpose}-{plan.number}-{plan.attempt}"
        if wall_s > plan.deadlines.total_s:
            self._jobs[job] = _cut_off(now, plan.deadlines.total_s)
            return job
        for record in records:
            folder.write_rank(record)
            if record.error is not None:
                text = f"{record.error.traceback}\n{record.error.message}\n"
                folder.log_file(record.rank).write_text(text, encoding="utf-8")
        self._jobs[job] = _ended(records, now, wall_s)
        return job

    def poll(self, job: str, *, timeout_s: float = 0.0) -> JobStatus:
        """Return the state: it has ended."""
        del timeout_s
        return self._jobs[job]

    def cancel(self, job: str) -> None:
        """End nothing: no process was started."""
        assert job in self._jobs, job

    def close(self) -> None:
        """End nothing."""

    def _measured(
        self, plan: Plan, launches: Sequence[TableRow], now: float
    ) -> tuple[tuple[RankRecord, ...], float]:
        """Records of all ranks, and seconds from submission to the end."""
        first = launches[0]
        whole = [_recorded(one) for one in launches if _all_measured(one)]
        source = played.Source(whole, plan.workload.distinct_batches, self._deviations)
        draw = random.Random(  # noqa: S311 - no secret
            f"{self._seed}:{first.key}:{plan.purpose}:{plan.number}:{plan.attempt}"
        )
        factor = None
        if plan.purpose == "remeasurement":
            factor = math.exp(draw.gauss(0.0, self._table.spread))
        times = played.play(source, plan.measuring, draw, factor=factor)
        note = {"table": self._table.header.name, "launch": first.launch}
        status: RankStatus = "stopped_early" if times.verdict == "slower" else "measured"
        pairs = [(one, _replayed(plan, one, times, note)) for one in first.ranks]
        records = tuple(_record(plan, one, measured, status, now) for one, measured in pairs)
        useful = max(math.fsum(one.warmup_s) + one.window_s for _, one in pairs)
        return records, first.overhead_s + useful

    @functools.cached_property
    def _deviations(self) -> tuple[float, ...]:
        """Of all launches that were timed for several cycles."""
        cycle = int(self._table.header.workload["distinct_batches"])
        return tuple(
            one
            for row in self._table.rows
            if row.failure is None
            for one in played.deviations(_recorded(row).timed, cycle)
        )


def _recorded(row: TableRow) -> played.Recorded:
    measured = [one.measurement for one in row.ranks if one.measurement is not None]
    return played.Recorded(
        warmup=tuple(zip(*(one.warmup_s for one in measured), strict=True)),
        timed=tuple(zip(*(one.iteration_s for one in measured), strict=True)),
    )


def _replayed(
    plan: Plan, row: RankRecord, times: played.Played, note: dict[str, Any]
) -> RankMeasurement:
    """The rank's recorded measurement with the played times."""
    old = row.measurement
    assert old is not None
    cycle = plan.workload.distinct_batches
    warmup = tuple(one[row.rank] for one in times.warmup)
    timed = tuple(one[row.rank] for one in times.timed)
    early = times.verdict == "slower"
    unsteady = not times.steady or timing.is_unsteady(played.slowest(times.timed), cycle)
    return dataclasses.replace(
        old,
        warmup_s=warmup,
        iteration_s=timed,
        window_s=math.fsum(timed) * (old.window_s / math.fsum(old.iteration_s)),
        unsteady=unsteady,
        compile_s=windows.compile_seconds(warmup, timed, cycle),
        # As in a real launch: what is stopped as too slow is not probed for its memory.
        peak_worst_case_bytes=old.peak_timed_bytes if early else old.peak_worst_case_bytes,
        worst_case_is_bound=old.worst_case_is_bound and not early,
        notes={**old.notes, "replayed": note},
    )


def _record(
    plan: Plan, row: RankRecord, measured: RankMeasurement, status: RankStatus, now: float
) -> RankRecord:
    """The rank's recorded record with another measurement."""
    assert row.measurement is not None
    return dataclasses.replace(
        row,
        plan_digest=plan.digest,
        status=status,
        started_at=now,
        ended_at=now,
        phase_s=_phases(row.phase_s, row.measurement, measured),
        measurement=measured,
    )


def _phases(
    recorded: Mapping[str, float], old: RankMeasurement, new: RankMeasurement
) -> dict[str, float]:
    """The recorded seconds of each phase, with what was played more or less."""
    longer = {
        "warmup": math.fsum(new.warmup_s) - math.fsum(old.warmup_s),
        "measure": new.window_s - old.window_s,
    }
    return {name: max(0.0, s + longer.get(name, 0.0)) for name, s in recorded.items()}


def _failed(plan: Plan, row: TableRow, now: float) -> Iterator[RankRecord]:
    """Records of a launch that failed: the rank at fault says why, the others were ended."""
    assert row.failure is not None
    failure = row.failure
    culprit = failure.rank or 0
    recorded = {one.rank: one for one in row.ranks}
    phase: Phase = failure.phase or "measure"
    for rank in range(plan.num_launched):
        own = recorded.get(rank)
        error = RankError(
            type=FAILED_TYPE,
            message=failure.reason if rank == culprit else "ended with the trial",
            traceback=failure.detail if rank == culprit else "",
            at=now,
            phase=phase,
            iteration=failure.iteration,
            kind=failure.kind if rank == culprit else "interrupted",
            peak_memory=failure.peak_memory if rank == culprit else None,
        )
        if own is not None and own.error is not None and rank == culprit:
            error = dataclasses.replace(own.error, at=now, kind=failure.kind)
        yield RankRecord(
            rank=rank,
            pid=0,
            plan_digest=plan.digest,
            status="failed",
            phase=error.phase,
            started_at=now,
            ended_at=now,
            phase_s={} if own is None else own.phase_s,
            error=error,
        )


def _ended(records: Sequence[RankRecord], now: float, wall_s: float) -> JobStatus:
    return JobStatus(
        state="ended",
        phase=min((one.phase for one in records), key=PHASES.index),
        exits=tuple(
            RankExit(rank=one.rank, exit_code=int(one.error is not None), signal=None)
            for one in records
        ),
        submitted_at=now,
        wall_s=wall_s,
    )


def _cut_off(now: float, limit_s: float) -> JobStatus:
    """A launch that took longer than the search allows: no rank came to leave a record."""
    return JobStatus(
        state="ended", phase="measure", stopped_for="timeout", submitted_at=now, wall_s=limit_s
    )


def _all_measured(row: TableRow) -> bool:
    """Whether every rank was measured: then a launch is judged anew, whatever it was judged."""
    return all(one.measurement is not None for one in row.ranks) and row.ranks != ()


def _work(workload: Mapping[str, Any]) -> dict[str, Any]:
    """Leaves of a workload by path, without what equal work may differ in."""
    found: dict[str, Any] = {}

    def walk(path: tuple[str, ...], value: Any) -> None:
        if path in NOT_WORK:
            return
        if isinstance(value, Mapping):
            for key, item in value.items():
                walk((*path, str(key)), item)
        else:
            found[".".join(path)] = value

    walk((), workload)
    return found


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
