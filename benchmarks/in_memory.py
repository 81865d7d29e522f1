"""A study without files, database and processes, so that thousands of them can be simulated.

What is examined is the program's own: the loop, racing, the launches of the baseline every eight
trials, the judging of ranks' records, ranking, confirmation and comparison. What is replaced keeps
or shows things: the recorder holds the records only, and nobody looks at Optuna's study. The
configurations are given as anchors in a drawn order, so no sampler is asked.
"""

from __future__ import annotations

import dataclasses
import random
import shutil
import tempfile
from pathlib import Path

from simulated import Truth, record_of

from autotune.contract.folder import AttemptFolder, StudyFolder
from autotune.contract.outcome import Outcome
from autotune.contract.plan import Purpose
from autotune.launchers.base import JobStatus
from autotune.search.anchors import Anchor
from autotune.search.interrupts import Interrupts
from autotune.search.judging import judge_measured
from autotune.search.launching import Launch
from autotune.search.loop import Loop, LoopSettings
from autotune.search.open_study import OpenStudy
from autotune.search.planning import Planner
from autotune.search.preflight import Prepared, prepare
from autotune.search.request import SearchRequest
from autotune.search.resume import begin
from autotune.space import domains
from autotune.store.recorder import StudyRecorder
from autotune.store.records import (
    Attempt,
    RemeasurementHeader,
    RemeasurementRecord,
    StudyContents,
    TrialHeader,
    TrialRecord,
    Verdict,
)


def prepared_study(space: str, trials: int) -> Prepared:
    """Check a space file once, for all studies of it."""
    folder = Path(tempfile.mkdtemp())
    try:
        (folder / "space.yaml").write_text(space)
        request = SearchRequest(
            space=str(folder / "space.yaml"),
            trials=trials,
            study="s",
            runs=folder / "runs",
            anchors=False,
        )
        return prepare(request, staging=folder)
    finally:
        shutil.rmtree(folder)


def open_study(prepared: Prepared, truth: Truth, order: random.Random) -> OpenStudy:
    """Return a study that has not begun, whose launches last as ``truth`` says."""
    recorder = MemoryRecorder(prepared)
    runner = SimulatedRunner(prepared.planner, recorder, truth)
    loop = Loop(
        settings=LoopSettings(trials=prepared.trials, anchors=_all_others(prepared, order)),
        planner=prepared.planner,
        recorder=recorder,
        runner=runner,  # type: ignore[arg-type]  # has what the loop uses
        projection=NoProjection(),  # type: ignore[arg-type]
        interrupts=Interrupts(),
        events=lambda _event: None,
    )
    return OpenStudy(prepared=prepared, recorder=recorder, runner=runner, loop=loop)  # type: ignore[arg-type]


def _all_others(prepared: Prepared, order: random.Random) -> tuple[Anchor, ...]:
    space = prepared.space
    (param,) = space.params
    anchors = [
        Anchor(name=f"choice{value}", assignment=(one := {param.name: value}),
               config=space.resolve(one))
        for value in domains.values(param.domain)
    ]  # fmt: skip
    anchors = [one for one in anchors if one.config.key != space.baseline_config().key]
    order.shuffle(anchors)
    return tuple(anchors)


def num_launches(contents: StudyContents) -> int:
    """Launches of a study, re-measurements included."""
    return len(contents.trials) + len(contents.remeasurements)


class MemoryRecorder(StudyRecorder):
    """Keeps the records of one study and writes nothing."""

    def __init__(self, prepared: Prepared) -> None:
        self.folder = StudyFolder(Path())
        self._contents = StudyContents(folder=self.folder, study=begin(prepared), live=True)
        self._store = _NoStore()  # type: ignore[assignment]  # of all it has only this is called

    def next_number(self, purpose: Purpose) -> int:
        return len(self.trials() if purpose == "trial" else self.remeasurements())

    def open_trial(self, header: TrialHeader) -> None:
        trials = (*self.trials(), TrialRecord(header=header, live=True))
        self._contents = dataclasses.replace(self.contents(), trials=trials)

    def open_remeasurement(self, header: RemeasurementHeader) -> None:
        again = (*self.remeasurements(), RemeasurementRecord(header=header, live=True))
        self._contents = dataclasses.replace(self.contents(), remeasurements=again)

    def attempt_folder(self, purpose: Purpose, number: int, attempt: int) -> AttemptFolder:
        raise NotImplementedError("a simulated launch has no folder")

    def record_outcome(self, purpose: Purpose, number: int, attempt: int, outcome: Outcome) -> None:
        self._put(purpose, number, Attempt(number=attempt, outcome=outcome))

    def record_verdict(self, verdict: Verdict) -> None:
        self._contents = dataclasses.replace(self.contents(), verdict=verdict)


class _NoStore:
    def put_attempt(self, *_record: object) -> None:
        """Nothing is kept outside the recorder."""


class NoProjection:
    """Nobody looks."""

    def start(self, _trial: TrialRecord) -> None:
        """Nothing."""

    def finish(self, _trial: TrialRecord, _log: str) -> None:
        """Nothing."""


class SimulatedRunner:
    """Draws what a launch measures, and lets the program judge it."""

    def __init__(self, planner: Planner, recorder: MemoryRecorder, truth: Truth) -> None:
        self._planner = planner
        self._recorder = recorder
        self._truth = truth
        self.num_launches = 0

    def run(self, launch: Launch) -> Outcome:
        plan = self._planner.plan(
            launch.config,
            number=launch.number,
            attempt=launch.first_attempt,
            purpose=launch.purpose,
            reference=launch.reference,
            racing=launch.racing,
            whole_window=launch.whole_window,
        )
        measured = self._truth.launch(plan, self.num_launches)
        records = [record_of(plan, rank, measured) for rank in range(plan.topology.processes)]
        status = JobStatus(
            state="ended",
            phase="teardown",
            exits=(),
            submitted_at=float(self.num_launches),
            wall_s=sum(measured.warmup_s) + measured.window_s,
        )
        self.num_launches += 1
        outcome = judge_measured(plan, records, status)
        self._recorder.record_outcome(launch.purpose, launch.number, launch.first_attempt, outcome)
        return outcome
