"""What a rank does in ``gpu_trials.py``: the real trial, with one fault planted in it.

Started by a fork server as the entry ``gpu_ranks:run_rank``. ``fault.json`` in the attempt folder
says which rank fails, and how.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from autotune.backends.base import Engine, RankContext
    from autotune.contract.plan import Plan
    from autotune.worker.step import Iteration

STEP = 2
"""Faults come in the third step: two iterations are completed then."""
GIB = 1024**3


def run_rank(folder: Path, rank: int) -> int:
    """Run the real rank with the fault that ``fault.json`` names planted in it."""
    from autotune.worker import session

    fault = json.loads((folder / "fault.json").read_text())
    if fault["name"] != "none" and rank == fault["rank"]:
        plant(lambda: ACTS[fault["name"]](folder))
    return session.run_rank(folder, rank)


def plant(act: Callable[[], None]) -> None:
    """Act before the engine's update of the third step, when the peers go on to a collective."""
    from autotune.backends.ddp import DdpBackend

    original = DdpBackend.build

    def build(self: DdpBackend, plan: Plan, rank: RankContext) -> Engine:
        engine = original(self, plan, rank)
        step, number = engine.step, itertools.count()

        def planted() -> torch.Tensor | float:
            if next(number) == STEP:
                act()
            return step()

        engine.step = planted  # type: ignore[method-assign]
        return engine

    DdpBackend.build = build  # type: ignore[method-assign]  # in this process alone


def note_moment(folder: Path) -> None:
    (folder / "planted").write_text(str(time.time()))


def run_out(folder: Path) -> None:
    """Fill the device until the allocator itself raises; without a device, ask for too much."""
    import torch

    note_moment(folder)
    if not torch.cuda.is_available():
        torch.empty(2**50)
    held = [torch.empty(GIB, dtype=torch.uint8, device="cuda") for _ in range(10_000)]
    raise AssertionError(f"{len(held)} GiB fitted")


def be_killed(folder: Path) -> None:
    note_moment(folder)
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


def stand_still(folder: Path) -> None:
    note_moment(folder)
    time.sleep(100_000)


def squeeze(folder: Path) -> None:
    """Make the allocator give its cache back to go on, as a step that only just fits does.

    Later, in the timed window: from here on each step takes what it took, and a block that fits
    only once the cached one is given back.
    """
    import torch

    note_moment(folder)
    free, _ = torch.cuda.mem_get_info()
    from autotune.worker.measure import Meter

    measure = Meter.measure

    def squeezed(self: Meter) -> None:
        stepper = self._stepper
        step = stepper.iterate

        def iterate(index: int) -> Iteration:
            stepper.iterate = step  # type: ignore[method-assign]
            for share in (0.55, 0.65):
                block = torch.empty(int(free * share), dtype=torch.uint8, device="cuda")
                del block
            torch.cuda.synchronize()
            return step(index)

        stepper.iterate = iterate  # type: ignore[method-assign]
        measure(self)

    Meter.measure = squeezed  # type: ignore[method-assign]  # in this process alone


ACTS: dict[str, Callable[[Path], None]] = {
    "oom": run_out,
    "kill": be_killed,
    "hang": stand_still,
    "squeeze": squeeze,
}
