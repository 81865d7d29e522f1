"""Runs trials on this machine, through a fork server (``autotune/worker/server.py``).

The server is started from an argument list, in a session of its own: a Ctrl-C in the terminal
reaches the coordinator alone. It talks over a socket pair, which has no path and so no limit on
the length of one. It enforces the deadlines; this side watches the server:

- one that dies, or does not answer for :data:`SILENCE_S`, is killed with its ranks and replaced;
  the trial is the machine's fault and is launched again;
- one whose ranks died or hung before they came to run anything may be unsound itself, and is
  replaced before the next trial;
- one that may not fork is replaced once; then ranks are started cold.

One thread uses a launcher. If that is the main thread, the kernel also kills the server when
the coordinator dies; else the server learns it from the end of the stream. A launcher expects that
nobody else runs trials of the same study folder: what carries its mark at the start is ended.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import time
import uuid
from typing import Final, Literal

from autotune import registry
from autotune.contract import jsonfile, processes, protocol, smallfile
from autotune.contract.failures import PHASES, Phase
from autotune.contract.folder import AttemptFolder, StudyFolder
from autotune.contract.plan import CommandWorkload, Plan
from autotune.errors import EnvironmentFault
from autotune.launchers import environment as environments
from autotune.launchers.base import JobStatus, RankExit
from autotune.launchers.server_pool import COLD, ServerKind, ServerPool, TooManyLostError
from autotune.launchers.server_process import PACKAGE_ROOT, ServerLostError, ServerProcess

ENTRY: Final = "autotune.worker.session:run_rank"
COLD_ENTRY: Final = "autotune.worker"
COMMAND_ENTRY: Final = "autotune.worker.command"
"""The one process that autotune starts for a command; it imports no engine, so it starts cold."""
START_LIMIT_S: Final = 300.0
"""For the server's imports: about 15 s on a GPU host, much more from a cold network disk."""
SILENCE_S: Final = 30.0
"""A server that does not answer for so long hangs. It may sweep for 5 s, and forks in
milliseconds."""
BACKSTOP_S: Final = 30.0
"""Beyond the total deadline: then the server itself is taken to hang, and is replaced."""
CANCEL_LIMIT_S: Final = 15.0
STRAY_GRACE_S: Final = 8.0
"""How long a server whose coordinator was killed may take to end its trials."""
DROPPED_FILE: Final = "dropped-environment.json"


@dataclasses.dataclass(kw_only=True)
class _Job:
    plan: Plan
    folder: AttemptFolder
    kind: ServerKind
    server: ServerProcess
    submitted_at: float
    started_s: float
    """``time.monotonic()`` at submission."""
    exits: dict[int, RankExit] = dataclasses.field(default_factory=dict)
    stopping: protocol.Stopping | None = None
    stopped_for: protocol.StopReason | None = None
    ended_s: float | None = None
    refusals: int = 0
    """How often a server said that it could not start the ranks."""
    problem: str | None = None
    notes: list[str] = dataclasses.field(default_factory=list)

    @property
    def num_ranks(self) -> int:
        return self.plan.num_launched


