"""Writes a study as it happens: the folder first, then the database."""

from __future__ import annotations

import contextlib
import dataclasses

from autotune.contract import codec, jsonfile
from autotune.contract.folder import AttemptFolder, StudyFolder
from autotune.contract.outcome import Outcome
from autotune.contract.plan import Purpose
from autotune.errors import RecordError
from autotune.store import layout
from autotune.store.database import Store
from autotune.store.importer import plan_digest, read_study
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


class StudyRecorder:
    """The one writer of a study; its caller holds ``lock.hold(folder)``.

    Opening it reads the folder and brings the database to the same state, so a coordinator that
    was killed between the two writes loses nothing; what it left unjudged becomes interrupted.
    Each call is one short transaction that is
    over when it returns. Nothing is created before :meth:`save_study`.
    """

    def __init__(self, folder: StudyFolder, store: Store) -> None:
        self.folder = folder
        self._store = store
        self._contents: StudyContents | None = None
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

    # --- writing ---

    def save_study(self, record: StudyRecord) -> None:
        """Create the study, or replace its record."""
        if not self.folder.space_file.exists():
            jsonfile.write_text(self.folder.space_file, record.space_text)
        jsonfile.write_json(self.folder.study_file, codec.to_json(record))
        if self._contents is None:
            self._contents = StudyContents(folder=self.folder, study=record, live=True)
        else:
            self._contents = dataclasses.replace(self._contents, study=record)
        self._store.put_study(record)

    def open_trial(self, header: TrialHeader) -> None:
        """Record a new trial before its first launch."""
        contents = self.contents()
        assert contents.trial(header.number) is None, f"trial {header.number} exists"
        path = layout.header_file(self.folder, "trial", header.number)
        jsonfile.write_json(path, codec.to_json(header))
        trial = TrialRecord(header=header, live=True)
        self._contents = dataclasses.replace(contents, trials=(*contents.trials, trial))
        self._store.put_trial(self.folder.name, header)

    def open_remeasurement(self, header: RemeasurementHeader) -> None:
        """Record a new re-measurement before its first launch."""
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
        folder = self.folder.attempt(purpose, number, attempt)
        try:
            folder.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise jsonfile.unwritable(folder.path, error) from error
        self._put(purpose, number, Attempt(number=attempt, outcome=None))
        return folder

    def record_outcome(self, purpose: Purpose, number: int, attempt: int, outcome: Outcome) -> None:
        """Record how a launch ended."""
        self.folder.attempt(purpose, number, attempt).write_outcome(outcome)
        self._put(purpose, number, Attempt(number=attempt, outcome=outcome))

    def record_verdict(self, verdict: Verdict) -> None:
        """Record what the confirmation found, in place of an earlier verdict."""
        jsonfile.write_json(layout.verdict_file(self.folder), codec.to_json(verdict))
        self._contents = dataclasses.replace(self.contents(), verdict=verdict)
        self._store.put_verdict(self.folder.name, verdict)

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
