"""Study folders to records, and to the database.

What lies in a folder is data to be checked, never run: a file that is not one of our records is
refused with a message and left where it is.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any, Final, TypeVar

from autotune.contract import codec, jsonfile
from autotune.contract.folder import AttemptFolder, StudyFolder
from autotune.contract.outcome import Outcome
from autotune.contract.plan import Purpose
from autotune.errors import AutotuneError, InputError, RecordError, SchemaTooNewError
from autotune.store import layout, leftovers, lock
from autotune.store.database import Store
from autotune.store.records import (
    SCHEMA_VERSION,
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

T = TypeVar("T")
_NUMBER: Final = re.compile(r"[0-9]{5,}")
_DIGITS: Final = re.compile(r"0|[1-9][0-9]*")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Imported:
    """What an import did."""

    studies: tuple[StudyContents, ...]
    problems: tuple[str, ...]
    """Files and studies that were refused, in words."""


def read_study(folder: StudyFolder) -> StudyContents:
    """Return all that a study's folder holds.

    Raises:
        RecordError: Its ``study.json`` is missing or is not one.
        SchemaTooNewError: A newer version wrote it.
    """
    study = _read(StudyRecord, folder.study_file)
    if study.name != folder.name:
        raise RecordError(f"{folder.study_file}: it is the record of study {study.name!r}")
    live = lock.is_held(folder)
    problems: list[str] = []
    trials: list[TrialRecord] = []
    for number in _numbers(folder, "trial", problems):
        header = _header(TrialHeader, folder, "trial", number, problems)
        if header is not None:
            attempts = _attempts(folder, "trial", number, problems)
            trials.append(TrialRecord(header=header, attempts=attempts, live=live))
    repeats: list[RemeasurementRecord] = []
    for number in _numbers(folder, "remeasurement", problems):
        again = _header(RemeasurementHeader, folder, "remeasurement", number, problems)
        if again is not None:
            attempts = _attempts(folder, "remeasurement", number, problems)
            repeats.append(RemeasurementRecord(header=again, attempts=attempts, live=live))
    verdict = None
    if layout.verdict_file(folder).exists():
        verdict = _try_read(Verdict, layout.verdict_file(folder), problems)
    return StudyContents(
        folder=folder,
        study=study,
        trials=tuple(trials),
        remeasurements=tuple(repeats),
        verdict=verdict,
        live=live,
        problems=tuple(problems),
    )


def import_runs(runs: Path, store: Store) -> Imported:
    """Make the database say what the folders under ``runs`` say.

    A study whose search is running is left to its coordinator. Studies that the database has and
    the folder has not stay.

    Raises:
        InputError: ``runs`` is no folder.
    """
    if not runs.is_dir():
        raise InputError(f"there is no folder {runs}", hint="give the folder of your studies")
    studies: list[StudyContents] = []
    problems: list[str] = []
    for path in sorted(runs.iterdir()):
        folder = StudyFolder(path.absolute())
        if not folder.study_file.exists():
            continue
        try:
            contents = read_study(folder)
        except AutotuneError as error:
            problems.append(error.message)
            continue
        if contents.live:
            problems.append(f"study {folder.name!r} was left alone: a search is running on it")
            continue
        store.replace(contents)
        studies.append(contents)
        problems += contents.problems
    return Imported(studies=tuple(studies), problems=tuple(problems))


def _numbers(folder: StudyFolder, purpose: Purpose, problems: list[str]) -> list[int]:
    parent = layout.header_file(folder, purpose, 0).parent.parent
    found: list[int] = []
    for path in parent.iterdir() if parent.is_dir() else ():
        number = int(path.name) if _NUMBER.fullmatch(path.name) else None
        if number is not None and path.name == f"{number:05d}" and path.is_dir():
            found.append(number)
        elif not path.name.startswith("."):
            problems.append(f"{path}: not a folder of ours; it was left as it is")
    return sorted(found)


def _header(
    cls: type[T], folder: StudyFolder, purpose: Purpose, number: int, problems: list[str]
) -> T | None:
    path = layout.header_file(folder, purpose, number)
    if not path.exists():
        # Being made just now, or its maker was killed meanwhile: nothing was launched yet.
        if not leftovers.is_hollow(path.parent):
            problems.append(f"{path}: it is missing, so {path.parent.name} was skipped")
        return None
    header = _try_read(cls, path, problems)
    found: Any = header
    if header is not None and found.number != number:
        problems.append(f"{path}: it is the header of number {found.number}; it was skipped")
        return None
    return header


def _attempts(
    folder: StudyFolder, purpose: Purpose, number: int, problems: list[str]
) -> tuple[Attempt, ...]:
    parent = folder.attempt(purpose, number, 0).path.parent
    numbers: list[int] = []
    for path in parent.glob("attempt-*"):
        name = path.name.removeprefix("attempt-")
        if _DIGITS.fullmatch(name) and path.is_dir():
            numbers.append(int(name))
        else:
            problems.append(f"{path}: not a folder of ours; it was left as it is")
    numbers.sort()
    return tuple(
        Attempt(number=n, outcome=_outcome(folder.attempt(purpose, number, n), problems))
        for n in numbers
    )


def _outcome(folder: AttemptFolder, problems: list[str]) -> Outcome | None:
    if not folder.outcome_file.exists():
        return None
    try:
        outcome = _read(Outcome, folder.outcome_file)
        if folder.plan_file.exists() and plan_digest(folder) != outcome.plan_digest:
            raise RecordError(f"{folder.outcome_file}: it belongs to another plan")
    except AutotuneError as error:
        problems.append(
            f"{error.message}; the launch counts as interrupted and the file was left as it is"
        )
        return interrupted(f"its record was refused: {error.message}")
    return outcome


def plan_digest(folder: AttemptFolder) -> str:
    """Return the digest of an attempt's ``plan.json`` as it lies there.

    Raises:
        RecordError: It is not a JSON file.
    """
    return jsonfile.digest(_plain(folder.plan_file))


def _plain(path: Path) -> Any:
    if not path.is_file():
        raise RecordError(f"{path}: not a plain file")
    try:
        return jsonfile.read_json(path)
    except OSError as error:
        raise RecordError(f"{path}: cannot be read ({error.strerror})") from error


def _read(cls: type[T], path: Path) -> T:
    data = _plain(path)
    version = data.get("schema_version") if isinstance(data, dict) else None
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise SchemaTooNewError(
            f"{path} has schema {version}; this autotune knows up to {SCHEMA_VERSION}. "
            "Nothing was changed",
            hint="upgrade with: pip install . in a checkout of a newer autotune",
        )
    return codec.from_json(cls, data, where=str(path))


def _try_read(cls: type[T], path: Path, problems: list[str]) -> T | None:
    try:
        return _read(cls, path)
    except AutotuneError as error:
        problems.append(f"{error.message}; it was skipped and left as it is")
        return None
