"""What held the device's clocks down, by a driver that answers as NVML does."""

from __future__ import annotations

import ctypes
import time
from typing import Any

import pytest
import torch

from autotune.worker.clocks import NoWatch, NvmlWatch, watch_for

NOT_SUPPORTED = 3


class Driver:
    """Counters in nanoseconds by policy, and the flags of the next looks."""

    def __init__(self, counters: dict[int, int], flags: list[int]) -> None:
        self.counters = counters
        self.flags = flags

    def nvmlDeviceGetViolationStatus(self, handle: Any, policy: int, value: Any) -> int:
        if policy not in self.counters:
            return NOT_SUPPORTED
        value._obj.violation_ns = self.counters[policy]
        return 0

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: Any, value: Any) -> int:
        if not self.flags:
            return NOT_SUPPORTED
        value._obj.value = self.flags.pop(0)
        return 0


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    at = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: at[0])
    return at


def test_the_share_of_the_window_is_that_of_the_counters(now: list[float]) -> None:
    """Seven of twenty seconds at the power cap, two too hot; what was before does not count."""
    driver = Driver({0: 9_000_000_000, 1: 5_000_000_000, 4: 0}, [])
    watch = NvmlWatch(driver, ctypes.c_void_p(1))
    watch.begin()
    now[0] += 20.0
    driver.counters = {0: 16_000_000_000, 1: 7_000_000_000, 4: 20_000_000_000}
    watch.look()
    assert watch.end() == {"power": pytest.approx(0.35), "thermal": pytest.approx(0.1)}


def test_slow_downs_by_the_hardware_are_seen_by_their_flags(now: list[float]) -> None:
    """Idle (1) and the power cap (4) are no slow-down by the hardware; an older driver's name."""
    watch = NvmlWatch(Driver({}, [0x1, 0x4, 0x48, 0x8]), ctypes.c_void_p(1))
    watch.begin()
    for _ in range(4):
        watch.look()
    now[0] += 1.0
    assert watch.end() == {"hardware": 0.5, "hardware_thermal": 0.25}


def test_a_device_that_ran_free_has_nothing_to_note(now: list[float]) -> None:
    watch = NvmlWatch(Driver({0: 5, 1: 5}, [0, 0]), ctypes.c_void_p(1))
    watch.begin()
    watch.look()
    now[0] += 10.0
    assert watch.end() == {}


def test_a_driver_that_tells_nothing_is_no_fault(now: list[float]) -> None:
    watch = NvmlWatch(object(), ctypes.c_void_p(1))
    watch.begin()
    watch.look()
    now[0] += 10.0
    assert watch.end() == {}


def test_without_a_device_nothing_is_asked() -> None:
    watch = watch_for(torch.device("cpu"))
    assert isinstance(watch, NoWatch)
    watch.begin()
    watch.look()
    assert watch.end() == {}


def test_the_driver_is_only_ever_read(now: list[float]) -> None:
    asked: list[str] = []

    class Recorder(Driver):
        def __getattribute__(self, name: str) -> Any:
            asked.append(name)
            return super().__getattribute__(name)

    watch = NvmlWatch(Recorder({0: 1}, [0]), ctypes.c_void_p(1))
    watch.begin()
    watch.look()
    now[0] += 1.0
    watch.end()
    calls = [name for name in asked if name.startswith("nvml")]
    assert len(calls) >= 3
    assert all(name.startswith("nvmlDeviceGet") for name in calls)


@pytest.mark.gpu
def test_a_real_device_answers() -> None:
    watch = watch_for(torch.device("cuda", 0))
    assert isinstance(watch, NvmlWatch)
    watch.begin()
    block = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    for _ in range(50):
        block = block @ block * 1e-4
    watch.look()
    torch.cuda.synchronize()
    assert all(0 < share <= 1 for share in watch.end().values())
