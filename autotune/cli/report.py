"""``autotune report``: what a study found."""

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
    app.command("report")(report)


def report(
    study: StudyArgument = None,
    name: StudyOption = None,
    runs: RunsOption = DEFAULT_RUNS,
    storage: StorageOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what a study found: baseline, best, speed-up, failures, all trials."""
    from autotune.cli.options import one_name, open_study
    from autotune.cli.output import print_json
    from autotune.report import document, terminal

    contents = open_study(runs, storage, one_name(study, name))
    made = document.build(contents)
    if as_json:
        print_json(made)
    else:
        terminal.show(contents, made)
