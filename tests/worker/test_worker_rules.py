"""Pure rules: when to stop, what fits, which kind an exception is."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from support_trials import QUICK, make_plan

from autotune.analysis import windows
from autotune.analysis.timing import Interval
from autotune.backends.base import IncompatibleConfigError
from autotune.contract import hostmemory
from autotune.contract.outcome import ReadBack
from autotune.contract.plan import Racing
from autotune.contract.smallfile import Beat, read_beat
from autotune.errors import EnvironmentFault
from autotune.worker import attestation, failures, heartbeat, memory
from autotune.worker.heartbeat import Heartbeat
from autotune.worker.rendezvous import RendezvousError

RULES = dataclasses.replace(
    QUICK, warmup_max_cycles=4, window_iterations=24, window_s=4.0, interval_share=0.05
)


@pytest.mark.parametrize(
    ("times", "state"),
    [
        ([9.0, 1.0], "no"),
        ([9.0, 1.0, 1.0, 1.0], "no"),
        ([9.0, 8.0, 1.0, 1.0, 1.05, 1.0], "yes"),
        ([9.0, 9.0, 7.0, 7.0, 5.0, 5.0, 3.0, 3.0], "limit"),
    ],
)
def test_warm_up_ends_when_two_cycles_agree(times: list[float], state: str) -> None:
    assert windows.warm(times, 2, RULES) == state


@pytest.mark.parametrize(
    ("times", "verdict"),
    [
        ([1.0, 1.2], "go_on"),
        ([1.0, 1.2, 1.01, 1.2], "done"),
        ([1.0, 1.2, 1.6, 1.7], "done"),
        ([0.1, 0.1, 0.2, 0.2], "go_on"),
        ([0.01, 0.02] * 12, "done"),
    ],
)
def test_the_window_ends_at_the_first_of_three_limits(times: list[float], verdict: str) -> None:
    assert windows.window(times, 2, RULES) == verdict


@pytest.mark.parametrize(
    ("mean", "half", "noise", "slower"),
    [
        (1.05, 0.0, 0.0, False),
        (1.2, 0.0, 0.0, True),
        (1.2, 0.3, 0.0, False),
        (1.2, 0.0, 0.1, False),
        (1.5, 0.1, 0.1, True),
    ],
)
def test_racing_needs_all_three_allowances(
    mean: float, half: float, noise: float, slower: bool
) -> None:
    interval = Interval(mean=mean, low=mean - half, high=mean + half, count=3)
    racing = Racing(best_s_per_it=1.0, noise_share=noise)
    assert windows.clearly_slower(interval, racing) is slower


def test_compile_time_is_what_warm_up_took_beyond_the_steady_time() -> None:
    seconds = windows.compile_seconds([5.0, 2.5, 1.0, 2.0], [1.0, 2.0, 1.0, 2.0], 2)
    assert seconds == pytest.approx(4.5)


class OutOfMemoryError(RuntimeError):
    """Named as torch's."""


class DistBackendError(RuntimeError):
    """Named as torch's."""


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (OutOfMemoryError("Tried to allocate 2.00 GiB"), "oom_device"),
        (RuntimeError("CUDA out of memory. Tried to allocate"), "oom_device"),
        (MemoryError(), "oom_host"),
        (RuntimeError("DefaultCPUAllocator: not enough memory: you tried"), "oom_host"),
        (IncompatibleConfigError("no"), "incompatible"),
        (DistBackendError("NCCL error"), "infra"),
        (RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer"), "infra"),
        (EnvironmentFault("disk"), "infra"),
        (RendezvousError("no rank 0 wrote rendezvous.json within 120 s"), "infra"),
        (RuntimeError("std::bad_alloc"), "oom_host"),
        (KeyboardInterrupt(), "interrupted"),
        (failures.NumericsError("nan"), "numerics"),
        (ValueError("an error in some text about memory"), "crash"),
    ],
)
def test_kinds(error: BaseException, kind: str) -> None:
    assert failures.kind_of(error) == kind


def test_an_endless_message_is_cut() -> None:
    record = failures.rank_error(ValueError("x" * 10**6), phase="build", iteration=None)
    assert len(record.message) <= failures.MAX_TEXT
    assert len(record.traceback) <= failures.MAX_TEXT


