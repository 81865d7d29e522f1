"""The index of all studies in one database.

Each method is one short transaction that is over when it returns: Optuna writes to the same
database, and an open write transaction of ours would block it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from sqlalchemy import URL, Engine, delete, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from autotune.contract import jsonfile
from autotune.contract.folder import StudyFolder
from autotune.contract.plan import Purpose
from autotune.errors import InputError
from autotune.store import connection, rows, schema
from autotune.store.models import LaunchRow, RemeasurementRow, StudyRow, TrialRow
from autotune.store.records import (
    Attempt,
    RemeasurementHeader,
    RemeasurementRecord,
    StudyContents,
    StudyRecord,
    TrialHeader,
    TrialRecord,
    Verdict,
)


def default_url(runs: Path) -> str:
    """The database of a runs folder.

    Raises:
        InputError: The folder's path cannot be part of a URL.
    """
    file = str(runs.absolute() / "autotune.db")
    try:
        url = URL.create("sqlite", database=file).render_as_string()
        usable = connection.parse(url).database == file  # SQLAlchemy 2.0 escapes nothing
    except UnicodeEncodeError:  # bytes that are not UTF-8, which Python holds as surrogates
        usable = False
    if not usable:
        raise InputError(
            f"the path {file!r} cannot be part of a database URL",
            hint="choose another folder with --runs, or name a database with --storage",
        )
    return url


class Store:
    """Our tables in one database; created or migrated when opened.

    Args:
        url: A SQLAlchemy URL.

    Raises:
        InputError: The URL cannot be understood.
        SchemaTooNewError: A newer version wrote the tables; nothing was changed.
        EnvironmentFault: The database cannot be reached or written, or its driver is missing.
    """

    def __init__(self, url: str) -> None:
        self._url = connection.parse(url)
        self.shown_url = self._url.render_as_string(hide_password=True)
        file = connection.sqlite_file(self._url)
        if file is not None:
            try:
                file.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise jsonfile.unwritable(file, error) from error
        self._engine = connection.make_engine(self._url)
        self._writing = self._engine.execution_options(**{connection.WRITES: True})
        with self._faults():
            with self._engine.connect() as link:
                ready = schema.check(link, self.shown_url)
            if not ready:
                with self._writing.begin() as link:
                    if not schema.check(link, self.shown_url):
                        schema.upgrade(link)

    @classmethod
    def existing(cls, url: str) -> Store:
        """Open a database that must be there already.

        Raises:
            InputError: There is none.
        """
        file = connection.sqlite_file(connection.parse(url))
        if file is not None and not file.is_file():
            raise InputError(
                f"there is no database {file}",
                hint="choose the folder of your studies with --runs, start one with "
                f"'autotune search', or rebuild it with 'autotune import {file.parent}'",
            )
        return cls(url)

    @property
    def url(self) -> str:
        """The URL with its password, for Optuna's storage, which takes it as a format string."""
        text = self._url.render_as_string(hide_password=False)
        return text.replace("{", "{{").replace("}", "}}")

    def close(self) -> None:
        """Give back all connections."""
        self._engine.dispose()

    @contextlib.contextmanager
    def _faults(self) -> Iterator[None]:
        try:
            yield
        except DBAPIError as error:
            raise connection.explain(error, self.shown_url) from error

    @contextlib.contextmanager
    def _session(self, engine: Engine) -> Iterator[Session]:
        with self._faults(), Session(engine) as session, session.begin():
            yield session

    # --- writing ---

    def put_study(self, record: StudyRecord) -> None:
        """Add the study or replace what is known of it; its trials stay."""
        with self._session(self._writing) as session:
            rows.put_study(session, record)

    def put_trial(self, study: str, header: TrialHeader) -> None:
        """Add a trial."""
        with self._session(self._writing) as session:
            rows.put_trial(session, rows.study_id(session, study), header)

    def put_remeasurement(self, study: str, header: RemeasurementHeader) -> None:
        """Add a re-measurement."""
        with self._session(self._writing) as session:
            rows.put_remeasurement(session, rows.study_id(session, study), header)

    def put_attempt(self, study: str, purpose: Purpose, number: int, attempt: Attempt) -> None:
        """Add a launch, or its outcome."""
        with self._session(self._writing) as session:
            rows.put_attempt(session, rows.study_id(session, study), purpose, number, attempt)

    def put_verdict(self, study: str, verdict: Verdict | None) -> None:
        """Set or clear the verdict."""
        with self._session(self._writing) as session:
            rows.put_verdict(session, study, verdict)

    def replace(self, contents: StudyContents) -> None:
        """Make the tables say exactly what ``contents`` says, in one transaction."""
        name = contents.study.name
        with self._session(self._writing) as session:
            row = rows.put_study(session, contents.study)
            rows.put_verdict(session, name, contents.verdict)
            for table in (LaunchRow, RemeasurementRow, TrialRow):
                session.execute(delete(table).where(table.study_id == row.id))
            for trial in contents.trials:
                rows.put_trial(session, row.id, trial.header)
                for attempt in trial.attempts:
                    rows.put_attempt(session, row.id, "trial", trial.number, attempt)
            for again in contents.remeasurements:
                rows.put_remeasurement(session, row.id, again.header)
                for attempt in again.attempts:
                    rows.put_attempt(session, row.id, "remeasurement", again.number, attempt)

    # --- reading ---

    def studies(self) -> tuple[StudyRecord, ...]:
        """All studies, the latest first."""
        order = (StudyRow.updated_at.desc(), StudyRow.name)
        with self._session(self._engine) as session:
            texts = session.scalars(select(StudyRow.record).order_by(*order)).all()
        return tuple(rows.load(StudyRecord, text, "at_studies") for text in texts)

    def latest_study(self) -> StudyRecord | None:
        """The study that a search was last started on."""
        return next(iter(self.studies()), None)

    def study(self, name: str) -> StudyRecord | None:
        """The study of that name."""
        with self._session(self._engine) as session:
            found = session.scalar(select(StudyRow.record).where(StudyRow.name == name))
        return None if found is None else rows.load(StudyRecord, found, "at_studies")

    def contents(self, name: str, folder: StudyFolder) -> StudyContents | None:
        """All that the tables know of a study; ``folder`` is where its files would lie."""
        with self._session(self._engine) as session:
            row = session.scalar(select(StudyRow).where(StudyRow.name == name))
            if row is None:
                return None
            attempts = rows.read_attempts(session, row.id)
            trials = session.scalars(
                select(TrialRow.record).where(TrialRow.study_id == row.id).order_by(TrialRow.number)
            ).all()
            again = session.scalars(
                select(RemeasurementRow.record)
                .where(RemeasurementRow.study_id == row.id)
                .order_by(RemeasurementRow.number)
            ).all()
            study, verdict = row.record, row.verdict
        headers = [rows.load(TrialHeader, text, "at_trials") for text in trials]
        repeats = [rows.load(RemeasurementHeader, text, "at_remeasurements") for text in again]
        return StudyContents(
            folder=folder,
            study=rows.load(StudyRecord, study, "at_studies"),
            trials=tuple(
                TrialRecord(header=h, attempts=attempts.get(("trial", h.number), ()))
                for h in headers
            ),
            remeasurements=tuple(
                RemeasurementRecord(
                    header=h, attempts=attempts.get(("remeasurement", h.number), ())
                )
                for h in repeats
            ),
            verdict=None if verdict is None else rows.load(Verdict, verdict, "at_studies.verdict"),
        )
