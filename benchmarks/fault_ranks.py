"""What a rank does in ``faults.py``: the real trial, with one fault planted in it.

Started by a fork server as the entry ``fault_ranks:run_rank``. ``fault.json`` in the attempt folder
says which rank fails, how, and in which iteration (or while the engine is built).
"""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from autotune.backends.base import Engine, RankContext
    from autotune.contract.plan import Plan

STUBBORN = (
    "import signal, sys, time\n"
    "for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):\n"
    "    signal.signal(number, signal.SIG_IGN)\n"
    "print('ready', flush=True)\n"
    "time.sleep(100000)\n"
)
DAMAGED = {
    "empty": b"",
    "cut": b'{"schema_version": 1, "rank": 0, "pi',
    "pickle": b"\x80\x04\x95\x0b\x00\x00\x00\x00\x00\x00\x00\x8c\x02os\x94.",
    "nan": b'{"schema_version": NaN}',
    "other": b'{"schema_version": 1, "rank": 7}',
}


def run_rank(folder: Path, rank: int) -> int:
    """Run rank ``rank`` of the trial in ``folder``."""
    from autotune.contract.folder import AttemptFolder
    from autotune.worker import session

    fault = json.loads((folder / "fault.json").read_text())
    name, _, variant = fault["name"].partition(":")
    if rank != fault["rank"] or name == "none":
        return session.run_rank(folder, rank)
    if name == "corrupt":
        code = session.run_rank(folder, rank)
        note_moment(folder)
        AttemptFolder(folder).rank_file(rank).write_bytes(DAMAGED[variant])
        return code
    plant(lambda: act(folder, name, variant), fault["where"])
    return session.run_rank(folder, rank)


def plant(fail: Callable[[], None], where: int | str) -> None:
    """Call ``fail`` before the given step of the engine, or before the engine is built."""
    from autotune.backends.ddp import DdpBackend

    original = DdpBackend.build

    def build(self: DdpBackend, plan: Plan, rank: RankContext) -> Engine:
        if where == "build":
            fail()
        engine = original(self, plan, rank)
        step, number = engine.step, itertools.count()

        def faulty_step() -> torch.Tensor | float:
            if next(number) == where:
                fail()
            return step()

        engine.step = faulty_step  # type: ignore[method-assign]
        return engine

    DdpBackend.build = build  # type: ignore[method-assign]  # in this process alone


def note_moment(folder: Path) -> None:
    (folder / "planted").write_text(str(time.time()))


def act(folder: Path, name: str, variant: str) -> None:
    """Fail."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    note_moment(folder)
    if name == "signal":
        die_by(variant)
    elif name == "hang":
        hang(variant)
    elif name == "exit":
        os._exit(int(variant))
    elif name == "memory":
        run_out(variant)
    elif name == "server":
        os.kill(os.getppid(), getattr(signal, variant))
        hang("asleep")  # or the trial would end well before its server is missed
    elif name == "grandchild":
        leave_grandchildren(folder)
        if variant == "raise":
            raise RuntimeError("planted beside grandchildren")
    else:
        raise RuntimeError("planted")


def die_by(variant: str) -> None:
    if variant == "SIGSEGV":
        ctypes.string_at(0)  # a real one
    os.kill(os.getpid(), getattr(signal, variant))
    time.sleep(60)


def hang(variant: str) -> None:
    if variant == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif variant == "locked":
        # With the interpreter's lock held no thread of this rank can answer a signal.
        ctypes.PyDLL(None).sleep(100_000)
    while True:
        time.sleep(1000)


def run_out(variant: str) -> None:
    import torch

    if variant == "host":
        torch.empty(2**50)  # a real one
    if variant == "allocator":
        raise torch.OutOfMemoryError(
            "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of "
            "79.11 GiB of which 1.20 GiB is free."
        )
    if variant == "nccl":
        raise torch.distributed.DistBackendError(
            "NCCL error in: ProcessGroupNCCL.cpp:3782, unhandled cuda error, NCCL version 2.28.9\n"
            "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\n"
            "Cuda failure 2 'out of memory'"
        )
    raise RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`")


def leave_grandchildren(folder: Path) -> None:
    """One that is executed in a session of its own, and one that is forked and orphaned there."""
    executed = subprocess.Popen(
        [sys.executable, "-S", "-c", STUBBORN], start_new_session=True, stdout=subprocess.PIPE
    )
    assert executed.stdout is not None
    executed.stdout.readline()
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.setsid()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        if os.fork() == 0:
            os.write(writer, str(os.getpid()).encode())
            time.sleep(100_000)
        os._exit(0)
    forked = int(os.read(reader, 32))
    (folder / "grandchildren.json").write_text(json.dumps([executed.pid, forked]))
