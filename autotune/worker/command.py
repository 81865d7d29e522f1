"""``python -m autotune.worker.command``: runs the user's own program as one trial.

It renders the configuration, starts the command once (which starts its own ranks), reads the steps
that they report, and ends the whole process group when the window is long enough: that is the
normal end. It leaves the same record as a rank of autotune's own step, so judging, deadlines and
the sweep of stray processes are the same for both.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any, Final

from autotune.backends.base import backend_of
from autotune.contract import command, hostmemory, jsonfile, steps
from autotune.contract.folder import AttemptFolder
from autotune.contract.outcome import RankError, RankMeasurement, RankStatus
from autotune.contract.plan import CommandWorkload, Plan
from autotune.contract.processes import LISTEN_FD
from autotune.worker import command_end
from autotune.worker.command_process import CommandProcess
from autotune.worker.failures import InterruptedTrialError, rank_error
from autotune.worker.heartbeat import Heartbeat
from autotune.worker.record import TERMINATED, RankRecorder
from autotune.worker.reported import Reports, Window, wanted_steps
from autotune.worker.termination import TerminationWatch

TICK_S: Final = 0.1
"""Between two looks at the reported steps."""
GRACE_S: Final = 2.0
"""Between SIGTERM and SIGKILL once the window is complete."""
STOPPED_GRACE_S: Final = 1.0
"""As ``GRACE_S`` when the trial is stopped from outside: the watchdog kills this process soon."""
_RANK_VARIABLES: Final = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    LISTEN_FD,
)
"""What tells a rank of autotune's own step who it is: a command's launcher decides that itself."""


class CommandEndedError(Exception):
    """The command ended by itself before it was measured."""

    def __init__(self, end: command_end.End) -> None:
        super().__init__(end.message)
        self.end = end


class CommandSession:
    """One launch of a command."""

    def __init__(self, folder: AttemptFolder) -> None:
        self._folder = folder
        self._heart = Heartbeat(folder.heartbeat_file(0))
        self._recorder = RankRecorder(folder, 0, self._heart)
        self._process: CommandProcess | None = None
        self._ending = threading.Lock()

    def run(self) -> int:
        """Run the command until it is measured or fails; return this process's exit code."""
        self._heart.enter("launch")
        try:
            plan = self._folder.read_plan()
            self._recorder.digest = plan.digest
            kills = hostmemory.oom_kills()
            limit = hostmemory.available_bytes() // plan.topology.processes
            self._process = self._start(plan)
            with TerminationWatch(self.terminate):
                window, reports = self._watch(plan, kills)
                status, measurement = self._result(plan, window, reports, limit)
        except BaseException as error:  # whatever ends a trial is recorded
            return self._fail(error)
        return self._recorder.write(status, measurement=measurement)

    def terminate(self) -> None:
        """End the command because the trial was stopped from outside, and end this process.

        The main thread, which sees the command's end as well, waits for this one as it leaves the
        watch.
        """
        self._end(STOPPED_GRACE_S)
        self._record_error(InterruptedTrialError("the trial was stopped by a signal"))
        os._exit(TERMINATED)

    def _start(self, plan: Plan) -> CommandProcess:
        workload = plan.workload
        assert isinstance(workload, CommandWorkload)
        folder = self._folder.path.absolute()
        arguments = command.fill_all(
            workload.command,
            plan.config,
            folder=folder,
            processes=plan.topology.processes,
            rendered=_render(plan, workload, folder),
        )
        environment = {k: v for k, v in os.environ.items() if k not in _RANK_VARIABLES}
        wanted = wanted_steps(plan.measuring, workload.distinct_batches)
        environment |= {
            steps.FOLDER: str(folder),
            steps.ITERATIONS: str(wanted),
            steps.SYNCHRONISE_EVERY: str(workload.distinct_batches),
        }
        jsonfile.write_json(self._folder.command_file, {"arguments": arguments})
        self._heart.enter("build")
        return CommandProcess(arguments, environment)

    def _watch(self, plan: Plan, kills: int) -> tuple[Window, Reports]:
        """Return once the rules end the window, or the command ended with enough of one.

        Raises:
            CommandEndedError: It ended too early.
            TrialError: What it reports cannot be right.
        """
        assert self._process is not None
        reports = Reports(plan, self._folder.path)
        while True:
            code = self._process.poll()
            reports.read()
            if reports.phase != self._heart.phase:
                self._heart.enter(reports.phase)
            self._heart.beat(max(0, reports.num_steps - 1))
            window = reports.window
            if window is not None and window.verdict != "go_on":
                return window, reports
            if code == 0 and window is not None and window.iteration_s:
                return window, reports
            if code is not None:
                raise CommandEndedError(self._explain(plan, code, reports, kills))
            time.sleep(TICK_S)

    def _explain(self, plan: Plan, code: int, reports: Reports, kills: int) -> command_end.End:
        if code != 0:
            log = command_end.log_end(self._folder.log_file(0))
            return command_end.explain(code, log, oom_kills=hostmemory.oom_kills() - kills)
        done = reports.num_steps
        if reports.missing:
            message = f"the command ended and {reports.missing} never called autotune.report_step()"
        elif done == 0:
            message = "the command ended and never called autotune.report_step()"
        else:
            wanted = wanted_steps(plan.measuring, plan.workload.distinct_batches)
            message = f"the command ended after {done} reported steps; {wanted} are enough"
        return command_end.End(name="exit code 0", message=message, kind="crash")

    def _result(
        self, plan: Plan, window: Window, reports: Reports, limit: int
    ) -> tuple[RankStatus, RankMeasurement]:
        self._heart.enter("teardown")
        by_itself = window.verdict == "go_on"
        self._end(GRACE_S)
        notes: dict[str, Any] = {
            "unverified": {name: plan.config[name] for name in plan.verify} | plan.unverified
        }
        if by_itself:
            notes["ended_early"] = "the command ended before the timed window was complete"
        measurement = reports.measurement(window, limit_bytes=limit, notes=notes)
        return ("stopped_early" if window.verdict == "slower" else "measured"), measurement

    def _end(self, grace_s: float) -> None:
        # The watching thread and the main one may both come here.
        with self._ending:
            if self._process is not None:
                self._process.end(grace_s)

    def _fail(self, error: BaseException) -> int:
        if not isinstance(error, CommandEndedError):  # the log says already how it ended
            with contextlib.suppress(OSError):
                traceback.print_exception(error)
        code = self._record_error(error)
        self._end(0.0)
        return code

    def _record_error(self, error: BaseException) -> int:
        phase, iteration = self._heart.phase, self._heart.iteration
        counted = phase in ("check", "warmup", "measure")
        described = rank_error(error, phase=phase, iteration=iteration if counted else None)
        if isinstance(error, CommandEndedError):
            described = RankError(
                type=error.end.name,
                message=error.end.message or error.end.name,
                traceback=command_end.log_end(self._folder.log_file(0))[-20_000:],
                at=described.at,
                phase=phase,
                iteration=described.iteration,
                kind=error.end.kind,
            )
        return self._recorder.write("failed", error=described)


def _render(plan: Plan, workload: CommandWorkload, folder: Path) -> dict[str, Path]:
    """Write the engine's configuration where the command reads one; its placeholder and path."""
    backend = backend_of(plan.backend)
    named = {name for word in workload.command for name in command.placeholders(word)}
    if backend.placeholder is None or backend.placeholder not in named:
        return {}
    path = command.rendered_file(folder, backend.placeholder)
    jsonfile.write_json(path, backend.render(plan))
    return {backend.placeholder: path}


def main() -> int:
    """Run the command and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m autotune.worker.command", description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="folder with plan.json")
    parser.add_argument("--rank", type=int, required=True, help="always 0")
    arguments = parser.parse_args()
    return CommandSession(AttemptFolder(arguments.folder)).run()


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
