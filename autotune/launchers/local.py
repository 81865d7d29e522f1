"""Runs trials on this machine, through a fork server (``autotune/worker/server.py``).

The server is started from an argument list, in a session of its own: a Ctrl-C in the terminal
reaches the coordinator alone. It talks over a socket pair, which has no path and so no limit on
the length of one. It enforces the deadlines; this side only watches that the server lives.

One thread uses a launcher. If that is the main thread, the kernel also kills the server when
the coordinator dies; else the server learns it from the end of the stream.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import time
import uuid
from pathlib import Path
from typing import Final, Literal

from autotune import registry
from autotune.contract import jsonfile, processes, protocol, smallfile
from autotune.contract.failures import PHASES, Phase
from autotune.contract.folder import AttemptFolder, StudyFolder
from autotune.contract.plan import CommandWorkload, Plan
from autotune.errors import EnvironmentFault
from autotune.launchers import environment as environments
from autotune.launchers.base import JobStatus, RankExit
from autotune.launchers.server_process import PACKAGE_ROOT, ServerLostError, ServerProcess

ENTRY: Final = "autotune.worker.session:run_rank"
COLD_ENTRY: Final = "autotune.worker"
COMMAND_ENTRY: Final = "autotune.worker.command"
"""The one process that autotune starts for a command; it imports no engine, so it starts cold."""
START_LIMIT_S: Final = 300.0
"""For the server's imports: about 15 s on a GPU host, much more from a cold network disk."""
MAX_RESTARTS: Final = 2
"""Servers that may be lost one after another, with no trial ended in between."""
BACKSTOP_S: Final = 30.0
"""Beyond the total deadline: then the server itself is taken to hang, and is replaced."""
CANCEL_LIMIT_S: Final = 15.0
DROPPED_FILE: Final = "dropped-environment.json"


@dataclasses.dataclass(kw_only=True)
class _Job:
    folder: AttemptFolder
    num_ranks: int
    total_s: float
    submitted_at: float
    started_s: float
    """``time.monotonic()`` at submission."""
    server: ServerProcess
    exits: dict[int, RankExit] = dataclasses.field(default_factory=dict)
    stopped_for: protocol.StopReason | None = None
    ended_s: float | None = None
    problem: str | None = None


