"""``autotune search``: find the fastest valid configuration of a space file."""

from __future__ import annotations

import contextlib
import dataclasses
import shlex
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autotune.cli.options import (
    DEFAULT_RUNS,
    JsonOption,
    LauncherOption,
    RunsOption,
    StorageOption,
)
from autotune.errors import AutotuneError

if TYPE_CHECKING:
    from autotune.search.request import SearchRequest


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("search", no_args_is_help=False)(search)


def search(
    space: Annotated[
        str, typer.Option("--space", metavar="FILE", help="Space file, or a shipped one's name.")
    ],
    trials: Annotated[
        int | None,
        typer.Option(
            "--trials", metavar="N", help="Trials that the study is to have [default: the file's]."
        ),
    ] = None,
    study: Annotated[
        str | None,
        typer.Option("--study", metavar="NAME", help="Name [default: the space file's stem]."),
    ] = None,
    runs: RunsOption = DEFAULT_RUNS,
    storage: StorageOption = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Override a key of the space file; repeatable."
        ),
    ] = None,
    launcher: LauncherOption = None,
    as_json: JsonOption = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything, print the plan, start nothing.")
    ] = False,
    no_anchors: Annotated[
        bool, typer.Option("--no-anchors", help="Leave out the known configurations.")
    ] = False,
    no_early_stop: Annotated[
        bool, typer.Option("--no-early-stop", help="Time slow trials to the end, too.")
    ] = False,
) -> None:
    """Find the fastest valid configuration; the same command resumes a stopped search."""
    from autotune.search.request import SearchRequest

    request = SearchRequest(
        space=space,
        overrides=tuple(overrides or ()),
        trials=trials,
        study=study,
        runs=runs,
        storage=storage,
        launcher=launcher,
        anchors=not no_anchors,
        early_stop=not no_early_stop,
    )
    request = dataclasses.replace(request, command=_resume_words(request))
    if dry_run:
        _show_plan(request, as_json=as_json)
    else:
        _run(request, as_json=as_json)


def _show_plan(request: SearchRequest, *, as_json: bool) -> None:
    from autotune.cli.output import print_json
    from autotune.search.preview import preview, preview_lines
    from autotune.search.session import dry_run

    prepared = dry_run(request)
    if as_json:
        print_json(preview(prepared))
        return
    for line in preview_lines(prepared):
        typer.echo(line)


def _run(request: SearchRequest, *, as_json: bool) -> None:
    from autotune.cli.display import make_display
    from autotune.search.preflight import study_name
    from autotune.search.session import run_search

    with make_display(sys.stderr if as_json else sys.stdout) as display:
        try:
            result = run_search(request, display)
        except AutotuneError as error:
            # Whoever asked for JSON gets the document of what there is; the error goes to stderr.
            if as_json and error.exit_code in (1, 130):
                with contextlib.suppress(BrokenPipeError):  # the error is what counts
                    _print_document(request, study_name(request))
            raise
    name = result.contents.study.name
    if as_json:
        _print_document(request, name)
    else:
        typer.echo(f"  {shlex.join(_report_words(name, request))} shows it all")


def _report_words(study: str, request: SearchRequest) -> list[str]:
    words = [*_program(), "report", study]
    if request.runs != DEFAULT_RUNS:
        words.append(f"--runs={request.runs}")
    return words if request.storage is None else [*words, f"--storage={request.storage}"]


def _print_document(request: SearchRequest, study: str) -> None:
    from autotune.cli.output import print_json
    from autotune.contract.folder import StudyFolder
    from autotune.report.document import build
    from autotune.store.importer import read_study

    folder = StudyFolder.of(request.runs, study)
    if folder.study_file.exists():
        print_json(build(read_study(folder)))


def _resume_words(request: SearchRequest) -> tuple[str, ...]:
    """The words of the command that resumes, from the options as they were understood."""
    space = request.space
    words = [*_program(), "search", f"--space={space}" if space.startswith("-") else "--space"]
    if not space.startswith("-"):
        words.append(space)
    if request.trials is not None:
        words += ["--trials", str(request.trials)]
    for option, value in (
        ("--study", request.study),
        ("--runs", request.runs),
        ("--storage", request.storage),
        ("--launcher", request.launcher),
    ):
        if value is not None and value != DEFAULT_RUNS:
            words.append(f"{option}={value}")
    words += [f"--set={override}" for override in request.overrides]
    words += [] if request.anchors else ["--no-anchors"]
    words += [] if request.early_stop else ["--no-early-stop"]
    return tuple(words)


def _program() -> list[str]:
    """The words that call the program here: its path where PATH does not find this one."""
    called = Path(sys.argv[0])
    if called.name == "__main__.py":
        return [_found("python", Path(sys.executable)), "-m", "autotune"]
    return [_found("autotune", called) if called.name == "autotune" else "autotune"]


def _found(name: str, program: Path) -> str:
    found = shutil.which(name)
    same = found is not None and Path(found).absolute() == program.absolute()
    return name if same else str(program)
