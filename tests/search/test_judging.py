from __future__ import annotations

import dataclasses
import json
import signal
from pathlib import Path
from typing import Any

import pytest
from scripted import CHECKS, GIB, Act, Bench, record_of

from autotune.contract.folder import AttemptFolder
from autotune.contract.outcome import Outcome, PeakMemory
from autotune.contract.plan import CheckPoint, Plan
from autotune.launchers.base import JobStatus, RankExit
from autotune.search.judging import judge


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    """A real plan: the baseline's."""
    bench = Bench(tmp_path_factory.mktemp("bench"))
    bench.search(lambda plan: Act(), trials=1)
    assert bench.launcher is not None
    return bench.launcher.plans[0]


@pytest.fixture
def folder(tmp_path: Path) -> AttemptFolder:
    path = tmp_path / "attempt"
    path.mkdir()
    return AttemptFolder(path)


def status(*exits: RankExit, **changes: Any) -> JobStatus:
    base: dict[str, Any] = {
        "state": "ended",
        "phase": "measure",
        "exits": exits,
        "submitted_at": 0.0,
        "wall_s": 5.0,
    }
    return JobStatus(**base | changes)


def write(folder: AttemptFolder, plan: Plan, *acts: Act | None) -> None:
    for rank, act in enumerate(acts):
        if act is not None:
            folder.write_rank(record_of(plan, rank, act))


def kind(outcome: Outcome) -> str:
    assert outcome.failure is not None
    return outcome.failure.kind


def test_measurement_of_the_slowest_rank(plan: Plan, folder: AttemptFolder) -> None:
    write(folder, plan, Act(s_per_it=0.1, peak_bytes=GIB), Act(s_per_it=0.12, peak_bytes=2 * GIB))
    outcome = judge(plan, folder, status())
    measured = outcome.measurement
    assert measured is not None
    assert measured.s_per_it == pytest.approx(0.12)
    assert measured.peak_memory.timed == 2 * GIB
    assert measured.samples_per_s == pytest.approx(16 / 0.12)
    tokens = sum(plan.workload.samples.lengths) / 4
    assert measured.tokens_per_s == pytest.approx(tokens / 0.12)
    assert measured.mfu is None
    assert outcome.overhead_s == pytest.approx(5.0 - 0.12 * 12)
    assert outcome.timed_s == pytest.approx(0.12 * 8)


def test_mfu(plan: Plan, folder: AttemptFolder) -> None:
    write(folder, plan, Act(), Act())
    outcome = judge(plan, folder, status(), flops_per_s_at_peak=2e12, flops_per_iteration=1e11)
    assert outcome.measurement is not None
    assert outcome.measurement.mfu == pytest.approx(0.5)


def test_a_broken_connection_never_hides_the_cause(plan: Plan, folder: AttemptFolder) -> None:
    peer = Act(error="[gloo/transport/tcp/pair.cc:525] Connection closed by peer [127.0.0.1]")
    cause = Act(error="CUDA out of memory. Tried …", error_type="torch.OutOfMemoryError")
    write(folder, plan, peer, cause)  # the peer's record has the earlier time
    outcome = judge(plan, folder, status(stopped_for="peer_failed"))
    assert kind(outcome) == "oom_device"
    assert outcome.failure is not None
    assert outcome.failure.rank == 1


def test_a_killed_rank_is_the_cause_of_its_peers_broken_connection(
    plan: Plan, folder: AttemptFolder
) -> None:
    write(folder, plan, Act(error="Connection reset by peer"), None)
    killed = RankExit(rank=1, exit_code=None, signal=signal.SIGKILL)
    outcome = judge(plan, folder, status(killed))
    assert kind(outcome) == "crash"
    assert outcome.failure is not None
    assert "rank 1 was killed" in outcome.failure.reason
    assert kind(judge(plan, folder, status(killed), oom_kills=1)) == "oom_host"


def test_exit_137_is_a_kill(plan: Plan, folder: AttemptFolder) -> None:
    write(folder, plan, Act(), None)
    outcome = judge(plan, folder, status(RankExit(rank=1, exit_code=137, signal=None)), oom_kills=2)
    assert kind(outcome) == "oom_host"


def test_a_segfault_comes_before_the_kill_of_its_peer(plan: Plan, folder: AttemptFolder) -> None:
    outcome = judge(
        plan,
        folder,
        status(
            RankExit(rank=0, exit_code=None, signal=signal.SIGKILL),
            RankExit(rank=1, exit_code=None, signal=signal.SIGSEGV),
            stopped_for="peer_failed",
        ),
    )
    assert kind(outcome) == "crash"
    assert outcome.failure is not None
    assert "SIGSEGV" in outcome.failure.reason


