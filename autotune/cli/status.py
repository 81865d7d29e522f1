"""``autotune status``: how far a study is."""

from __future__ import annotations

import typer

from autotune.cli.options import (
    DEFAULT_RUNS,
    JsonOption,
    RunsOption,
    StorageOption,
    StudyArgument,
    StudyOption,
)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("status")(status)


def status(
    study: StudyArgument = None,
    name: StudyOption = None,
    runs: RunsOption = DEFAULT_RUNS,
    storage: StorageOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show how far a study is, and whether a search is running on it."""
    from autotune.cli.options import one_name, open_study
    from autotune.cli.output import note, print_json
    from autotune.report import document, progress
    from autotune.report.words import plain

    contents = open_study(runs, storage, one_name(study, name))
    report = document.build(contents)
    made = progress.progress(contents, report)
    if as_json:
        print_json(made)
        return
    for line in progress.lines(made, report):
        typer.echo(plain(line))
    for problem in contents.problems:
        note(f"! {plain(problem)}")
