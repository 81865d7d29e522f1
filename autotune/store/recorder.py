"""Writes a study as it happens: the folder first, then the database."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from typing import Final

from autotune.contract import codec, jsonfile
from autotune.contract.folder import AttemptFolder, StudyFolder
from autotune.contract.outcome import Outcome
from autotune.contract.plan import Purpose
from autotune.errors import EnvironmentFault, RecordError
from autotune.store import layout, leftovers
from autotune.store.database import Store
from autotune.store.importer import plan_digest, read_study
from autotune.store.lock import Held
from autotune.store.records import (
    Attempt,
    RemeasurementHeader,
    RemeasurementRecord,
    StudyContents,
    StudyRecord,
    TrialHeader,
    TrialRecord,
    Verdict,
    interrupted,
)

TICK_S: Final = 1e-3
"""By how much a time is later than the one before it where the machine's clock went back."""


class StudyRecorder:
    """The one writer of a study; its caller holds ``lock.hold(folder)``.

    Opening it reads the folder and brings the database to the same state, so a coordinator that
    was killed between the two writes loses nothing; what it left unjudged becomes interrupted, and
    what it left half made goes. Each call is one short transaction that is over when it returns.
    Nothing is created before :meth:`save_study`.
    """

    def __init__(self, folder: StudyFolder, store: Store, held: Held | None = None) -> None:
        """``held`` tells, where it is given, whether the folder is still the caller's."""
        self.folder = folder
        self._held = held
        self._store = store
        self._contents: StudyContents | None = None
        self._begun: dict[tuple[Purpose, int, int], float] = {}
        leftovers.remove(folder)
        if folder.study_file.exists():
            _close_unfinished(read_study(folder))
            self._contents = read_study(folder)
            if store.contents(folder.name, folder) != self._contents:
                store.replace(self._contents)

    # --- reading ---

    @property
    def problems(self) -> tuple[str, ...]:
        """Files of the folder that were refused, in words."""
        return self._contents.problems if self._contents else ()

    def study(self) -> StudyRecord | None:
        """The study's record, ``None`` before it is created."""
        return self._contents.study if self._contents else None

    def contents(self) -> StudyContents:
        """All that is recorded so far. The study must exist."""
        assert self._contents is not None, "save_study comes first"
        return self._contents

    def trials(self) -> tuple[TrialRecord, ...]:
        """All trials by number, unfinished ones included."""
        return self._contents.trials if self._contents else ()

    def remeasurements(self) -> tuple[RemeasurementRecord, ...]:
        """All re-measurements by number."""
        return self._contents.remeasurements if self._contents else ()

    def verdict(self) -> Verdict | None:
        """The last verdict, which may be of an earlier space or context."""
        return self._contents.verdict if self._contents else None

    def next_number(self, purpose: Purpose) -> int:
        """The next free number; numbers whose folder was refused are not used again."""
        parent = layout.header_file(self.folder, purpose, 0).parent.parent
        taken = [int(p.name) for p in parent.glob("*") if p.name.isdecimal()]
        return max(taken, default=-1) + 1

    def now(self) -> float:
        """The present time for a record; later than all that is recorded.

        What came after what is read from these times, and a machine's clock may be set back.
        """
        return self._after_all(time.time())

    def _after_all(self, at: float) -> float:
        return at if self._contents is None else max(at, self._contents.latest + TICK_S)

    # --- writing ---

    def save_study(self, record: StudyRecord) -> None:
        """Create the study, or replace its record."""
        record = dataclasses.replace(record, updated_at=self._after_all(record.updated_at))
        self._require_folder()
        # One without a study is of a coordinator that was killed before it had made the study.
        if self._contents is None or not self.folder.space_file.exists():
            jsonfile.write_text(self.folder.space_file, record.space_text)
        jsonfile.write_json(self.folder.study_file, codec.to_json(record))
        if self._contents is None:
            self._contents = StudyContents(folder=self.folder, study=record, live=True)
        else:
            self._contents = dataclasses.replace(self._contents, study=record)
        self._store.put_study(record)

    def open_trial(self, header: TrialHeader) -> None:
        """Record a new trial before its first launch."""
        self._require_folder()
        contents = self.contents()
        assert contents.trial(header.number) is None, f"trial {header.number} exists"
        path = layout.header_file(self.folder, "trial", header.number)
        jsonfile.write_json(path, codec.to_json(header))
        trial = TrialRecord(header=header, live=True)
        self._contents = dataclasses.replace(contents, trials=(*contents.trials, trial))
        self._store.put_trial(self.folder.name, header)

    def open_remeasurement(self, header: RemeasurementHeader) -> None:
        """Record a new re-measurement before its first launch."""
        self._require_folder()
        contents = self.contents()
        path = layout.header_file(self.folder, "remeasurement", header.number)
        jsonfile.write_json(path, codec.to_json(header))
        again = RemeasurementRecord(header=header, live=True)
        self._contents = dataclasses.replace(
            contents, remeasurements=(*contents.remeasurements, again)
        )
        self._store.put_remeasurement(self.folder.name, header)

    def attempt_folder(self, purpose: Purpose, number: int, attempt: int) -> AttemptFolder:
        """Create the folder of a new launch and record that it begins."""
        self._require_folder()
        folder = self.folder.attempt(purpose, number, attempt)
        self._begun[purpose, number, attempt] = self._after_all(0.0)
        try:
            folder.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise jsonfile.unwritable(folder.path, error) from error
        self._put(purpose, number, Attempt(number=attempt, outcome=None))
        return folder

    def record_outcome(self, purpose: Purpose, number: int, attempt: int, outcome: Outcome) -> None:
        """Record how a launch ended."""
        self._require_folder()
        begun = self._begun.pop((purpose, number, attempt), 0.0)
        outcome = dataclasses.replace(outcome, submitted_at=max(outcome.submitted_at, begun))
        self.folder.attempt(purpose, number, attempt).write_outcome(outcome)
        self._put(purpose, number, Attempt(number=attempt, outcome=outcome))

    def record_verdict(self, verdict: Verdict) -> None:
        """Record what the confirmation found, in place of an earlier verdict."""
        self._require_folder()
        jsonfile.write_json(layout.verdict_file(self.folder), codec.to_json(verdict))
        self._contents = dataclasses.replace(self.contents(), verdict=verdict)
        self._store.put_verdict(self.folder.name, verdict)

    def _require_folder(self) -> None:
        """Refuse to write into what is left of a study that somebody removed meanwhile.

        Raises:
            EnvironmentFault: It is gone, or another coordinator has made it anew.
        """
        is_gone = self._contents is not None and not self.folder.study_file.exists()
        if is_gone or (self._held is not None and not self._held.is_in_place):
            raise EnvironmentFault(
                f"the folder of the study was removed while it was searched: {self.folder.path}",
                hint="what it held is lost; the same command begins the study anew",
            )

    def _put(self, purpose: Purpose, number: int, attempt: Attempt) -> None:
        contents = self.contents()
        if purpose == "trial":
            trials = tuple(
                dataclasses.replace(t, attempts=_with(t.attempts, attempt))
                if t.number == number
                else t
                for t in contents.trials
            )
            self._contents = dataclasses.replace(contents, trials=trials)
        else:
            repeats = tuple(
                dataclasses.replace(r, attempts=_with(r.attempts, attempt))
                if r.number == number
                else r
                for r in contents.remeasurements
            )
            self._contents = dataclasses.replace(contents, remeasurements=repeats)
        self._store.put_attempt(self.folder.name, purpose, number, attempt)


def _with(attempts: tuple[Attempt, ...], new: Attempt) -> tuple[Attempt, ...]:
    others = [a for a in attempts if a.number != new.number]
    return tuple(sorted((*others, new), key=lambda a: a.number))


def _close_unfinished(contents: StudyContents) -> None:
    """Record launches that an earlier coordinator left unjudged as interrupted."""
    items: tuple[tuple[Purpose, TrialRecord | RemeasurementRecord], ...] = (
        *(("trial", trial) for trial in contents.trials),
        *(("remeasurement", again) for again in contents.remeasurements),
    )
    for purpose, item in items:
        for attempt in item.attempts or (Attempt(number=0, outcome=None),):
            folder = contents.folder.attempt(purpose, item.number, attempt.number)
            if attempt.outcome is not None or folder.outcome_file.exists():
                continue
            digest = ""
            if folder.plan_file.exists():
                with contextlib.suppress(RecordError):
                    digest = plan_digest(folder)
            folder.write_outcome(
                interrupted(
                    "the search was stopped before it ended",
                    plan_digest=digest,
                    at=item.header.created_at,
                )
            )
