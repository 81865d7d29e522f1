"""``autotune import``: the database from the folders."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autotune.cli.options import JsonOption, StorageOption

if TYPE_CHECKING:
    from autotune.store.database import Store
    from autotune.store.records import StudyContents


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("import")(import_)


def import_(
    runs_dir: Annotated[
        Path | None, typer.Argument(metavar="RUNS_DIR", help="Folder of studies.")
    ] = None,
    runs: Annotated[
        Path | None, typer.Option("--runs", metavar="DIR", help="The same as the argument.")
    ] = None,
    storage: StorageOption = None,
    as_json: JsonOption = False,
) -> None:
    """Rebuild the database from the trial folders, which are the truth; Optuna's study too.

    Files that are not records of autotune are named, skipped and left as they are.
    """
    from autotune.cli.options import DEFAULT_RUNS, storage_url
    from autotune.cli.output import note, print_json
    from autotune.errors import InputError
    from autotune.report.words import plain
    from autotune.store.database import Store
    from autotune.store.importer import import_runs

    if runs_dir is not None and runs is not None and runs_dir != runs:
        raise InputError(f"two folders are named: {runs_dir} and --runs {runs}", hint="name one")
    folder = runs_dir or runs or DEFAULT_RUNS
    if not folder.is_dir():
        raise InputError(f"there is no folder {folder}", hint="give the folder of your studies")
    if not any(folder.glob("*/study.json")):
        raise InputError(
            f"there is no study in {folder}",
            hint="give the folder that holds the studies' own folders (RUNS_DIR/STUDY/study.json)",
        )
    store = Store(storage_url(folder, storage))
    try:
        done = import_runs(folder, store)
        problems = [*done.problems]
        for contents in done.studies:
            problems += _rebuild_projection(store, contents)
    finally:
        store.close()
    for problem in problems:
        note(f"! {plain(problem)}")
    if as_json:
        counts = {c.study.name: len(c.trials) for c in done.studies}
        print_json({"schema_version": 1, "trials": counts, "problems": problems})
        return
    for contents in done.studies:
        typer.echo(f"imported {contents.study.name}: {len(contents.trials)} trials")


def _rebuild_projection(store: Store, contents: StudyContents) -> list[str]:
    """Bring Optuna's study of the same name to the records; return what went wrong, in words."""
    from autotune.errors import AutotuneError
    from autotune.search.events import Message
    from autotune.search.projection import Projection
    from autotune.space.loader import parse_space

    study = contents.study
    problems: list[str] = []

    def hear(event: object) -> None:
        if isinstance(event, Message):
            problems.append(event.text)

    try:
        space = parse_space(study.space_text, file=study.space_file, overrides=study.overrides)
        projection = Projection(store, study.name, space, hear)
        projection.check()
        projection.open(contents, anew=False)
    except AutotuneError as error:
        problems.append(f"study {study.name!r} is not shown to Optuna's dashboard: {error.message}")
    return problems