class LocalLauncher:
    """Trials as processes of this machine.

    Args:
        study: Folder of the study; the server's log goes there.
        processes: Ranks per trial.
        device: ``cpu`` keeps every process off the machine's accelerators.
        warm: Whether ranks are forked from a process that has imported everything. ``False``
            starts an interpreter per rank, for comparison.
        backends: Whose modules to import; empty: all registered ones.
        entry: What a rank runs; for tests. ``module:function``, a module name when cold.
        start_limit_s: How long the server may take to start.
    """

    def __init__(
        self,
        study: StudyFolder,
        processes: int,
        device: Literal["cpu", "cuda"],
        warm: bool = True,
        *,
        backends: tuple[str, ...] = (),
        entry: str | None = None,
        start_limit_s: float = START_LIMIT_S,
    ) -> None:
        self._study = study
        self._processes = processes
        self._device = device
        self._warm = warm
        self._backends = backends or registry.names("backends")
        self._entry = entry
        self._start_limit_s = start_limit_s
        self._servers: dict[bool, ServerProcess] = {}
        self._jobs: dict[str, _Job] = {}
        self._lost_in_a_row = 0

    @property
    def ready(self) -> protocol.Ready | None:
        """What the running server said when it had started."""
        server = self._servers.get(self._warm)
        return None if server is None else server.ready

    def start(self) -> str | None:
        """Start the server and wait until it has imported everything.

        Where it may not fork, ranks are started cold instead, and the answer says why.

        Raises:
            EnvironmentFault: It does not start; with the end of its log.
        """
        self._server(self._warm)
        reason = None if self.ready is None else self.ready.no_fork
        if reason is None:
            return None
        self._servers.pop(True).close()
        self._warm = False
        self._server(False)
        return f"each trial imports its libraries anew, which takes seconds: {reason}"

    def submit(self, folder: AttemptFolder, plan: Plan) -> str:
        """Start the ranks of ``plan`` and return the job's id.

        Raises:
            EnvironmentFault: The attempt folder cannot be written, or no server can be had.
        """
        path = folder.path.absolute()
        shared, dropped = environments.child_environment(os.environ, plan, cores=_usable_cores())
        shared = environments.with_caches(shared, self._study.path.parent)
        shared = environments.with_package(shared, PACKAGE_ROOT)
        jsonfile.write_json(path / DROPPED_FILE, {"names": list(dropped)})
        # A value that a preloaded library has already read would not take effect in a fork.
        is_command = isinstance(plan.workload, CommandWorkload)
        warm = self._warm and not is_command and not environments.read_at_import(plan)
        job = uuid.uuid4().hex
        server = self._server(warm)
        submitted_at, started_s = time.time(), time.monotonic()
        server.send(
            protocol.Run(
                job=job,
                folder=str(path),
                processes=plan.num_launched,
                environment=shared,
                entry=COMMAND_ENTRY if is_command else self._entry_for(warm),
                total_s=plan.deadlines.total_s,
                phase_s=plan.deadlines.phase_s,
            )
        )
        self._jobs[job] = _Job(
            folder=AttemptFolder(path),
            num_ranks=plan.num_launched,
            total_s=plan.deadlines.total_s,
            submitted_at=submitted_at,
            started_s=started_s,
            server=server,
        )
        return job

    def poll(self, job: str, *, timeout_s: float = 0.0) -> JobStatus:
        """Return the state, waiting up to ``timeout_s`` seconds for the job to end.

        Raises:
            EnvironmentFault: The ranks could not be started.
        """
        entry = self._jobs[job]
        deadline = time.monotonic() + timeout_s
        while entry.ended_s is None:
            left = deadline - time.monotonic()
            self._take_events(entry.server, max(0.0, min(left, 1.0)))
            self._watch_server(entry)
            if left <= 0:
                break
        if entry.problem is not None:
            raise EnvironmentFault(
                f"the ranks could not be started: {entry.problem}",
                hint="look for limits on processes or memory (ulimit -u, cgroup)",
            )
        return self._status(entry)

    def cancel(self, job: str) -> None:
        """End the job's processes; returns when all are reaped."""
        entry = self._jobs[job]
        if entry.ended_s is None:
            entry.server.send(protocol.Kill(job=job, signal=signal.SIGTERM))
            status = self.poll(job, timeout_s=CANCEL_LIMIT_S)
            if status.state == "running":
                self._lose(entry.server)
                entry.stopped_for = "cancelled"

    def close(self) -> None:
        """End all jobs and the servers. Safe to call twice."""
        for server in list(self._servers.values()):
            server.close()
        self._servers.clear()
        now = time.monotonic()
        for job, entry in self._jobs.items():
            if entry.ended_s is None:
                processes.kill_marked(job, limit_s=5.0)
                entry.stopped_for = entry.stopped_for or "cancelled"
                entry.ended_s = now

    def _entry_for(self, warm: bool) -> str:
        if self._entry is None:
            return ENTRY if warm else COLD_ENTRY
        return self._entry if warm else self._entry.partition(":")[0]

    def _server(self, warm: bool) -> ServerProcess:
        server = self._servers.get(warm)
        if server is not None:
            self._take_events(server, 0.0)
            if server.is_alive:
                return server
            self._lose(server)
        if self._lost_in_a_row > MAX_RESTARTS:
            raise EnvironmentFault(
                f"the fork server died {self._lost_in_a_row} times in a row",
                hint=f"its log: {self._log(warm)}; the kernel's log may name an OOM kill",
            )
        server = ServerProcess(
            log=self._log(warm),
            environment=environments.with_caches(
                environments.server_environment(
                    os.environ, device=self._device, package_root=PACKAGE_ROOT
                ),
                self._study.path.parent,
            ),
            arguments=self._server_arguments(warm),
        )
        server.start(self._start_limit_s)
        self._servers[warm] = server
        return server

    def _server_arguments(self, warm: bool) -> list[str]:
        if not warm:
            return ["--cold"]
        arguments = [f"--backend={name}" for name in self._backends]
        module = self._entry_for(warm).partition(":")[0]
        return [*arguments, f"--module={module}"]

    def _log(self, warm: bool) -> Path:
        return self._study.path / ("server.log" if warm else "server-cold.log")

    def _watch_server(self, entry: _Job) -> None:
        age = time.monotonic() - entry.started_s
        overdue = age > entry.total_s + BACKSTOP_S
        if entry.ended_s is None and (overdue or not entry.server.is_alive):
            # What the server said before it died still counts.
            self._take_events(entry.server, 0.0)
            self._lose(entry.server)

    def _lose(self, server: ServerProcess) -> None:
        """Give up a server: it and all ranks of its jobs end here."""
        server.kill()
        for warm, known in list(self._servers.items()):
            if known is server:
                del self._servers[warm]
                self._lost_in_a_row += 1
        for job, entry in self._jobs.items():
            if entry.server is server and entry.ended_s is None:
                processes.kill_marked(job, limit_s=5.0)
                entry.stopped_for = "server_lost"
                entry.ended_s = time.monotonic()

    def _take_events(self, server: ServerProcess, timeout_s: float) -> None:
        try:
            for event in server.receive(timeout_s):
                self._apply(event)
        except ServerLostError:
            self._lose(server)

    def _apply(self, event: protocol.Event) -> None:
        job = None if isinstance(event, protocol.Ready) else event.job
        entry = self._jobs.get(job) if job is not None else None
        if entry is None:
            return
        if isinstance(event, protocol.Exited):
            entry.exits[event.rank] = RankExit(
                rank=event.rank, exit_code=event.code, signal=event.signal
            )
        elif isinstance(event, protocol.Stopping):
            entry.stopped_for = event.reason
        elif isinstance(event, protocol.Ended):
            entry.stopped_for = event.stopped_for
            entry.ended_s = event.at_s
            self._lost_in_a_row = 0
        elif isinstance(event, protocol.Problem):
            entry.problem = event.message
            entry.ended_s = time.monotonic()

    def _status(self, entry: _Job) -> JobStatus:
        ended = entry.ended_s is not None
        until = entry.ended_s if entry.ended_s is not None else time.monotonic()
        return JobStatus(
            state="ended" if ended else "running",
            phase=self._phase(entry),
            exits=tuple(entry.exits[rank] for rank in sorted(entry.exits)),
            stopped_for=entry.stopped_for,
            submitted_at=entry.submitted_at,
            wall_s=until - entry.started_s,
        )

    def _phase(self, entry: _Job) -> Phase:
        ranks = range(entry.num_ranks)
        phases = [smallfile.read_phase(entry.folder.heartbeat_file(rank)) for rank in ranks]
        return min(phases, key=PHASES.index)


def _usable_cores() -> int:
    return len(os.sched_getaffinity(0))