def test_only_broken_connections_are_the_networks_fault(plan: Plan, folder: AttemptFolder) -> None:
    act = Act(error="Connection reset by peer", phase="init")
    write(folder, plan, act, act)
    assert kind(judge(plan, folder, status(phase="init"))) == "infra"


def test_no_record_shows_the_end_of_the_log(plan: Plan, folder: AttemptFolder) -> None:
    write(folder, plan, Act(), None)
    folder.log_file(1).write_text("line\nSyntaxError: bad", encoding="utf-8")
    outcome = judge(plan, folder, status(RankExit(rank=1, exit_code=1, signal=None)))
    assert kind(outcome) == "crash"
    assert outcome.failure is not None
    assert "SyntaxError: bad" in outcome.failure.reason


def test_the_word_error_in_a_log_is_no_failure(plan: Plan, folder: AttemptFolder) -> None:
    write(folder, plan, Act(), Act())
    folder.log_file(0).write_text("error: out of memory (a warning)", encoding="utf-8")
    assert judge(plan, folder, status()).state == "complete"


def test_a_pickle_in_place_of_a_record_is_refused(plan: Plan, folder: AttemptFolder) -> None:
    """BUG-068: result files are plain data; nothing in them runs."""
    write(folder, plan, Act(), Act())
    marker = folder.path / "marker"
    payload = f"cos\nsystem\n(S'touch {marker}'\ntR."
    folder.rank_file(0).write_bytes(payload.encode())
    outcome = judge(plan, folder, status())
    assert kind(outcome) == "crash"
    assert outcome.failure is not None
    assert "not a JSON record" in outcome.failure.reason
    assert not marker.exists()


@pytest.mark.parametrize("seconds", [0, -0.1, "NaN", "350ms", None])
def test_a_time_that_is_none_is_refused(plan: Plan, folder: AttemptFolder, seconds: Any) -> None:
    """BUG-039: without a unit, negative, zero or not finite is a worker's fault."""
    write(folder, plan, Act(), Act())
    data = json.loads(folder.rank_file(0).read_text(encoding="utf-8"))
    data["measurement"]["window_s"] = seconds
    text = json.dumps(data).replace('"NaN"', "NaN")
    folder.rank_file(0).write_text(text, encoding="utf-8")
    assert kind(judge(plan, folder, status())) == "crash"


def test_window_and_iterations_that_disagree_are_flagged(plan: Plan, folder: AttemptFolder) -> None:
    """BUG-039: cross-check of seconds × steps against the clock of the window."""
    write(folder, plan, Act(window_factor=1.2), Act(window_factor=1.2))
    outcome = judge(plan, folder, status())
    assert outcome.measurement is not None
    assert outcome.measurement.s_per_it == pytest.approx(0.12)
    assert "20%" in outcome.measurement.notes["window_gap"]


def test_record_of_another_plan(plan: Plan, folder: AttemptFolder) -> None:
    other = dataclasses.replace(plan, number=99)
    write(folder, other, Act(), Act())
    assert kind(judge(plan, folder, status())) == "crash"


def test_timeout_and_hang_name_phase_and_limit(plan: Plan, folder: AttemptFolder) -> None:
    write(folder, plan, Act(error="Connection closed by peer"), None)
    killed = RankExit(rank=1, exit_code=None, signal=signal.SIGKILL)
    late = judge(plan, folder, status(killed, stopped_for="timeout", phase="check"))
    assert late.failure is not None
    assert (late.failure.kind, late.failure.rank) == ("timeout", 1)
    assert "300 s" in late.failure.reason
    hung = judge(plan, folder, status(killed, stopped_for="hang", phase="init"))
    assert hung.failure is not None
    assert hung.failure.kind == "hang"
    assert "120 s" in hung.failure.reason


def test_a_hang_names_the_rank_that_stood_still_where_and_for_how_long(
    plan: Plan, folder: AttemptFolder
) -> None:
    stopped = Act(error="the trial was stopped by a signal", kind="interrupted", phase="measure")
    write(folder, plan, stopped, stopped)
    beat = {"phase": "measure", "at": 1.0, "iteration": 7, "steps": 40}
    folder.heartbeat_file(1).write_text(json.dumps(beat))
    hung = status(stopped_for="hang", stopped_at=9.0, stopped_rank=1, stopped_limit_s=120.0)
    failure = judge(plan, folder, hung).failure
    assert failure is not None
    assert (failure.kind, failure.rank, failure.iteration) == ("hang", 1, 7)
    assert failure.reason == "rank 1 did not move for 120 s in phase measure, after 7 iterations"
    assert failure.limit_s == plan.deadlines.total_s


