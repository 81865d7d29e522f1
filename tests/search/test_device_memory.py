"""What is on the devices beside our trials: compared, named, never ended."""

from __future__ import annotations

import dataclasses
import os

from scripted import Act, Bench, by_micro_batch

from autotune.contract.nvml import Gpu, GpuProcess
from autotune.search import history, launching
from autotune.search.device_memory import DeviceMemory
from autotune.search.interrupts import Interrupts
from autotune.search.launching import Runner

GIB = 1024**3
CLEAN = Gpu(index=0, name="H200", uuid="GPU-a", total_bytes=140 * GIB, used_bytes=GIB)
ME = GpuProcess(pid=os.getpid(), used_bytes=20 * GIB)


def taken(*processes: GpuProcess, used_bytes: int = 21 * GIB) -> Gpu:
    return dataclasses.replace(CLEAN, used_bytes=used_bytes, processes=processes)


class Driver:
    """Answers as scripted, the last answer for ever."""

    def __init__(self, *answers: Gpu) -> None:
        self.answers = list(answers)
        self.asked = 0

    def __call__(self) -> tuple[Gpu, ...]:
        self.asked += 1
        return (self.answers.pop(0) if len(self.answers) > 1 else self.answers[0],)


def memory(driver: Driver, **options) -> DeviceMemory:
    return DeviceMemory(read=driver, wait=lambda seconds: False, **options)


def test_clean_devices_cost_one_look() -> None:
    driver = Driver(CLEAN)
    assert memory(driver).settle() == ()
    assert driver.asked == 2


def test_memory_that_comes_back_in_a_moment_is_waited_for() -> None:
    driver = Driver(CLEAN, taken(), taken(used_bytes=3 * GIB), CLEAN)
    assert memory(driver).settle() == ()
    assert driver.asked == 4


def test_a_newcomer_is_named_at_once_and_lives_on() -> None:
    driver = Driver(CLEAN, taken(ME))
    (found,) = memory(driver).settle()
    assert driver.asked == 2
    assert found.grown_bytes == 20 * GIB
    assert f"process {os.getpid()} (" in str(found)
    assert ", yours) with 20.0 GiB" in str(found)
    assert str(found).startswith("GPU 0 holds 20.0 GiB more than when the search began")


def test_who_was_there_at_the_start_is_no_newcomer() -> None:
    start = taken(ME)
    assert memory(Driver(start)).settle() == ()
    grown = taken(ME, GpuProcess(pid=1, used_bytes=None), used_bytes=31 * GIB)
    (found,) = memory(Driver(start, grown)).settle()
    assert found.grown_bytes == 10 * GIB
    assert len(found.owners) == 1
    assert found.owners[0].startswith("process 1 (")


def test_memory_of_no_listed_process_is_said_to_be_that() -> None:
    (found,) = memory(Driver(CLEAN, taken()), settle_s=0.0).settle()
    assert "not visible from here" in str(found)


def test_room_that_others_gave_back_is_missed_when_it_is_taken_again() -> None:
    watch = memory(Driver(taken(ME), CLEAN, taken(ME)))
    assert watch.settle() == ()
    assert watch.settle()[0].grown_bytes == 20 * GIB


def test_other_devices_do_not_matter() -> None:
    assert memory(Driver(CLEAN, taken(ME)), uuids=["GPU-b"]).settle() == ()


def test_running_out_of_memory_beside_another_program_is_the_machines_failure(
    bench: Bench, monkeypatch
) -> None:
    """It teaches nothing of the configuration, and the trial is launched again."""
    driver = Driver(CLEAN, CLEAN)
    original = Runner.__init__

    def init(self, **arguments) -> None:
        original(self, **arguments | {"devices": lambda: memory(driver)})

    monkeypatch.setattr(Runner, "__init__", init)
    monkeypatch.setattr(launching, "BACK_OFF_S", 0.0)
    failing = iter([True])

    def script(plan) -> Act:
        if plan.number == 2 and next(failing, False):
            driver.answers = [taken(ME), CLEAN]  # after it, and before the next
            return Act(error="CUDA out of memory", kind="oom_device")
        return by_micro_batch(plan)

    result = bench.search(script, trials=4, interrupts=Interrupts())
    trial = result.contents.trial(2)
    assert trial is not None
    kinds = [a.outcome.failure.kind if a.outcome.failure else None for a in trial.attempts]
    assert kinds == ["infra", None]
    assert f"process {os.getpid()}" in trial.attempts[0].outcome.failure.reason
    assert history.counted(result.contents) == 4
