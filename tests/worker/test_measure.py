"""What belongs to the timed window, on a clock that only moves where the test says so."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from support_trials import QUICK, make_plan

from autotune.contract.outcome import RankStatus
from autotune.contract.plan import Measuring, Samples, Schedule
from autotune.data.schedule import make_schedule
from autotune.search.planning import CPU_MEASURING, GPU_MEASURING
from autotune.worker import heartbeat
from autotune.worker.heartbeat import Heartbeat
from autotune.worker.measure import Meter
from autotune.worker.step import Iteration

ITERATION_S = 0.5
EXCHANGE_S = 10.0


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class OneRank:
    """A rank alone: an iteration takes half a second, an exchange ten."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.probed: int | None = None
        self.iterated = 0

    def iterate(self, index: int) -> Iteration:
        self.iterated += 1
        self._clock.now += ITERATION_S
        return Iteration(loss=torch.tensor(6.0), grad_norm=torch.tensor(1.0))

    def exchange(self, values: Sequence[float]) -> torch.Tensor:
        self._clock.now += EXCHANGE_S
        return torch.tensor([list(values)], dtype=torch.float64)

    def probe(self, micro_steps: int) -> None:
        self.probed = micro_steps


class Memory:
    """Seven bytes so far, nine after a reset; the allocator runs out of room in each iteration."""

    limit_bytes = 1000

    def __init__(self, rank: OneRank | None = None, *, bound: float | None = None) -> None:
        self._peak = 7
        self.bound = bound
        self._rank = rank

    def reset(self) -> None:
        self._peak = 9

    def peak_bytes(self) -> int:
        return self._peak

    def at_most(self, growth: float) -> int | None:
        return None if self.bound is None else round(self.bound * growth)

    def alloc_retries(self) -> int:
        return 0 if self._rank is None else self._rank.iterated


def test_what_ranks_do_between_cycles_is_not_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(time, "perf_counter", clock)
    plan = make_plan("fsdp2")
    rank, memory = OneRank(clock), Memory()
    heart = Heartbeat(tmp_path / "heartbeat-0.json")
    stubs: tuple[Any, Any] = (rank, memory)
    meter = Meter(plan, *stubs, torch.device("cpu"), heart)
    meter.measure()
    assert meter.timed.mine_s == [ITERATION_S] * 2
    assert meter.window_s == 2 * ITERATION_S


def test_ranks_meet_right_before_each_cycle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What takes one rank longer than the others must not be waited for in a timed cycle."""
    said: list[str] = []

    class Watched(OneRank):
        def iterate(self, index: int) -> Iteration:
            said.append("iterate")
            return super().iterate(index)

        def exchange(self, values: Sequence[float]) -> torch.Tensor:
            said.append("meet")
            return super().exchange(values)

    meter = meter_of(Watched(Clock()), tmp_path, batches=2)
    monkeypatch.setattr(gc, "collect", lambda _=2: said.append("collect"))
    monkeypatch.setattr(meter._heart, "_write", lambda: said.append("write"))
    monkeypatch.setattr(heartbeat, "MIN_INTERVAL_S", 0.0)
    try:
        meter.warm_up()
        warm = len(said)
        meter.measure()
    finally:
        gc.enable()
        gc.unfreeze()
    cycle = ["iterate", "iterate", "write", "collect", "meet"]
    assert said[:warm] == ["write", "collect", "meet", *cycle * 2]
    assert said[warm:] == ["write", "meet", *cycle]


def test_retries_and_the_first_peak_are_of_their_own_parts(tmp_path: Path) -> None:
    """Retries of the timed window only: warm-up may fill the allocator's cache."""
    rank = OneRank(Clock())
    memory = Memory(rank)
    stubs: tuple[Any, Any] = (rank, memory)
    heart = Heartbeat(tmp_path / "heartbeat-0.json")
    meter = Meter(make_plan("fsdp2"), *stubs, torch.device("cpu"), heart)
    meter.check(contextlib.nullcontext())
    memory._peak = 8
    meter.warm_up()
    warm = rank.iterated
    meter.measure()
    assert meter.alloc_retries == rank.iterated - warm == len(meter.timed.mine_s)
    assert (meter.peak_first, meter.peak_timed) == (7, 8)
    assert meter.throttled == {}


