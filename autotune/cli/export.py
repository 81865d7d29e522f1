"""``autotune export``: the best configuration as a file for production."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autotune.cli.options import (
    DEFAULT_RUNS,
    JsonOption,
    RunsOption,
    StorageOption,
    StudyArgument,
    StudyOption,
)

if TYPE_CHECKING:
    from autotune.exporters.base import ExportRequest, ExportResult


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("export")(export)


def export(
    study: StudyArgument = None,
    name: StudyOption = None,
    format_name: Annotated[
        str,
        typer.Option(
            "--format", "-f", metavar="F", help="Format of the file: deepspeed or accelerate."
        ),
    ] = "deepspeed",
    output: Annotated[
        str | None,
        typer.Option("-o", "--output", metavar="FILE", help="File to write; - is stdout."),
    ] = None,
    target_version: Annotated[
        str | None,
        typer.Option(
            "--target-version",
            metavar="V",
            help="Version of accelerate to write for [default: the installed one].",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
    runs: RunsOption = DEFAULT_RUNS,
    storage: StorageOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write the best configuration, checked to equal what was measured.

    FILE.provenance.json beside it says where it comes from. An unchanged earlier export is
    replaced; any other file only with --force.
    """
    import time

    from autotune import registry
    from autotune.cli.options import one_name, open_study
    from autotune.exporters import choosing, writing
    from autotune.exporters.provenance import provenance
    from autotune.report import document

    exporter = registry.load("exporters", format_name)
    file = None if output in (None, "-") else Path(str(output))
    if file is not None:
        writing.check_target(file)
    contents = open_study(runs, storage, one_name(study, name))
    report = document.build(contents)
    default_name = f"{contents.study.name}.{format_name}.json"
    request = choosing.choose(
        contents,
        report,
        file.name if file else default_name,
        folder=file.parent if file else None,
        target_version=target_version,
    )
    result = exporter(request)
    about = provenance(request, result, format_name=format_name, at=time.time())
    paths: tuple[Path, ...] = ()
    if file is not None:
        if not force:
            writing.check_replaceable(file, result.files)
        paths = writing.write(file, result.files, about)
    _tell(request, result, about, paths, as_json=as_json)


def _tell(
    request: ExportRequest,
    result: ExportResult,
    about: dict[str, Any],
    paths: tuple[Path, ...],
    *,
    as_json: bool,
) -> None:
    import sys

    from autotune.cli.output import note, print_json
    from autotune.report.words import plain, verdict_lines

    if as_json:
        files = {"files": [str(path) for path in paths]} if paths else {"texts": result.files}
        print_json(about | {"exported": files})
        return
    # With -o the words are the result; else stdout is the file and nothing but the file.
    say = typer.echo if paths else note
    if not paths:
        main, *companions = result.files
        sys.stdout.write(result.files[main])
        if companions:
            note(f"note: -o FILE also writes {', '.join(companions)}, which this file needs")
    for line in verdict_lines(request.report):
        say(plain(line))
    for path in paths:
        say(f"wrote {path}")
    say(f"{about['statement']}.")
    if result.checked_with is not None:
        say(f"loaded by {result.checked_with}.")
    for text in result.notes:
        note(f"note: {plain(text)}")
