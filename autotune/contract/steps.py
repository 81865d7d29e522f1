"""Steps that a program of the user's own reports: written by its ranks, read by the worker.

Each rank appends to a file of its own in the trial's folder, ``steps-RANK-PID.jsonl``: first who it
is, then one line a step. This module is what ``from autotune import report_step`` loads in the
user's training process, so it needs the standard library only.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import math
import os
import sys
import time
from pathlib import Path
from typing import Any, Final, Self

from autotune.contract import smallfile

FOLDER: Final = "AUTOTUNE_TRIAL_DIR"
"""Variable with the folder of the trial; unset outside a trial."""
ITERATIONS: Final = "AUTOTUNE_ITERATIONS"
"""Variable with the number of steps after which autotune certainly ends the program."""
SYNCHRONISE_EVERY: Final = "AUTOTUNE_SYNCHRONISE_EVERY"
"""Variable with the number of steps between two waits for the device: windows begin and end there,
and in between the host may run ahead of it as it does without autotune."""
PATTERN: Final = "steps-*-*.jsonl"
_PLACES: Final = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    # Only inside a step: SLURM_NTASKS alone is the size of the allocation.
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)
"""Variables with a process's rank and the number of ranks, of the launchers that set both."""
_STATUS: Final = "/proc/self/status"


def report_step(*, loss: Any = None, grad_norm: Any = None) -> None:
    """Tell autotune that an optimizer step has just ended; outside a trial this does nothing.

    Call it on every rank after each step. What lies between two calls is one iteration; the first
    call only marks where the second iteration begins, so start-up and compilation are not timed.
    On a GPU it waits for the device once in as many calls as a timed window's unit has.

    Args:
        loss: Mean loss over the global batch, a number or a tensor of one element (which waits
            for the device). Give it where runs are reproducible: then every trial's first losses
            must be those of the baseline.
        grad_norm: Global gradient norm before clipping, likewise.
    """
    folder = os.environ.get(FOLDER)
    if folder is None:
        return
    _wait_for_device()
    line: dict[str, Any] = {"at": time.monotonic()}
    if loss is not None:
        line["loss"] = float(loss)
    if grad_norm is not None:
        line["grad_norm"] = float(grad_norm)
    line["resident"] = _resident_bytes()
    device = _device_bytes()
    if device is not None:
        line["device"], line["device_limit"] = device
    os.write(_file(folder, os.getpid()), _line(line))


def _line(data: dict[str, Any]) -> bytes:
    return json.dumps(data, separators=(",", ":")).encode("ascii") + b"\n"


@functools.cache
def _file(folder: str, pid: int) -> int:
    """Open this process's file and say who it is; a forked process has one of its own."""
    rank, world_size = _place()
    path = Path(folder, f"steps-{rank}-{pid}.jsonl")
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    handle = os.open(path, flags, 0o666)
    os.write(handle, _line({"rank": rank, "world_size": world_size}))
    return handle


def _place() -> tuple[int, int | None]:
    """This process's rank and the number of ranks; 0 and ``None`` where no launcher says it."""
    for rank, size in _PLACES:
        texts = os.environ.get(rank, ""), os.environ.get(size, "")
        if texts[0].isdecimal():
            return int(texts[0]), int(texts[1]) if texts[1].isdecimal() else None
    return 0, None


_counter = itertools.count()


def _wait_for_device() -> None:
    """At the ends of cycles, for else work of one window would be done in the next."""
    every = os.environ.get(SYNCHRONISE_EVERY, "")
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    due = every.isdecimal() and int(every) > 0 and next(_counter) % int(every) == 0
    if due and cuda is not None and cuda.is_initialized():
        cuda.synchronize()


def _resident_bytes() -> int:
    """Largest resident size so far (proc(5), ``VmHWM``); 0 where it cannot be read."""
    try:
        with open(_STATUS, encoding="ascii") as file:  # noqa: PTH123 - quicker, in a measured loop
            for line in file:
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        return 0
    return 0


def _device_bytes() -> tuple[int, int] | None:
    """Peak of torch's allocator and the device's memory, if this process uses torch on a GPU."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return None
    device = cuda.current_device()
    total = int(cuda.get_device_properties(device).total_memory)
    return int(cuda.max_memory_reserved(device)), total


@dataclasses.dataclass(frozen=True, kw_only=True)
class Step:
    """One reported step of one rank."""

    at: float
    """``time.monotonic()`` at its end (s); the clock is the machine's, not the process's."""
    loss: float | None = None
    grad_norm: float | None = None
    resident: int = 0
    """Largest resident size of the process so far (bytes)."""
    device: int | None = None
    """Peak of torch's allocator on the device so far (bytes)."""
    device_limit: int | None = None
    """The device's memory (bytes)."""

    @property
    def is_finite(self) -> bool:
        """Whether no reported number is NaN or infinite."""
        numbers = (self.at, self.loss, self.grad_norm)
        return all(number is None or math.isfinite(number) for number in numbers)


class StepFile:
    """Reads what one rank appends, from where it stopped reading before."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self.rank: int | None = None
        """``None`` until the first line is there."""
        self.world_size: int | None = None
        """As the rank's environment says it; ``None`` where it does not."""
        self.steps: list[Step] = []

    def read(self) -> Self:
        """Take up whole lines that were appended; an unfinished one waits for the next call.

        Raises:
            ValueError: A line is none of ours, or the file cannot be read.
        """
        try:
            with smallfile.open_plain(self._path) as file:
                file.seek(self._offset)
                whole, newline, _ = file.read().rpartition(b"\n")
        except FileNotFoundError:
            return self
        except OSError as error:
            raise ValueError(str(error)) from error
        self._offset += len(whole) + len(newline)
        for line in whole.splitlines():
            self._take(line)
        return self

    def _take(self, line: bytes) -> None:
        data = json.loads(line)
        if not isinstance(data, dict):
            raise ValueError(f"{self._path.name} has a line that report_step did not write")
        try:
            if self.rank is None:
                self.rank, self.world_size = int(data["rank"]), data["world_size"]
            else:
                self.steps.append(Step(**data))
        except (TypeError, KeyError) as error:
            raise ValueError(f"{self._path.name}: {error}") from error