def test_a_result_that_every_rank_left_is_not_lost_to_what_came_after(
    plan: Plan, folder: AttemptFolder
) -> None:
    write(folder, plan, Act(), Act())
    for reason in ("hang", "timeout", "server_lost"):
        assert judge(plan, folder, status(stopped_for=reason, phase="teardown")).state == "complete"
    write(folder, plan, Act(), Act(error="CUDA out of memory"))
    assert kind(judge(plan, folder, status(stopped_for="hang"))) == "oom_device"


def test_the_first_in_time_is_the_reason_be_it_an_error_or_a_death(
    plan: Plan, folder: AttemptFolder
) -> None:
    write(folder, plan, Act(error="Rank 1 is gone and nothing works", phase="measure"), None)
    now = folder.read_rank(0).error.at  # type: ignore[union-attr]

    def died(after_s: float) -> Outcome:
        death = RankExit(rank=1, exit_code=None, signal=signal.SIGSEGV, at=now + after_s)
        return judge(plan, folder, status(death, stopped_for="peer_failed", stopped_at=now + 30))

    assert died(-5.0).failure.rank == 1  # type: ignore[union-attr]
    # The peer's connection closes a moment before the death can be seen.
    assert died(0.2).failure.rank == 1  # type: ignore[union-attr]
    late = died(5.0).failure
    assert late is not None
    assert (late.rank, late.kind) == (0, "crash")
    write(folder, plan, Act(error="CUDA out of memory"), None)
    now = folder.read_rank(0).error.at  # type: ignore[union-attr]
    # No peer's death makes a rank run out of memory.
    assert kind(died(0.2)) == "oom_device"


def test_what_ended_after_the_launcher_began_to_end_it_is_no_cause(
    plan: Plan, folder: AttemptFolder
) -> None:
    killed = [
        RankExit(rank=0, exit_code=None, signal=signal.SIGABRT, at=20.5),
        RankExit(rank=1, exit_code=None, signal=signal.SIGKILL, at=22.0),
    ]
    late = judge(plan, folder, status(*killed, stopped_for="timeout", stopped_at=20.0))
    assert kind(late) == "timeout"


def test_an_error_of_another_rank_comes_before_a_damaged_record(
    plan: Plan, folder: AttemptFolder
) -> None:
    write(folder, plan, Act(), Act(error="CUDA out of memory"))
    folder.rank_file(0).write_bytes(b"{")
    assert kind(judge(plan, folder, status(stopped_for="peer_failed"))) == "oom_device"
    write(folder, plan, Act(), Act(error="Connection reset by peer"))
    folder.rank_file(0).write_bytes(b"{")
    failed = judge(plan, folder, status(stopped_for="peer_failed")).failure
    assert failed is not None
    assert (failed.kind, failed.rank) == ("crash", 0)


@pytest.mark.parametrize(
    ("exit_code", "number", "log", "expected"),
    [
        (137, None, "", "oom_host"),
        (None, signal.SIGKILL, "", "crash"),
        (None, signal.SIGBUS, "insufficient shared memory (shm)", "oom_host"),
        (None, signal.SIGBUS, "Fatal Python error: Bus error", "crash"),
        (None, signal.SIGABRT, "terminate called: what(): std::bad_alloc", "oom_host"),
        (None, signal.SIGABRT, "what(): CUDA error: out of memory", "oom_device"),
        (None, signal.SIGSEGV, "an earlier CUDA out of memory was caught", "crash"),
        (1, None, "RuntimeError: CUDA out of memory", "oom_device"),
        (0, None, "", "crash"),
    ],
)
def test_how_a_rank_without_a_record_ended(
    plan: Plan,
    folder: AttemptFolder,
    exit_code: int | None,
    number: int | None,
    log: str,
    expected: str,
) -> None:
    write(folder, plan, Act(error="Connection reset by peer"), None)
    folder.log_file(1).write_text(log, encoding="utf-8")
    ended = RankExit(rank=1, exit_code=exit_code, signal=number)
    outcome = judge(plan, folder, status(ended, stopped_for="peer_failed"))
    assert kind(outcome) == expected
    assert outcome.failure is not None
    assert outcome.failure.rank == 1


