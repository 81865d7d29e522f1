"""What belongs to the timed window, on a clock that only moves where the test says so."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from support_trials import make_plan

from autotune.contract.outcome import RankStatus
from autotune.contract.plan import Samples
from autotune.data.schedule import make_schedule
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

    def __init__(self, rank: OneRank | None = None) -> None:
        self._peak = 7
        self._rank = rank

    def reset(self) -> None:
        self._peak = 9

    def peak_bytes(self) -> int:
        return self._peak

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
    schedule = make_schedule(
        Samples(lengths=(16,) * 4, max_length=length, seed=0, source="ultrachat-like"),
        global_batch=4,
        distinct_batches=1,
        batching="padded",
        micro_batch=1,
        max_tokens=None,
        processes=2,
    )
    plan = dataclasses.replace(make_plan("fsdp2"), schedule=schedule)
    rank, memory = OneRank(Clock()), Memory()
    stubs: tuple[Any, Any] = (rank, memory)
    meter = Meter(plan, *stubs, torch.device("cpu"), Heartbeat(tmp_path / "heartbeat-0.json"))
    meter.peak_timed, meter.status = 7, status
    meter.probe()
    assert (rank.probed, meter.peak_worst) == (probed, peak)
