"""Watches one running trial: deadlines, failed peers, the size of its logs, its end.

The server calls :meth:`Trial.tick` a few times a second. The clock is ``time.monotonic``, but for
what the coordinator compares with the ranks' own records, which is ``time.time``.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from typing import Final

from autotune.contract import processes, smallfile
from autotune.contract.folder import AttemptFolder
from autotune.contract.protocol import Event, Exited, Run, Stopping, StopReason
from autotune.worker import logs, sharedmemory
from autotune.worker.pace import Pace

PEER_GRACE_S: Final = 2.0
"""After one rank has failed, the others have this long to end by themselves."""
TERM_GRACE_S: Final = 2.0
"""Between SIGTERM and SIGKILL."""
SWEEP_LIMIT_S: Final = 5.0
MAX_RECORD_BYTES: Final = 64 * 1024 * 1024


class Trial:
    """The processes of one job."""

    def __init__(self, run: Run, folder: AttemptFolder, pids: tuple[int, ...], now: float) -> None:
        self.run = run
        self.folder = folder
        self.pids = pids
        self.exits: dict[int, Exited] = {}
        self.stopped_for: StopReason | None = None
        self._started = now
        self._started_at = time.time()
        self._kill_at: float | None = None
        self._peers_end_at: float | None = None
        self._paces = [Pace(now) for _ in pids]
        self._records_seen: set[int] = set()

    @property
    def pgid(self) -> int:
        """The process group; rank 0 leads it."""
        return self.pids[0]

    @property
    def has_ended(self) -> bool:
        """Whether every rank has ended (and still awaits its reaping)."""
        return len(self.exits) == len(self.pids)

    def collect_exits(self, now: float) -> Iterator[Event]:
        """Note the ranks that have ended since the last call.

        They stay zombies until :meth:`finish`: so the process group keeps its number, and a
        signal to it cannot reach a stranger.
        """
        for rank, pid in enumerate(self.pids):
            if rank in self.exits:
                continue
            result = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if result is None:
                continue
            exited = result.si_code == os.CLD_EXITED
            event = Exited(
                job=self.run.job,
                rank=rank,
                code=result.si_status if exited else None,
                signal=None if exited else result.si_status,
                at=time.time(),
            )
            self.exits[rank] = event
            # One that left no record has failed, even if it ended as if all were well.
            if event.code != 0 or not self.folder.rank_file(rank).exists():
                self._note_failure(now)
            yield event

    def tick(self, now: float) -> Iterator[Event]:
        """Do what is due: trim logs, enforce deadlines, end the peers of a failed rank."""
        for rank in range(len(self.pids)):
            logs.trim(self.folder.log_file(rank))
        if self.has_ended:
            return
        if self.stopped_for is None:
            yield from self._stop_if_due(now)
        elif self._kill_at is not None and now >= self._kill_at:
            self.signal_group(signal.SIGKILL)

    def stop(
        self,
        reason: StopReason,
        now: float,
        *,
        rank: int | None = None,
        limit_s: float | None = None,
    ) -> Iterator[Event]:
        """Begin to end the processes: SIGTERM now, SIGKILL after the grace."""
        if self.stopped_for is None and not self.has_ended:
            self.stopped_for = reason
            self._kill_at = now + TERM_GRACE_S
            at = time.time()
            self.signal_group(signal.SIGTERM)
            # A stopped process (SIGSTOP, or a read from a terminal) takes no SIGTERM.
            self.signal_group(signal.SIGCONT)
            yield Stopping(job=self.run.job, reason=reason, at=at, rank=rank, limit_s=limit_s)

    def signal_group(self, number: int) -> None:
        """Signal every process of the group, and each rank that has left it."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pgid, number)
        for rank in self._live_ranks():
            # Unreaped, its pid is still its own.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                if os.getpgid(self.pids[rank]) != self.pgid:
                    os.kill(self.pids[rank], number)

    def finish(self, spared: frozenset[int], running: frozenset[str]) -> bool:
        """Kill whatever the trial left behind, then reap all of it.

        Args:
            spared: Ranks of other trials.
            running: Jobs of other trials: their stray processes are left alone.

        Returns:
            Whether nothing is left.
        """
        spared |= frozenset(self.pids)
        limit = time.monotonic() + SWEEP_LIMIT_S
        while True:
            self.signal_group(signal.SIGKILL)
            left = set(processes.find_marked(self.run.job)) - set(self.pids)
            # Orphans come to the server; one without another trial's marker is a stray.
            left |= set(_orphans(spared, running))
            processes.kill(left)
            _reap(left)
            if not left or time.monotonic() > limit:
                break
            time.sleep(0.002)
        for pid in self.pids:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
        sharedmemory.give_back(self.pids, since=self._started_at)
        return not left

    def _note_failure(self, now: float) -> None:
        if self._peers_end_at is None:
            self._peers_end_at = now + PEER_GRACE_S

    def _stop_if_due(self, now: float) -> Iterator[Event]:
        self._look_for_failed_records(now)
        if self._peers_end_at is not None and now > self._peers_end_at:
            yield from self.stop("peer_failed", now)
            return
        stuck = self._stuck_rank(now)
        if stuck is not None:
            rank, limit_s = stuck
            yield from self.stop("hang", now, rank=rank, limit_s=limit_s)
        elif now - self._started > self.run.total_s:
            yield from self.stop("timeout", now, limit_s=self.run.total_s)

    def _stuck_rank(self, now: float) -> tuple[int, float] | None:
        """The rank that holds up the trial, and the limit passed, once some rank passed its own.

        A rank that waits for another in a collective stands still as well. The one that came
        least far is named; of equals the one that stopped first.
        """
        passed: list[float] = []
        live = list(self._live_ranks())
        for rank in live:
            pace = self._paces[rank]
            pace.look(smallfile.read_beat(self.folder.heartbeat_file(rank)), now)
            limit = pace.limit_s(self.run.phase_s)
            if limit is not None and now - pace.since > limit:
                passed.append(limit)
        if not passed:
            return None
        paces = self._paces
        return min(live, key=lambda rank: (paces[rank].beat.progress, paces[rank].since)), passed[0]

    def _look_for_failed_records(self, now: float) -> None:
        for rank in self._live_ranks():
            path = self.folder.rank_file(rank)
            if rank in self._records_seen or not path.exists():
                continue
            self._records_seen.add(rank)
            record = smallfile.read_object(path, MAX_RECORD_BYTES)
            if record is None or record.get("status") == "failed":
                self._note_failure(now)

    def _live_ranks(self) -> Iterator[int]:
        return (rank for rank in range(len(self.pids)) if rank not in self.exits)


def _orphans(spared: frozenset[int], running: frozenset[str]) -> Iterator[int]:
    for pid in processes.children():
        if pid not in spared and processes.marker_of(pid) not in running:
            yield pid


def _reap(pids: set[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
