"""The one record that a launched process leaves, whatever ends it."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from typing import Final

from autotune.contract.extensions import ExtensionBuild
from autotune.contract.folder import AttemptFolder
from autotune.contract.kernels import KernelCheck
from autotune.contract.outcome import RankError, RankMeasurement, RankRecord, RankStatus
from autotune.errors import AutotuneError, EnvironmentFault
from autotune.worker.heartbeat import Heartbeat

DONE: Final = 0
FAILED: Final = 1
UNWRITABLE: Final = EnvironmentFault.exit_code
TERMINATED: Final = 143
"""Exit code of a process that SIGTERM ended."""


class RankRecorder:
    """Writes ``rank-N.json`` once: the first to come decides what this process says."""

    def __init__(self, folder: AttemptFolder, rank: int, heart: Heartbeat) -> None:
        self._folder = folder
        self._rank = rank
        self._heart = heart
        self._started_at = time.time()
        self._lock = threading.Lock()
        self._recorded = False
        self.digest = ""
        """Of the plan, once it is read."""

    def write(
        self,
        status: RankStatus,
        *,
        measurement: RankMeasurement | None = None,
        kernel: KernelCheck | None = None,
        extension: ExtensionBuild | None = None,
        error: RankError | None = None,
    ) -> int:
        """Write the record and return the process's exit code."""
        with self._lock:
            if self._recorded:
                return FAILED
            self._recorded = True
            record = RankRecord(
                rank=self._rank,
                pid=os.getpid(),
                plan_digest=self.digest,
                status=status,
                phase=self._heart.phase,
                started_at=self._started_at,
                ended_at=time.time(),
                phase_s=self._heart.finish(),
                error=error,
                measurement=measurement,
                kernel=kernel,
                extension=extension,
            )
            try:
                self._folder.write_rank(record)
            except AutotuneError as problem:
                with contextlib.suppress(OSError):
                    print(f"rank {self._rank} left no record: {problem}", file=sys.stderr)
                return UNWRITABLE
        return DONE if error is None else FAILED