def test_resident_peak_follows_allocations() -> None:
    meter = memory.HostMeter(2)
    assert meter.limit_bytes <= hostmemory.available_bytes() * 1.5 / 2
    before = meter.peak_bytes()
    block = bytearray(64 * 1024**2)
    block[::4096] = b"x" * len(block[::4096])
    assert meter.peak_bytes() >= before
    assert meter.peak_bytes() >= 64 * 1024**2
    del block


def test_a_bound_adds_all_that_the_rank_took_since_it_began_grown(tmp_path: Path) -> None:
    status = tmp_path / "self/status"
    status.parent.mkdir()
    (tmp_path / "meminfo").write_text("MemAvailable: 8192 kB\n")
    status.write_text("VmHWM: 300 kB\nVmRSS: 200 kB\n")
    meter = memory.HostMeter(2, proc=tmp_path)
    status.write_text("VmHWM: 500 kB\nVmRSS: 250 kB\n")
    assert meter.at_most(4.0) == (500 + 4 * 300) * 1024
    assert meter.at_most(1.0) == (500 + 300) * 1024


def test_heartbeat_accounts_for_each_phase(tmp_path: Path) -> None:
    heart = Heartbeat(tmp_path / "heartbeat-0.json")
    heart.enter("launch")
    heart.enter("check")
    heart.beat(3)
    heart.enter("measure")
    written = json.loads((tmp_path / "heartbeat-0.json").read_text())
    assert (written["phase"], written["iteration"]) == ("measure", 3)
    assert set(heart.finish()) == {"launch", "check", "measure"}


def test_every_step_is_seen_at_once_by_who_watches(tmp_path: Path) -> None:
    heart = Heartbeat(tmp_path / "heartbeat-0.json")
    heart.enter("check")
    for number in range(1, 4):
        heart.pulse()
        assert read_beat(tmp_path / "heartbeat-0.json").steps == number
    heart.beat(1)
    assert read_beat(tmp_path / "heartbeat-0.json") == Beat(phase="check", iteration=1, steps=4)
    heart.beat(1)  # said again, but nothing moved
    assert read_beat(tmp_path / "heartbeat-0.json").steps == 4
    (tmp_path / "heartbeat-0.json").unlink()
    heart.pulse()
    assert read_beat(tmp_path / "heartbeat-0.json").steps == 5


def test_a_timed_iteration_writes_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "MIN_INTERVAL_S", 0.0)
    file = tmp_path / "heartbeat-0.json"
    heart = Heartbeat(file)
    heart.enter("measure")
    said = file.read_bytes()
    heart.passed(1)
    heart.passed(2)
    assert file.read_bytes() == said
    assert read_beat(file) == Beat(phase="measure", iteration=2, steps=2)
    heart.beat(2)
    assert json.loads(file.read_text())["iteration"] == 2


def test_without_mapped_memory_the_file_says_every_iteration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "MIN_INTERVAL_S", 0.0)
    (tmp_path / "heartbeat-0.progress").mkdir()
    heart = Heartbeat(tmp_path / "heartbeat-0.json")
    heart.enter("measure")
    heart.passed(2)
    assert read_beat(tmp_path / "heartbeat-0.json") == Beat(phase="measure", iteration=2, steps=1)


def test_heartbeat_survives_a_folder_that_is_gone(tmp_path: Path) -> None:
    heart = Heartbeat(tmp_path / "none" / "heartbeat-0.json")
    heart.enter("build")
    assert heart.phase == "build"


def test_a_wanted_knob_that_nobody_reads_is_not_in_effect() -> None:
    plan = make_plan("zero3", verify=("zero3.reduce_bucket_size",))
    with pytest.raises(failures.NotInEffectError, match="could not be read back"):
        attestation.require_in_effect(plan, {}, owners={"zero3"})


def test_a_flag_is_no_number() -> None:
    plan = make_plan("zero3", changes={"zero3.overlap_comm": True})
    entry = {"zero3.overlap_comm": ReadBack(requested=True, actual=1, level="parsed")}
    with pytest.raises(failures.NotInEffectError, match="overlap_comm"):
        attestation.require_in_effect(plan, entry, owners={"zero3"})