class LocalLauncher:
    """Trials as processes of this machine.

    Args:
        study: Folder of the study; the server's log goes there.
        processes: Ranks per trial.
        device: ``cpu`` keeps every process off the machine's accelerators.
        warm: Whether ranks are forked from a process that has imported everything. ``False``
            starts an interpreter per rank, for comparison.
        backends: Whose modules to import; empty: all registered ones.
        modules: What else to import, such as a package that only some workloads need.
        entry: What a rank runs; for tests. ``module:function``, a module name when cold.
        start_limit_s: How long the server may take to start.
        silence_s: How long a server may owe an answer.
    """

    def __init__(
        self,
        study: StudyFolder,
        processes: int,
        device: Literal["cpu", "cuda"],
        warm: bool = True,
        *,
        backends: tuple[str, ...] = (),
        modules: tuple[str, ...] = (),
        entry: str | None = None,
        start_limit_s: float = START_LIMIT_S,
        silence_s: float = SILENCE_S,
    ) -> None:
        self._study = study
        self._processes = processes
        self._warm = warm
        self._backends = backends or registry.names("backends")
        self._modules = modules
        self._entry = entry
        self._silence_s = silence_s
        self._jobs: dict[str, _Job] = {}
        self._unsound: set[ServerProcess] = set()
        self._notes: list[str] = []
        self._pool = ServerPool(
            study, device=device, arguments=self._server_arguments, start_limit_s=start_limit_s
        )

    @property
    def ready(self) -> protocol.Ready | None:
        """What the running server said when it had started."""
        server = self._pool.running(ServerKind(self._warm))
        return None if server is None else server.ready

    def start(self) -> str | None:
        """End what an earlier coordinator left, then start the server and wait until it is ready.

        Where it may not fork, ranks are started cold instead, and the answer says why.

        Raises:
            EnvironmentFault: It does not start; with the end of its log.
        """
        notes: list[str] = []
        mark = processes.mark_of(self._study.path)
        left = processes.kill_of_study(mark, grace_s=STRAY_GRACE_S, limit_s=5.0)
        if left:
            notes.append(f"processes that an earlier search of this study left were ended: {left}")
        self._server(ServerKind(self._warm))
        reason = None if self.ready is None else self.ready.no_fork
        if reason is not None:
            self._go_cold()
            self._server(COLD)
            notes.append(f"each trial imports its libraries anew, which takes seconds: {reason}")
        return "; ".join(notes) or None

    def submit(self, folder: AttemptFolder, plan: Plan) -> str:
        """Start the ranks of ``plan`` and return the job's id.

        Raises:
            EnvironmentFault: The attempt folder cannot be written, or no server can be had.
        """
        path = folder.path.absolute()
        mark = processes.mark_of(self._study.path)
        job = mark + uuid.uuid4().hex[: processes.MARKER_LENGTH - len(mark)]
        self._retire_unsound()
        kind = self._kind_for(plan)
        server, kind = self._server(kind)
        notes, self._notes = self._notes, []
        if not self._busy():
            notes += self._pool.slot(kind.settings).remove_leftovers()
        submitted_at, started_s = time.time(), time.monotonic()
        entry = _Job(
            plan=plan,
            folder=AttemptFolder(path),
            kind=kind,
            server=server,
            submitted_at=submitted_at,
            started_s=started_s,
            notes=notes,
        )
        server.send(self._run(job, entry))
        self._jobs[job] = entry
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
        self._pool.close()
        now = time.monotonic()
        for job, entry in self._jobs.items():
            if entry.ended_s is None:
                processes.kill_marked(job, limit_s=5.0)
                entry.stopped_for = entry.stopped_for or "cancelled"
                entry.ended_s = now

    def _kind_for(self, plan: Plan) -> ServerKind:
        # A value that a preloaded library has already read would not take effect in a fork.
        settings = tuple(environments.read_at_import(plan).items())
        cold = isinstance(plan.workload, CommandWorkload) or environments.needs_interpreter(plan)
        return ServerKind(self._warm and not cold, settings)

    def _run(self, job: str, entry: _Job) -> protocol.Run:
        """Return the command that starts the job on a server of its kind."""
        plan = entry.plan
        is_command = isinstance(plan.workload, CommandWorkload)
        shared, dropped = environments.child_environment(os.environ, plan, cores=_usable_cores())
        shared, own = self._pool.slot(entry.kind.settings).for_ranks(shared)
        shared = environments.with_package(shared, PACKAGE_ROOT)
        jsonfile.write_json(entry.folder.path / DROPPED_FILE, {"names": list(dropped)})
        return protocol.Run(
            job=job,
            folder=str(entry.folder.path),
            processes=entry.num_ranks,
            environment=shared,
            entry=COMMAND_ENTRY if is_command else self._entry_for(entry.kind.warm),
            total_s=plan.deadlines.total_s,
            phase_s=plan.deadlines.phase_s,
            rank_folders=own,
        )

    def _entry_for(self, warm: bool) -> str:
        if self._entry is None:
            return ENTRY if warm else COLD_ENTRY
        return self._entry if warm else self._entry.partition(":")[0]

    def _server_arguments(self, kind: ServerKind) -> list[str]:
        if not kind.warm:
            return ["--cold"]
        arguments = [f"--backend={name}" for name in self._backends]
        arguments += ["--need-packages"] if self._entry is None else []
        modules = (self._entry_for(True).partition(":")[0], *self._modules)
        return [*arguments, *(f"--module={module}" for module in modules)]

    def _server(self, kind: ServerKind) -> tuple[ServerProcess, ServerKind]:
        """Return a live server of this kind, or a cold one where warm ones keep dying."""
        known = self._pool.running(kind)
        if known is not None:
            self._take_events(known, 0.0)
            if not known.is_alive:
                self._lose(known)
        try:
            return self._pool.get(kind, busy=self._busy()), kind
        except TooManyLostError:
            if not kind.warm:
                raise self._pool.fault(kind) from None
        self._notes.append(
            "the fork server died again and again: each trial now imports its libraries anew "
            f"(its log: {self._pool.log(kind)})"
        )
        self._go_cold()
        return self._server(ServerKind(False, kind.settings))

    def _go_cold(self) -> None:
        self._warm = False
        idle = self._pool.running(ServerKind(True))
        if idle is not None and idle not in self._busy():
            self._pool.retire(idle)

    def _busy(self) -> set[ServerProcess]:
        return {entry.server for entry in self._jobs.values() if entry.ended_s is None}

    def _retire_unsound(self) -> None:
        busy = self._busy()
        for server in self._unsound - busy:
            self._pool.retire(server)
        self._unsound &= busy

    def _watch_server(self, entry: _Job) -> None:
        if entry.ended_s is not None:
            return
        age = time.monotonic() - entry.started_s
        overdue = age > entry.plan.deadlines.total_s + BACKSTOP_S
        silent = entry.server.silence_s() > self._silence_s
        if overdue or silent or not entry.server.is_alive:
            # What the server said before it died still counts.
            self._take_events(entry.server, 0.0)
            if entry.ended_s is None:
                self._lose(entry.server)

    def _lose(self, server: ServerProcess) -> None:
        """Give up a server: it and all ranks of its jobs end here."""
        lost = {
            job: processes.find_marked(job)
            for job, entry in self._jobs.items()
            if entry.server is server and entry.ended_s is None
        }
        self._pool.lose(server)
        self._unsound.discard(server)
        for job, entry in self._jobs.items():
            if job in lost:
                processes.kill_marked(job, limit_s=5.0, known=lost[job])
                entry.stopped_for = "server_lost"
                entry.ended_s = time.monotonic()

    def _take_events(self, server: ServerProcess, timeout_s: float) -> None:
        try:
            for event in server.receive(timeout_s):
                self._apply(event)
        except ServerLostError:
            self._lose(server)

    def _apply(self, event: protocol.Event) -> None:
        job = None if isinstance(event, protocol.Ready | protocol.Pong) else event.job
        entry = self._jobs.get(job) if job is not None else None
        if entry is None or job is None:
            return
        if isinstance(event, protocol.Exited):
            entry.exits[event.rank] = RankExit(
                rank=event.rank, exit_code=event.code, signal=event.signal, at=event.at
            )
        elif isinstance(event, protocol.Stopping):
            entry.stopped_for, entry.stopping = event.reason, event
        elif isinstance(event, protocol.Ended):
            entry.stopped_for = event.stopped_for
            entry.ended_s = event.at_s
            self._pool.trial_ended(entry.kind)
            if self._never_ran(entry):
                self._unsound.add(entry.server)
        elif isinstance(event, protocol.Problem):
            self._start_elsewhere(job, entry, event.message)

    def _start_elsewhere(self, job: str, entry: _Job, problem: str) -> None:
        """The server could not start the ranks: a fresh one may, or one that forks nothing."""
        entry.refusals += 1
        if not entry.kind.warm:
            entry.problem = problem
            entry.ended_s = time.monotonic()
            return
        self._unsound.add(entry.server)
        entry.ended_s = time.monotonic()  # so that its server counts as idle
        self._retire_unsound()
        if entry.refusals > 1:
            self._go_cold()
            entry.notes.append(
                f"each trial now imports its libraries anew, which takes seconds: {problem}"
            )
        kind = ServerKind(self._warm, entry.kind.settings)
        entry.server, entry.kind = self._server(kind)
        entry.ended_s = None
        entry.server.send(self._run(job, entry))

    def _never_ran(self, entry: _Job) -> bool:
        """Whether a warm server's ranks came to nothing before they ran anything of the trial."""
        if not entry.kind.warm or self._phase(entry) != PHASES[0]:
            return False
        left_no_record = any(
            not entry.folder.rank_file(rank).exists()
            and (exit_.signal is not None or exit_.exit_code != 0)
            for rank, exit_ in entry.exits.items()
        )
        return entry.stopped_for == "hang" or (entry.stopped_for is None and left_no_record)

    def _status(self, entry: _Job) -> JobStatus:
        ended = entry.ended_s is not None
        until = entry.ended_s if entry.ended_s is not None else time.monotonic()
        stopping = entry.stopping
        return JobStatus(
            state="ended" if ended else "running",
            phase=self._phase(entry),
            exits=tuple(entry.exits[rank] for rank in sorted(entry.exits)),
            stopped_for=entry.stopped_for,
            stopped_at=None if stopping is None else stopping.at,
            stopped_rank=None if stopping is None else stopping.rank,
            stopped_limit_s=None if stopping is None else stopping.limit_s,
            submitted_at=entry.submitted_at,
            wall_s=until - entry.started_s,
            notes=tuple(entry.notes),
        )

    def _phase(self, entry: _Job) -> Phase:
        ranks = range(entry.num_ranks)
        phases = [smallfile.read_phase(entry.folder.heartbeat_file(rank)) for rank in ranks]
        return min(phases, key=PHASES.index)


def _usable_cores() -> int:
    return len(os.sched_getaffinity(0))
