"""One configuration, launched until it has an outcome that stands: submit, watch, judge, record."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from autotune.contract import hostmemory
from autotune.contract.failures import POLICIES, FailureKind, Phase
from autotune.contract.folder import AttemptFolder
from autotune.contract.outcome import Failure, Outcome, RankRecord
from autotune.contract.plan import Plan, Purpose, Racing, Reference
from autotune.errors import AutotuneError, EnvironmentFault, RecordError
from autotune.knobs.words import changed_settings
from autotune.launchers.base import JobStatus, Launcher
from autotune.search.causes import shortened
from autotune.search.device_memory import DeviceMemory, Foreign
from autotune.search.events import EventSink, LaunchEnded, LaunchStarted, Message, PhaseChanged
from autotune.search.interrupts import Interrupts
from autotune.search.judging import judge
from autotune.search.planning import Planner
from autotune.space.model import Config
from autotune.store.recorder import StudyRecorder
from autotune.store.records import interrupted

POLL_S: Final = 0.25
"""How long one look at a running trial waits for its end."""
BACK_OFF_S: Final = 2.0
"""Wait before the first retry after a fault of the machine; doubles each time."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Launch:
    """What is to be launched."""

    purpose: Purpose
    number: int
    first_attempt: int
    config: Config
    params: dict[str, Any]
    label: str
    reference: Reference
    """What the baseline did; empty for its first launch."""
    racing: Racing | None
    whole_window: bool = False
    """Whether it is compared with other launches, and so fills its window."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flops:
    """What the model FLOP utilisation is computed from; ``None`` where it is not known."""

    per_iteration: float | None
    per_s_at_peak: float | None
    """Of all devices together."""


class Runner:
    """Runs launches one after the other on one launcher, which it starts when first needed."""

    def __init__(
        self,
        *,
        launcher: Launcher,
        recorder: StudyRecorder,
        planner: Planner,
        interrupts: Interrupts,
        events: EventSink,
        flops: Flops,
        devices: Callable[[], DeviceMemory] | None = None,
    ) -> None:
        """Args that say more than their type: ``devices`` begins to watch the devices' memory."""
        self._launcher = launcher
        self._recorder = recorder
        self._planner = planner
        self._interrupts = interrupts
        self._events = events
        self._flops = flops
        self._watch_devices = devices
        self._devices: DeviceMemory | None = None
        self._started = False

    def start(self) -> None:
        """Make the launcher ready, if it is not yet.

        Raises:
            EnvironmentFault: It cannot be made ready.
        """
        if not self._started:
            with self._interrupts.at_once():
                note = self._launcher.start()
                if self._watch_devices is not None and self._devices is None:
                    self._devices = self._watch_devices()
            self._started = True
            if note is not None:
                self._events(Message(text=note, level="warning"))

    def close(self) -> None:
        """End all processes of the launcher."""
        self._started = False
        self._launcher.close()

    def run(self, launch: Launch) -> Outcome:
        """Launch until an outcome stands: measured, or failed as often as its kind is retried.

        Each kind has its own retries: what the machine did first takes none from a crash.
        """
        retries: Counter[FailureKind] = Counter()
        attempt = launch.first_attempt
        while True:
            outcome = self._once(launch, attempt)
            failure = outcome.failure
            if failure is None or retries[failure.kind] >= POLICIES[failure.kind].max_retries:
                return outcome
            if self._interrupts.requested:
                return outcome
            again = f"{launch.label}: {failure.kind}, {failure.reason}; launched again"
            self._events(Message(text=again, level="warning"))
            pause_s = BACK_OFF_S * 2 ** retries[failure.kind]
            if failure.kind == "infra" and self._interrupts.wait(pause_s):
                return outcome
            retries[failure.kind] += 1
            attempt += 1

    def _once(self, launch: Launch, attempt: int) -> Outcome:
        self.start()
        plan = self._planner.plan(
            launch.config,
            number=launch.number,
            attempt=attempt,
            purpose=launch.purpose,
            reference=launch.reference,
            racing=launch.racing,
            whole_window=launch.whole_window,
        )
        folder = self._recorder.attempt_folder(launch.purpose, launch.number, attempt)
        self._events(
            LaunchStarted(
                purpose=launch.purpose,
                number=launch.number,
                attempt=attempt,
                label=launch.label,
                params=launch.params,
                changed=changed_settings(launch.params, self._planner.baseline_params),
            )
        )
        begun = time.time()
        try:
            folder.write_plan(plan)
            outcome = self._submit_and_judge(folder, plan)
        except BaseException:
            # Whatever goes wrong here is not the configuration's fault: it is closed and queued
            # again by the next search.
            closed = interrupted("the search ended before it", plan_digest=plan.digest, at=begun)
            with contextlib.suppress(AutotuneError):  # the first error is the one to show
                self._recorder.record_outcome(launch.purpose, launch.number, attempt, closed)
            raise
        self._recorder.record_outcome(launch.purpose, launch.number, attempt, outcome)
        rank = outcome.failure.rank if outcome.failure is not None else None
        self._events(
            LaunchEnded(
                purpose=launch.purpose,
                number=launch.number,
                attempt=attempt,
                label=launch.label,
                outcome=outcome,
                log=str(folder.log_file(rank or 0)),
            )
        )
        return outcome

    def run_alone(self, plan: Plan, *, fault: str) -> tuple[RankRecord | Failure, AttemptFolder]:
        """Launch one process that prepares trials; it is none itself and leaves no record.

        What the machine is to blame for is launched again once.

        Args:
            plan: With one process.
            fault: What a fault of the machine prevents, as ``a kernel could not be checked``.

        Returns:
            The record of a process that came to its end, or why it did not; and its folder.

        Raises:
            KeyboardInterrupt: The user asked to stop.
            EnvironmentFault: The launcher, or the machine, could not run it.
        """
        self.start()
        reason = ""
        for is_first in (True, False):
            folder = self._unused(plan)
            plan = dataclasses.replace(plan, attempt=int(folder.path.name.rpartition("-")[2]))
            found = self._alone_once(folder, plan)
            if isinstance(found, RankRecord) or found.kind != "infra":
                return found, folder
            reason = found.reason
            if is_first:
                self._events(Message(text=f"{fault}: {reason}; tried again", level="warning"))
                if self._interrupts.wait(BACK_OFF_S):
                    raise KeyboardInterrupt
        raise EnvironmentFault(f"{fault}: {reason}", hint=POLICIES["infra"].next_step)

    def _unused(self, plan: Plan) -> AttemptFolder:
        folder, attempt = self._recorder.folder, 0
        while folder.attempt(plan.purpose, plan.number, attempt).path.exists():
            attempt += 1
        return folder.attempt(plan.purpose, plan.number, attempt)

    def _alone_once(self, folder: AttemptFolder, plan: Plan) -> RankRecord | Failure:
        folder.write_plan(plan)
        kills = hostmemory.oom_kills()
        status = self._ended(folder, plan)
        if self._interrupts.requested:
            raise KeyboardInterrupt
        with contextlib.suppress(RecordError):
            record = folder.read_rank(0)
            if record is not None and record.error is None:
                return record
        outcome = judge(plan, folder, status, oom_kills=hostmemory.oom_kills() - kills)
        assert outcome.failure is not None, "only what ended well leaves a record without an error"
        return outcome.failure

    def _ended(self, folder: AttemptFolder, plan: Plan) -> JobStatus:
        """Submit, wait for the end, and pass on what the launcher has to say."""
        job = self._launcher.submit(folder, plan)
        try:
            status = self._watch(job)
        except BaseException:
            self._launcher.cancel(job)
            raise
        for note in status.notes:
            self._events(Message(text=note, level="warning"))
        return status

    def _submit_and_judge(self, folder: AttemptFolder, plan: Plan) -> Outcome:
        foreign = self._foreign(())
        kills = hostmemory.oom_kills()
        status = self._ended(folder, plan)
        outcome = judge(
            plan,
            folder,
            status,
            oom_kills=hostmemory.oom_kills() - kills,
            flops_per_iteration=self._flops.per_iteration,
            flops_per_s_at_peak=self._flops.per_s_at_peak,
        )
        return self._beside(self._foreign(foreign), self._excused(outcome))

    def _foreign(self, known: tuple[Foreign, ...]) -> tuple[Foreign, ...]:
        """What others hold on the devices beyond the start; said once for each launch."""
        if self._devices is None or self._interrupts.requested:
            return known
        found = self._devices.settle()
        if not known:
            for one in found:
                self._events(Message(text=f"{one}; it is left alone", level="warning"))
        return found or known

    def _beside(self, foreign: tuple[Foreign, ...], outcome: Outcome) -> Outcome:
        """What follows from other programs on the devices of a launch."""
        failure, measured = outcome.failure, outcome.measurement
        text = "; ".join(str(one) for one in foreign)
        if not foreign:
            return outcome
        if measured is not None:
            notes = {**measured.notes, "foreign_memory": text}
            return dataclasses.replace(
                outcome, measurement=dataclasses.replace(measured, notes=notes)
            )
        if failure is not None and failure.kind == "oom_device":
            reason = f"out of memory beside another program: {text}"
            failed = dataclasses.replace(failure, kind="infra", reason=shortened(reason))
            return dataclasses.replace(outcome, failure=failed)
        return outcome

    def _watch(self, job: str) -> JobStatus:
        phase: Phase | None = None
        while True:
            status = self._launcher.poll(job, timeout_s=POLL_S)
            if status.state == "ended":
                return status
            if status.phase != phase:
                phase = status.phase
                self._events(PhaseChanged(phase=phase))
            if self._interrupts.requested:
                self._launcher.cancel(job)

    def _excused(self, outcome: Outcome) -> Outcome:
        """A trial that died of the same signal that stops the search is interrupted, not failed."""
        failure = outcome.failure
        if failure is None or not self._interrupts.requested:
            return outcome
        if failure.kind not in ("crash", "infra"):
            return outcome
        return dataclasses.replace(
            outcome,
            state="interrupted",
            failure=Failure(kind="interrupted", reason="the search was stopped"),
        )