def rows_of_16(longest: int) -> Schedule:
    """One batch of four rows of 16 tokens, on two ranks; the worst case is a row of ``longest``."""
    return make_schedule(
        Samples(lengths=(16,) * 4, max_length=longest, seed=0, source="ultrachat-like"),
        global_batch=4,
        distinct_batches=1,
        batching="padded",
        micro_batch=1,
        max_tokens=None,
        processes=2,
    )


@pytest.mark.parametrize(
    ("length", "status", "probed", "peak"),
    [
        (16, "measured", None, 7),  # what the window held already
        (17, "measured", 2, 9),
        (17, "stopped_early", None, 7),  # too slow, whether it fits or not
    ],
)
def test_probe_runs_only_what_must_be_known(
    tmp_path: Path, length: int, status: RankStatus, probed: int | None, peak: int
) -> None:
    plan = dataclasses.replace(make_plan("fsdp2"), schedule=rows_of_16(length))
    rank, memory = OneRank(Clock()), Memory()
    stubs: tuple[Any, Any] = (rank, memory)
    meter = Meter(plan, *stubs, torch.device("cpu"), Heartbeat(tmp_path / "heartbeat-0.json"))
    meter.peak_timed, meter.status = 7, status
    meter.probe()
    assert (rank.probed, meter.peak_worst) == (probed, peak)


@pytest.mark.parametrize(
    ("mine", "limit", "margin", "far", "probed"),
    [
        # The longest row timed had half the length of the worst case: four times the scores.
        (100, 1000, 0.05, True, False),
        (118, 1000, 0.05, True, False),
        (120, 1000, 0.05, True, True),  # 480 with a margin of 5 %: more than half of the rest
        (100, 1000, 0.05, False, True),  # another rank is near its limit: all run it or none does
        (100, 1000, 0.2, True, False),
        (101, 1000, 0.2, True, True),
        (None, 1000, 0.05, True, True),  # a device
        (100, 0, 0.05, True, True),  # a cgroup that is full
    ],
)
def test_probe_is_left_out_far_from_the_limit_of_every_rank(
    tmp_path: Path, mine: int | None, limit: int, margin: float, far: bool, probed: bool
) -> None:
    class Both(OneRank):
        def exchange(self, values: Sequence[float]) -> torch.Tensor:
            return torch.tensor([list(values), [float(far)]], dtype=torch.float64)

    plan = dataclasses.replace(
        make_plan("fsdp2"), schedule=rows_of_16(32), memory_margin_share=margin
    )
    rank = Both(Clock())
    memory = Memory(bound=mine)
    memory.limit_bytes = limit
    stubs: tuple[Any, Any] = (rank, memory)
    meter = Meter(plan, *stubs, torch.device("cpu"), Heartbeat(tmp_path / "heartbeat-0.json"))
    meter.peak_timed = 7
    meter.probe()
    assert (rank.probed is not None, meter.worst_is_bound) == (probed, not probed)
    assert meter.peak_worst == (9 if probed else 4 * (mine or 0))


class Steps(OneRank):
    """Iterations that take what the test says, the last value for ever."""

    def __init__(self, clock: Clock, seconds: Sequence[float]) -> None:
        super().__init__(clock)
        self._seconds = seconds

    def iterate(self, index: int) -> Iteration:
        result = super().iterate(index)
        self._clock.now += self._seconds[min(index, len(self._seconds) - 1)] - ITERATION_S
        return result


