"""Options that several commands share, and what they stand for. Loads nothing heavy.

A command writes ``runs: RunsOption = DEFAULT_RUNS`` and so on; :func:`open_study` and its siblings
turn the values into objects.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from autotune.errors import InputError

if TYPE_CHECKING:
    from autotune.store.database import Store
    from autotune.store.records import StudyContents

DEFAULT_RUNS: Final = Path("runs")


def _folder(text: str | Path) -> Path:
    """Refuse an empty text: it would be the present folder, and nobody who gives it means that."""
    if not str(text).strip():
        raise typer.BadParameter("it is empty; give a folder, or leave --runs out for ./runs")
    return Path(text)


RunsOption = Annotated[
    Path,
    typer.Option(
        "--runs", metavar="DIR", help="Folder of your studies.", show_default=True, parser=_folder
    ),
]
StorageOption = Annotated[
    str | None,
    typer.Option(
        "--storage", metavar="URL", help="Database URL [default: sqlite:///DIR/autotune.db]"
    ),
]
LauncherOption = Annotated[
    str | None,
    typer.Option(
        "--launcher",
        metavar="NAME[=ARG]",
        help="Where trials run: local, or replay=TABLE, which plays recorded ones "
        "[default: the study's, else local].",
    ),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON document on stdout and nothing else.")
]
StudyArgument = Annotated[
    str | None, typer.Argument(metavar="STUDY", help="Name of the study; default: the latest.")
]
StudyOption = Annotated[
    str | None, typer.Option("--study", metavar="NAME", help="The same as the argument.")
]


def storage_url(runs: Path, storage: str | None) -> str:
    """The database to use: ``--storage``, else the one in ``--runs``."""
    from autotune.store.database import default_url

    return storage if storage is not None else default_url(runs)


def one_name(argument: str | None, option: str | None) -> str | None:
    """The study that was asked for by argument or by ``--study``; ``None`` for the latest.

    Raises:
        InputError: Both are given and differ.
    """
    if argument is not None and option is not None and argument != option:
        raise InputError(
            f"two studies are named: {argument!r} and --study {option!r}", hint="name one"
        )
    return argument if argument is not None else option


def open_store(runs: Path, storage: str | None) -> Store:
    """Open a database that is there already.

    Raises:
        InputError: There is no runs folder or no database.
    """
    from autotune.store.database import Store

    if storage is None and not runs.is_dir():
        raise InputError(
            f"there is no folder {runs}",
            hint="choose the folder of your studies with --runs, or start one with "
            "'autotune search --space zero3.yaml'",
        )
    return Store.existing(storage_url(runs, storage))


def open_study(runs: Path, storage: str | None, name: str | None) -> StudyContents:
    """Return all that is known of a study, the latest one if ``name`` is ``None``.

    Raises:
        InputError: There is no such study; names the known ones.
    """
    from autotune.store.reading import load_study

    store = open_store(runs, storage)
    try:
        return load_study(store, runs, name)
    finally:
        store.close()
