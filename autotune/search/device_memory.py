"""Watches that a trial starts on clean devices: memory in use is compared with the study's start.

What is more than then belongs either to a trial of ours whose memory comes back in a moment, or
to somebody else. Nobody else's process is ended; it is named, so that the user can see to it, and
a trial that then runs out of memory is the machine's failure, not the configuration's.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pwd
import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final

from autotune.contract.nvml import Gpu, GpuProcess, gpus

SLACK_BYTES: Final = 256 * 1024**2
"""Growth that is not worth a word: the driver's own bookkeeping."""
SETTLE_S: Final = 10.0
"""How long memory of a trial that has ended may take to come back."""
LOOK_S: Final = 0.2


@dataclasses.dataclass(frozen=True, kw_only=True)
class Foreign:
    """Memory on one GPU that was not in use when the study began."""

    gpu: int
    grown_bytes: int
    owners: tuple[str, ...]
    """In words; empty where no process is listed."""

    def __str__(self) -> str:
        who = ", ".join(self.owners) or "a process that is not visible from here"
        return (
            f"GPU {self.gpu} holds {self.grown_bytes / 1024**3:.1f} GiB more than when the search "
            f"began: {who}"
        )


class DeviceMemory:
    """Compares the memory in use with what was in use when this object was made.

    Args:
        uuids: The GPUs that trials use; empty: all.
        read: Asks the driver.
        wait: Sleeps; returns whether to give up waiting.
        settle_s: Longest wait for memory to come back.
    """

    def __init__(
        self,
        uuids: Collection[str] = (),
        *,
        read: Callable[[], tuple[Gpu, ...]] = gpus,
        wait: Callable[[float], bool] = lambda seconds: threading.Event().wait(seconds),
        settle_s: float = SETTLE_S,
    ) -> None:
        self._uuids = frozenset(uuids)
        self._read = read
        self._wait = wait
        self._settle_s = settle_s
        self._start = {gpu.uuid: gpu for gpu in self._look()}

    def settle(self) -> tuple[Foreign, ...]:
        """Wait until the devices are as they were at the start; return what is in the way.

        The wait ends early where a process is listed that was not there at the start: it is not
        ours, for every process of a trial is reaped before the next one.
        """
        deadline = time.monotonic() + self._settle_s
        while True:
            foreign = self.compare()
            listed = any(one.owners for one in foreign)
            if not foreign or listed or time.monotonic() >= deadline or self._wait(LOOK_S):
                return foreign

    def compare(self) -> tuple[Foreign, ...]:
        """Return what is in use now beyond the start."""
        found: list[Foreign] = []
        for gpu in self._look():
            start = self._start.get(gpu.uuid)
            if start is None or gpu.used_bytes < start.used_bytes:
                self._start[gpu.uuid] = gpu  # what has been given back since is missed if retaken
            grown = gpu.used_bytes - (start.used_bytes if start is not None else 0)
            if grown <= SLACK_BYTES:
                continue
            known = {one.pid for one in start.processes} if start is not None else set()
            new = [one for one in gpu.processes if one.pid not in known]
            # Without a newcomer, one that was there has grown.
            owners = new or [one for one in gpu.processes if one.pid in known]
            found.append(
                Foreign(
                    gpu=gpu.index,
                    grown_bytes=grown,
                    owners=tuple(_described(one) for one in owners),
                )
            )
        return tuple(found)

    def _look(self) -> tuple[Gpu, ...]:
        return tuple(gpu for gpu in self._read() if not self._uuids or gpu.uuid in self._uuids)


def _described(process: GpuProcess) -> str:
    """Who a process is, as far as can be seen from here."""
    folder = Path(f"/proc/{process.pid}")
    words = [f"process {process.pid}"]
    with contextlib.suppress(OSError):
        name = (folder / "comm").read_text(errors="replace").strip()
        owner = folder.stat().st_uid
        user = str(owner)
        with contextlib.suppress(KeyError):
            user = pwd.getpwuid(owner).pw_name
        mine = ", yours" if owner == os.getuid() else ""
        words.append(f"({name}, user {user}{mine})")
    if process.used_bytes is not None:
        words.append(f"with {process.used_bytes / 1024**3:.1f} GiB")
    return " ".join(words)
