"""Single launches of the replay launcher, on a table that was really recorded."""

from __future__ import annotations

import dataclasses
import math
import statistics
from pathlib import Path
from typing import Any

import pytest
from recorded import GRID, TABLE

from autotune.contract.failures import FailureKind
from autotune.contract.folder import StudyFolder
from autotune.contract.outcome import Failure, Outcome, PeakMemory, RankError
from autotune.contract.plan import CommandWorkload, Plan, Racing, Reference
from autotune.contract.table import Table, TableRow, read_table, to_line
from autotune.errors import InputError
from autotune.launchers.replay import Replay, ReplayLauncher
from autotune.search.judging import judge
from autotune.search.preflight import Prepared, prepare
from autotune.search.request import SearchRequest


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    folder = tmp_path_factory.mktemp("prepared")
    launcher = f"replay={TABLE}"
    request = SearchRequest(space=str(GRID), runs=folder / "runs", anchors=False, launcher=launcher)
    return prepare(request, staging=folder)


@pytest.fixture(scope="module")
def table() -> Table:
    return read_table(TABLE)


def measured(table: Table) -> list[TableRow]:
    rows = [row for row in table.rows if not row.repeat and row.s_per_it is not None]
    return sorted(rows, key=lambda row: row.s_per_it or 0.0)


def plan_of(prepared: Prepared, row: TableRow, **changes: Any) -> Plan:
    options: dict[str, Any] = {
        "number": 7,
        "attempt": 0,
        "purpose": "trial",
        "reference": Reference(),
        "racing": None,
    }
    config = prepared.space.resolve(row.params)
    return prepared.planner.plan(config, **(options | changes))


def launch(table: Table, plan: Plan, folder: Path, seed: int = 0) -> Outcome:
    launcher = ReplayLauncher(table, seed=seed)
    launcher.start()
    attempt = StudyFolder(folder / "s").attempt(plan.purpose, plan.number, plan.attempt)
    attempt.write_plan(plan)
    job = launcher.submit(attempt, plan)
    return judge(plan, attempt, launcher.poll(job))


def changed(table: Table, row: TableRow, **changes: Any) -> Table:
    rows = tuple(dataclasses.replace(one, **changes) if one is row else one for one in table.rows)
    kept = tuple(one for one in rows if one.key != row.key or not one.repeat)
    return dataclasses.replace(table, rows=kept)


def test_a_trial_has_the_recorded_times_and_overhead(
    table: Table, prepared: Prepared, tmp_path: Path
) -> None:
    for row in measured(table):
        folder = tmp_path / row.key
        outcome = launch(table, plan_of(prepared, row), folder)
        assert outcome.measurement is not None, outcome.failure
        for old in row.ranks:
            new = StudyFolder(folder / "s").attempt("trial", 7, 0).read_rank(old.rank)
            assert new is not None
            assert new.measurement is not None
            assert old.measurement is not None
            played, recorded = new.measurement, old.measurement
            shared = min(len(recorded.iteration_s), len(played.iteration_s))
            assert shared >= table.header.workload["distinct_batches"]
            assert played.iteration_s[:shared] == recorded.iteration_s[:shared]
            assert played.warmup_s[: len(recorded.warmup_s)] == recorded.warmup_s
            assert played.checks == recorded.checks
            assert played.read_back == recorded.read_back
            assert played.peak_timed_bytes == recorded.peak_timed_bytes
            assert played.notes["replayed"] == {"table": table.header.name, "launch": row.launch}
        assert outcome.overhead_s == pytest.approx(row.overhead_s)


def test_relaunches_vary_with_their_number_and_the_seed_and_are_the_same_again(
    table: Table, prepared: Prepared, tmp_path: Path
) -> None:
    row = next(one for one in table.rows if one.repeat)
    first = next(one for one in table.rows if one.key == row.key and not one.repeat)
    assert table.spread > 0
    found = []
    for number, seed in ((0, 0), (1, 0), (0, 1), (0, 0)):
        plan = plan_of(prepared, first, purpose="remeasurement", number=number)
        outcome = launch(table, plan, tmp_path / str(len(found)), seed)
        assert outcome.measurement is not None
        found.append(outcome.measurement.s_per_it)
    assert found[0] == found[3]
    assert len(set(found)) == 3
    recorded = [one.s_per_it for one in table.rows if one.key == row.key]
    usual = math.exp(statistics.fmean(math.log(seconds) for seconds in recorded if seconds))
    for seconds in found:
        assert abs(math.log(seconds / usual)) < 4 * table.spread + 0.2


def test_a_slow_trial_is_stopped_early_as_it_would_have_been(
    table: Table, prepared: Prepared, tmp_path: Path
) -> None:
    best, *_, worst = measured(table)
    assert best.s_per_it is not None
    assert worst.s_per_it is not None
    assert worst.s_per_it > 1.3 * best.s_per_it
    patient = dataclasses.replace(plan_of(prepared, worst).measuring, window_s=1e9)
    whole, raced = (
        launch(
            table,
            dataclasses.replace(
                plan_of(prepared, worst),
                measuring=dataclasses.replace(patient, racing=racing, interval_share=0.0),
            ),
            tmp_path / name,
        )
        for name, racing in (
            ("whole", None),
            ("raced", Racing(best_s_per_it=best.s_per_it / 4, noise_share=0.01)),
        )
    )
    assert whole.state == "complete"
    assert raced.state == "stopped_early"
    assert raced.measurement is not None
    assert whole.measurement is not None
    assert raced.measurement.iterations < whole.measurement.iterations == 24
    assert raced.timed_s < whole.timed_s
    peak = raced.measurement.peak_memory
    assert peak.worst_case == peak.timed


