"""What belongs to the timed window, on a clock that only moves where the test says so."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from support_trials import make_plan

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

    def iterate(self, index: int) -> Iteration:
        self._clock.now += ITERATION_S
        return Iteration(loss=torch.tensor(6.0), grad_norm=torch.tensor(1.0))

    def exchange(self, values: Sequence[float]) -> torch.Tensor:
        self._clock.now += EXCHANGE_S
        return torch.tensor([list(values)], dtype=torch.float64)


class NoMemory:
    def peak_bytes(self) -> int:
        return 1


def test_what_ranks_do_between_cycles_is_not_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(time, "perf_counter", clock)
    plan = make_plan("fsdp2")
    rank, memory = OneRank(clock), NoMemory()
    heart = Heartbeat(tmp_path / "heartbeat-0.json")
    stubs: tuple[Any, Any] = (rank, memory)
    meter = Meter(plan, *stubs, torch.device("cpu"), heart)
    meter.measure()
    assert meter.timed.mine_s == [ITERATION_S] * 2
    assert meter.window_s == 2 * ITERATION_S
