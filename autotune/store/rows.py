"""Records to rows and back, each inside the caller's transaction."""

from __future__ import annotations

import json
from typing import Any, TypeVar

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from autotune.contract import codec, jsonfile
from autotune.contract.outcome import Outcome
from autotune.contract.plan import Purpose
from autotune.store.models import LaunchRow, RemeasurementRow, StudyRow, TrialRow
from autotune.store.records import Attempt, RemeasurementHeader, StudyRecord, TrialHeader, Verdict

T = TypeVar("T")


def dump(record: Any) -> str:
    """Return the JSON text of a record; numbers keep every digit."""
    return jsonfile.canonical(codec.to_json(record))


def load(cls: type[T], text: str, where: str) -> T:
    """Return the record that ``text`` holds.

    Raises:
        RecordError: It is not a ``cls``.
    """
    return codec.from_json(cls, json.loads(text), where=where)


def study_id(session: Session, name: str) -> int:
    """The key of a study that is known to be there."""
    found = session.scalar(select(StudyRow.id).where(StudyRow.name == name))
    assert found is not None, f"study {name!r} is recorded before its trials"
    return found


def put_study(session: Session, record: StudyRecord) -> StudyRow:
    """Add or replace a study."""
    row = session.scalar(select(StudyRow).where(StudyRow.name == record.name))
    if row is None:
        row = StudyRow(name=record.name)
        session.add(row)
    row.created_at, row.updated_at = record.created_at, record.updated_at
    row.space_fingerprint, row.context = record.space_fingerprint, record.context
    row.record = dump(record)
    session.flush()
    return row


def put_trial(session: Session, study: int, header: TrialHeader) -> None:
    """Add or replace a trial."""
    session.execute(
        delete(TrialRow).where(TrialRow.study_id == study, TrialRow.number == header.number)
    )
    session.add(
        TrialRow(
            study_id=study,
            number=header.number,
            origin=header.origin,
            backend=header.backend,
            key=header.key,
            context=header.context,
            created_at=header.created_at,
            record=dump(header),
        )
    )


def put_remeasurement(session: Session, study: int, header: RemeasurementHeader) -> None:
    """Add or replace a re-measurement."""
    table = RemeasurementRow
    session.execute(delete(table).where(table.study_id == study, table.number == header.number))
    session.add(
        table(
            study_id=study,
            number=header.number,
            role=header.role,
            trial=header.trial,
            context=header.context,
            created_at=header.created_at,
            record=dump(header),
        )
    )


def put_attempt(
    session: Session, study: int, purpose: Purpose, number: int, attempt: Attempt
) -> None:
    """Add or replace a launch."""
    place = (
        LaunchRow.study_id == study,
        LaunchRow.purpose == purpose,
        LaunchRow.number == number,
        LaunchRow.attempt == attempt.number,
    )
    session.execute(delete(LaunchRow).where(*place))
    outcome = attempt.outcome
    measured = outcome.measurement if outcome else None
    failure = outcome.failure if outcome else None
    session.add(
        LaunchRow(
            study_id=study,
            purpose=purpose,
            number=number,
            attempt=attempt.number,
            state=outcome.state if outcome else None,
            kind=failure.kind if failure else None,
            s_per_it=measured.s_per_it if measured else None,
            outcome=dump(outcome) if outcome else None,
        )
    )


def put_verdict(session: Session, name: str, verdict: Verdict | None) -> None:
    """Set or clear a study's verdict."""
    row = session.scalar(select(StudyRow).where(StudyRow.name == name))
    assert row is not None, f"study {name!r} is recorded before its verdict"
    row.verdict = None if verdict is None else dump(verdict)


def read_attempts(session: Session, study: int) -> dict[tuple[str, int], tuple[Attempt, ...]]:
    """All launches of a study by (purpose, number), in order."""
    launches = session.scalars(
        select(LaunchRow)
        .where(LaunchRow.study_id == study)
        .order_by(LaunchRow.purpose, LaunchRow.number, LaunchRow.attempt)
    )
    found: dict[tuple[str, int], tuple[Attempt, ...]] = {}
    for row in launches:
        outcome = None if row.outcome is None else load(Outcome, row.outcome, "at_launches")
        place = (row.purpose, row.number)
        found[place] = (
            *found.get(place, ()),
            Attempt(number=row.attempt, outcome=outcome),
        )
    return found