@pytest.mark.parametrize(
    ("kind", "peak"),
    [
        ("oom_device", PeakMemory(timed=5, worst_case=5, limit=6)),
        ("incompatible", None),
        ("numerics", None),
        ("not_in_effect", None),
        ("hang", None),
        ("crash", None),
    ],
)
def test_a_failure_is_played_as_it_was_judged(
    kind: FailureKind, peak: PeakMemory | None, table: Table, prepared: Prepared, tmp_path: Path
) -> None:
    row = measured(table)[3]
    failure = Failure(
        kind=kind, reason="what it was", rank=1, phase="measure", peak_memory=peak, detail="a stack"
    )
    failed = changed(table, row, failure=failure, s_per_it=None, ranks=())
    outcome = launch(failed, plan_of(prepared, row), tmp_path)
    assert outcome.failure is not None
    assert (outcome.failure.kind, outcome.failure.rank) == (kind, 1)
    assert outcome.failure.reason.endswith("what it was")
    assert outcome.failure.phase == "measure"
    assert outcome.failure.peak_memory == peak
    assert outcome.wall_s == outcome.overhead_s == row.wall_s
    log = StudyFolder(tmp_path / "s").attempt("trial", 7, 0).log_file(1)
    assert "a stack" in log.read_text()


def test_the_rank_that_failed_says_what_it_said(
    table: Table, prepared: Prepared, tmp_path: Path
) -> None:
    row = measured(table)[0]
    error = RankError(
        type="torch.OutOfMemoryError",
        message="CUDA out of memory. Tried",
        traceback="T",
        at=1.0,
        phase="warmup",
    )
    broken = dataclasses.replace(row.ranks[1], status="failed", error=error, measurement=None)
    failure = Failure(kind="oom_device", reason="CUDA out of memory. Tried", rank=1)
    failed = changed(table, row, failure=failure, s_per_it=None, ranks=(row.ranks[0], broken))
    outcome = launch(failed, plan_of(prepared, row), tmp_path)
    assert outcome.failure is not None
    assert outcome.failure.kind == "oom_device"
    assert outcome.failure.reason == "CUDA out of memory. Tried"
    assert outcome.failure.phase == "warmup"


def test_what_ran_and_was_not_valid_is_judged_anew(
    table: Table, prepared: Prepared, tmp_path: Path
) -> None:
    row = measured(table)[0]
    full = []
    for one in row.ranks:
        assert one.measurement is not None
        filled = dataclasses.replace(
            one.measurement, peak_timed_bytes=one.measurement.memory_limit_bytes
        )
        full.append(dataclasses.replace(one, measurement=filled))
    failure = Failure(kind="oom_host", reason="as it was then", rank=0, measured_s_per_it=1.0)
    failed = changed(table, row, failure=failure, s_per_it=None, ranks=tuple(full))
    outcome = launch(failed, plan_of(prepared, row), tmp_path)
    assert outcome.failure is not None
    assert outcome.failure.kind == "oom_host"
    assert "leaves no margin" in outcome.failure.reason
    assert outcome.failure.measured_s_per_it == pytest.approx(row.s_per_it, rel=0.25)


def test_a_launch_that_takes_longer_than_the_search_allows_is_cut_off(
    table: Table, prepared: Prepared, tmp_path: Path
) -> None:
    row = measured(table)[0]
    plan = plan_of(prepared, row)
    short = dataclasses.replace(plan.deadlines, total_s=row.overhead_s / 2)
    outcome = launch(table, dataclasses.replace(plan, deadlines=short), tmp_path)
    assert outcome.failure is not None
    assert outcome.failure.kind == "timeout"
    assert outcome.wall_s == row.overhead_s / 2


def test_what_was_not_recorded_is_refused(table: Table, prepared: Prepared, tmp_path: Path) -> None:
    row = measured(table)[0]
    plan = dataclasses.replace(plan_of(prepared, row), key="other", backend="zero3")
    with pytest.raises(InputError, match="has no launch of this configuration"):
        launch(table, plan, tmp_path)


def test_other_work_is_refused_with_what_differs(prepared: Prepared) -> None:
    kind = Replay(str(TABLE))
    assert kind.refused_work(prepared.workload) is None
    renamed = dataclasses.replace(
        prepared.workload, model=dataclasses.replace(prepared.workload.model, name="elsewhere")
    )
    assert kind.refused_work(renamed) is None
    other = dataclasses.replace(
        prepared.workload,
        optimizer=dataclasses.replace(prepared.workload.optimizer, weight_decay=0.1),
    )
    reason = kind.refused_work(other)
    assert reason is not None
    assert "optimizer.weight_decay 0.0 there, 0.1 here" in reason


def test_a_command_was_never_recorded() -> None:
    reason = Replay(str(TABLE)).refused_work(CommandWorkload(command=("train",), global_batch=8))
    assert reason == "table qwen3-tiny-fsdp2 has no launches of a command"


def test_a_table_whose_work_is_not_understood_is_refused(table: Table, tmp_path: Path) -> None:
    header = dataclasses.replace(table.header, workload={**table.header.workload, "new": 1})
    path = tmp_path / "t.jsonl"
    path.write_bytes(to_line(header))
    with pytest.raises(InputError, match="not of this version of autotune: .*unknown key 'new'"):
        Replay(str(path))


def test_a_replay_needs_its_table() -> None:
    with pytest.raises(InputError, match="needs the table"):
        Replay(None)