def test_the_launchers_own_signal_is_no_cause(plan: Plan, folder: AttemptFolder) -> None:
    stopped = Act(error="the trial was stopped by a signal", kind="interrupted", phase="check")
    write(folder, plan, stopped, stopped)
    late = judge(plan, folder, status(stopped_for="timeout", phase="check"))
    assert kind(late) == "timeout"
    assert kind(judge(plan, folder, status(phase="check"))) == "crash"
    write(folder, plan, stopped, Act(error="bad shape"))
    failed = judge(plan, folder, status(stopped_for="peer_failed"))
    assert failed.failure is not None
    assert "bad shape" in failed.failure.reason


def test_cancelled_is_interrupted(plan: Plan, folder: AttemptFolder) -> None:
    assert judge(plan, folder, status(stopped_for="cancelled")).state == "interrupted"


def test_memory_margin(plan: Plan, folder: AttemptFolder) -> None:
    act = Act(peak_bytes=int(9.6 * GIB), limit_bytes=10 * GIB)
    write(folder, plan, Act(), act)
    outcome = judge(plan, folder, status())
    assert kind(outcome) == "oom_host"
    assert outcome.failure is not None
    assert outcome.failure.measured_s_per_it == pytest.approx(0.1)
    assert outcome.failure.rank == 1
    assert outcome.failure.peak_memory is not None
    gpu = dataclasses.replace(plan, topology=dataclasses.replace(plan.topology, device="cuda"))
    near = Act(peak_bytes=int(8.5 * GIB), limit_bytes=10 * GIB)
    write(folder, gpu, near, near)
    assert kind(judge(gpu, folder, status())) == "oom_device"


@pytest.mark.parametrize(
    ("capacity", "worst", "fits"),
    [
        (80, 75.9, True),  # 5 % are 4 GiB
        (80, 76.1, False),
        (24, 21.9, True),  # 5 % would be 1.2 GiB: at least 2 GiB stay free
        (24, 22.1, False),
    ],
)
def test_the_worst_batch_needs_room_on_every_gpu(
    plan: Plan, folder: AttemptFolder, capacity: int, worst: float, fits: bool
) -> None:
    """BUG-045: what counts is the peak of the longest batch, on the fullest device."""
    gpu = dataclasses.replace(plan, topology=dataclasses.replace(plan.topology, device="cuda"))
    roomy = Act(peak_bytes=10 * GIB, limit_bytes=capacity * GIB)
    write(folder, gpu, roomy, roomy)
    full = record_of(gpu, 1, roomy)
    assert full.measurement is not None
    probed = dataclasses.replace(full.measurement, peak_worst_case_bytes=int(worst * GIB))
    folder.rank_file(1).unlink()
    folder.write_rank(dataclasses.replace(full, measurement=probed))
    outcome = judge(gpu, folder, status())
    if fits:
        assert outcome.measurement is not None
        assert outcome.measurement.memory_margin_bytes == max(2.0, capacity * 0.05) * GIB
        assert outcome.measurement.peak_memory.worst_case == int(worst * GIB)
        return
    assert outcome.failure is not None
    assert (outcome.failure.kind, outcome.failure.rank) == ("oom_device", 1)
    assert outcome.failure.phase == "probe"
    assert outcome.failure.measured_s_per_it == pytest.approx(0.1)


def test_a_bound_is_told_from_what_was_measured(plan: Plan, folder: AttemptFolder) -> None:
    write(folder, plan, Act(peak_bytes=2 * GIB, limit_bytes=10 * GIB))
    left_out = record_of(plan, 1, Act(peak_bytes=2 * GIB, limit_bytes=10 * GIB))
    assert left_out.measurement is not None
    bounded = dataclasses.replace(
        left_out.measurement, peak_worst_case_bytes=4 * GIB, worst_case_is_bound=True
    )
    folder.write_rank(dataclasses.replace(left_out, measurement=bounded))
    measured = judge(plan, folder, status()).measurement
    assert measured is not None
    peak = measured.peak_memory
    assert (peak.worst_case, peak.is_bound, peak.measured) == (4 * GIB, True, 2 * GIB)
    assert dataclasses.replace(peak, is_bound=False).measured == 4 * GIB


