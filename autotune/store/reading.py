"""Finds a study for the commands that only read."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from autotune.contract.folder import StudyFolder
from autotune.errors import InputError, RecordError
from autotune.store.database import Store
from autotune.store.importer import read_study
from autotune.store.records import StudyContents


def load_study(store: Store, runs: Path, name: str | None) -> StudyContents:
    """Return a study's contents; ``None`` asks for the latest.

    They come from its folder, which is the truth, where ``runs`` has it, else from the database.

    Raises:
        InputError: There is no such study; names the known ones.
    """
    if name is None:
        latest = store.latest_study()
        if latest is None:
            raise InputError(
                f"there is no study in {store.shown_url}",
                hint="start one with 'autotune search --space zero3.yaml', "
                f"or rebuild the database with 'autotune import {runs}'",
            )
        name = latest.name
    known = [study.name for study in store.studies()]
    if name not in known:
        shown = ", ".join(known) if known else "none"
        raise InputError(f"there is no study {name!r} in {store.shown_url}", hint=f"known: {shown}")
    folder = StudyFolder.of(runs, name)
    problems: tuple[str, ...] = ()
    if folder.study_file.exists():
        try:
            return read_study(folder)
        except RecordError as error:
            problems = (f"{error.message}; the report comes from the database",)
    contents = store.contents(name, folder)
    assert contents is not None, "its name was listed"
    return dataclasses.replace(contents, problems=problems)
