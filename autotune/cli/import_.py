"""``autotune import``: the database from the folders."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from autotune.cli.options import JsonOption, StorageOption


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("import")(import_)


def import_(
    runs_dir: Annotated[
        Path | None, typer.Argument(metavar="[RUNS_DIR]", help="Folder of studies.")
    ] = None,
    runs: Annotated[
        Path | None, typer.Option("--runs", metavar="DIR", help="The same as the argument.")
    ] = None,
    storage: StorageOption = None,
    as_json: JsonOption = False,
) -> None:
    """Rebuild the database from the trial folders, which are the truth.

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
    finally:
        store.close()
    for problem in done.problems:
        note(f"! {plain(problem)}")
    if as_json:
        counts = {c.study.name: len(c.trials) for c in done.studies}
        print_json({"schema_version": 1, "trials": counts, "problems": list(done.problems)})
        return
    for contents in done.studies:
        typer.echo(f"imported {contents.study.name}: {len(contents.trials)} trials")