def test_memory_that_only_later_steps_need_is_told_from_the_first(
    plan: Plan, folder: AttemptFolder
) -> None:
    """BUG-044: the first step leaves room, the optimizer's state that it ends with does not."""
    act = Act(peak_bytes=int(9.7 * GIB), limit_bytes=10 * GIB)
    for rank in range(2):
        record = record_of(plan, rank, act)
        assert record.measurement is not None
        measured = dataclasses.replace(record.measurement, peak_first_bytes=8 * GIB)
        folder.write_rank(dataclasses.replace(record, measurement=measured))
    failure = judge(plan, folder, status()).failure
    assert failure is not None
    assert failure.kind == "oom_host"
    assert failure.peak_memory is not None
    assert (failure.peak_memory.first, failure.peak_memory.timed) == (8 * GIB, int(9.7 * GIB))


def test_each_rank_is_held_to_its_own_limit(plan: Plan, folder: AttemptFolder) -> None:
    roomy = Act(peak_bytes=12 * GIB, limit_bytes=20 * GIB)
    tight = Act(peak_bytes=5 * GIB, limit_bytes=8 * GIB)
    write(folder, plan, roomy, tight)
    assert judge(plan, folder, status()).state == "complete"


def test_running_out_of_memory_names_rank_phase_and_peak(plan: Plan, folder: AttemptFolder) -> None:
    peak = PeakMemory(timed=9 * GIB, worst_case=9 * GIB, limit=10 * GIB)
    oom = Act(error="CUDA out of memory", kind="oom_device", phase="warmup", error_peak=peak)
    write(folder, plan, Act(error="Connection reset by peer"), oom)
    failure = judge(plan, folder, status(stopped_for="peer_failed")).failure
    assert failure is not None
    assert (failure.kind, failure.rank, failure.phase) == ("oom_device", 1, "warmup")
    assert failure.peak_memory == peak


def test_time_spent_on_iterations_is_no_overhead_of_a_failed_trial(
    plan: Plan, folder: AttemptFolder
) -> None:
    act = Act(actual={"zero3.reduce_bucket_size": 1})
    write(folder, plan, act, act)
    outcome = judge(plan, folder, status())
    assert outcome.state == "failed"
    assert outcome.timed_s == pytest.approx(0.1 * 8)
    assert outcome.overhead_s == pytest.approx(5.0 - 0.1 * 12)


def test_value_not_in_effect_on_one_rank(plan: Plan, folder: AttemptFolder) -> None:
    write(folder, plan, Act(), Act(actual={"zero3.reduce_bucket_size": 1}))
    outcome = judge(plan, folder, status())
    assert kind(outcome) == "not_in_effect"
    assert outcome.failure is not None
    assert "zero3.reduce_bucket_size" in outcome.failure.reason
    assert outcome.failure.rank == 1


def test_what_is_not_set_need_not_be_read_back(plan: Plan, folder: AttemptFolder) -> None:
    """The baseline is cut by rows where the space tunes max_tokens, and the other way round."""
    config = {**plan.config, "workload.max_tokens": None}
    verify = (*plan.verify, "workload.max_tokens")
    unset = dataclasses.replace(plan, config=config, verify=verify)
    write(folder, unset, Act(), Act())
    assert judge(unset, folder, status()).state == "complete"


def test_gradient_norm_is_compared_with_the_baselines(plan: Plan, folder: AttemptFolder) -> None:
    gate = dataclasses.replace(plan.numerics, reference=CHECKS)
    compared = dataclasses.replace(plan, numerics=gate)
    scaled = tuple(CheckPoint(loss=c.loss, grad_norm=c.grad_norm * 4) for c in CHECKS)
    write(folder, compared, Act(checks=scaled), Act(checks=scaled))
    assert kind(judge(compared, folder, status())) == "numerics"
    write(folder, compared, Act(checks=CHECKS[:1]), Act(checks=CHECKS[:1]))
    assert kind(judge(compared, folder, status())) == "numerics"


def test_ranks_must_agree_on_loss_and_norm(plan: Plan, folder: AttemptFolder) -> None:
    other = (CheckPoint(loss=6.1, grad_norm=0.9), *CHECKS[1:])
    write(folder, plan, Act(), Act(checks=other))
    assert kind(judge(plan, folder, status())) == "numerics"
    norms = tuple(CheckPoint(loss=c.loss, grad_norm=c.grad_norm * 1.01) for c in CHECKS)
    write(folder, plan, Act(), Act(checks=norms))
    assert kind(judge(plan, folder, status())) == "numerics"


def test_stopped_early_keeps_its_estimate(plan: Plan, folder: AttemptFolder) -> None:
    write(folder, plan, Act(stopped_early=True), Act(stopped_early=True))
    outcome = judge(plan, folder, status())
    assert outcome.state == "stopped_early"
    assert outcome.measurement is not None
