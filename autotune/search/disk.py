"""Room on the disk that holds the studies."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Final

from autotune.errors import EnvironmentFault

MIN_FREE_BYTES: Final = 50 * 1024**2
"""Below this no launch is started: logs, records and the database need a few MiB each."""


def existing_parent(path: Path) -> Path:
    """``path`` itself, or the nearest folder above it that exists."""
    path = path.absolute()
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def check_room(path: Path) -> None:
    """Refuse to go on with a disk that is nearly full.

    Raises:
        EnvironmentFault: Less than 50 MiB are free where ``path`` lies.
    """
    try:
        usage = shutil.disk_usage(existing_parent(path))
    except OSError as error:
        raise EnvironmentFault(f"cannot look at {path}: {error.strerror or error}") from error
    free = usage.free
    if usage.total == 0:
        return  # no real disk (/proc): writing will tell
    if free < MIN_FREE_BYTES:
        raise EnvironmentFault(
            f"only {free // 1024**2} MiB are free on the disk that holds {path}",
            hint="free some space or choose another folder with --runs; the same command resumes",
        )


def check_writable(runs: Path) -> None:
    """Refuse a runs folder that cannot be written, without leaving anything.

    Rights alone do not tell: root has them everywhere, on file systems that take no files too.

    Raises:
        EnvironmentFault: It is a file, lies under one, or the folder above it takes no file.
    """
    try:
        parent = existing_parent(runs)
    except OSError as error:
        raise EnvironmentFault(
            f"the runs folder cannot be used: {error.strerror or error}",
            hint="choose another with --runs",
        ) from error
    if not parent.is_dir():
        raise EnvironmentFault(
            f"{runs} cannot be a folder: {parent} is a file", hint="choose another with --runs"
        )
    try:
        tempfile.TemporaryFile(dir=parent).close()
    except OSError as error:
        raise EnvironmentFault(
            f"the runs folder {runs} cannot be written: {error.strerror or error}",
            hint="choose another with --runs",
        ) from error