def meter_of(rank: OneRank, path: Path, *, batches: int = 4, **changes: Any) -> Meter:
    plan = make_plan("fsdp2", batches=batches, **changes)
    stubs: tuple[Any, Any] = (rank, Memory())
    return Meter(plan, *stubs, torch.device("cpu"), Heartbeat(path / "heartbeat-0.json"))


def run_whole(meter: Meter) -> None:
    meter.check(contextlib.nullcontext())
    meter.warm_up()
    meter.measure()


@pytest.mark.parametrize(
    ("first", "extra_s"),
    [
        # Compiles in the first step and once more in the fourth.
        ((90.0, 2.0, 2.0, 2.0), 89.5 + 3 * 1.5),
        # Scales its loss down and makes no update six times.
        ((0.3,) * 6, 0.0),
    ],
)
@pytest.mark.parametrize("rules", [CPU_MEASURING, GPU_MEASURING])
def test_what_first_steps_cost_is_no_part_of_the_time(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    rules: Measuring,
    first: tuple[float, ...],
    extra_s: float,
) -> None:
    """BUG-040: 0.5 s, whatever lay before it, and never before two real updates."""
    clock = Clock()
    monkeypatch.setattr(time, "perf_counter", clock)
    meter = meter_of(Steps(clock, (*first, 0.5)), tmp_path, measuring=rules)
    run_whole(meter)
    assert set(meter.timed.mine_s) == {0.5}
    assert meter.window_s / len(meter.timed.mine_s) == 0.5
    assert meter.compile_s == pytest.approx(extra_s)
    assert len(meter.warmup.mine_s) >= 8


class Compiles(OneRank):
    """Meets a new shape, for which torch compiles again, in some iterations."""

    def __init__(self, clock: Clock, where: Sequence[int]) -> None:
        super().__init__(clock)
        self._where = where
        self._function = torch.compile(torch.sin, backend="eager", dynamic=False)

    def iterate(self, index: int) -> Iteration:
        if index == 0 or index in self._where:
            self._clock.now += 2.0
            self._function(torch.zeros(index + 1))
        return super().iterate(index)


def test_a_cycle_with_a_recompilation_is_run_again_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """BUG-040: iteration 13 of a window that begins with the ninth."""
    torch.compiler.reset()
    clock = Clock()
    monkeypatch.setattr(time, "perf_counter", clock)
    measuring = dataclasses.replace(QUICK, window_iterations=8, window_s=1e9, interval_share=0.0)
    meter = meter_of(Compiles(clock, [13]), tmp_path, measuring=measuring)
    run_whole(meter)
    assert meter.timed.mine_s == [0.5] * 8
    assert meter.recompiled == 4
    assert meter.compile_s == pytest.approx(2.0)
    assert not meter.unsteady


def test_what_compiles_for_ever_is_timed_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.compiler.reset()
    clock = Clock()
    monkeypatch.setattr(time, "perf_counter", clock)
    measuring = dataclasses.replace(QUICK, window_iterations=4, window_s=1e9)
    meter = meter_of(Compiles(clock, range(0, 40, 4)), tmp_path, measuring=measuring)
    with torch._dynamo.config.patch(recompile_limit=64):  # monkeypatch would hide the setting
        run_whole(meter)
    assert meter.recompiled == 4 * QUICK.warmup_max_cycles
    assert meter.window_s == pytest.approx(4.0)
    assert meter.unsteady


def test_a_trial_has_two_whole_updates_with_all_their_micro_steps(tmp_path: Path) -> None:
    """BUG-044: with an accumulation of 8, 16 micro-steps or more are run before it fits."""
    changes = {"workload.micro_batch": 1}
    rank = OneRank(Clock())
    meter = meter_of(rank, tmp_path, batches=1, changes=changes)
    run_whole(meter)
    micro_steps = make_plan("fsdp2", changes=changes).cut.micro_steps
    assert micro_steps == 8
    assert rank.iterated * micro_steps >= 16
    assert rank.iterated >= QUICK.check_iterations
