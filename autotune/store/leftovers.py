"""What a coordinator leaves half made that is killed while it writes.

A record is written aside and renamed, and the folder of a trial (a comparison) is made before its
header is written. Killed in between, a coordinator leaves a file under a passing name, and perhaps
a folder that holds nothing else. Nothing was launched from such a folder: its number is free.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from autotune.contract.folder import StudyFolder
from autotune.contract.plan import Purpose
from autotune.store import comparisons, layout

_UNFINISHED: Final = re.compile(r"\.[a-z-]+[0-9]*\.(json|yaml)\.[0-9a-f]{16}")
"""Passing names of our records (``contract.jsonfile.write_text``)."""


def is_hollow(folder: Path) -> bool:
    """Whether a numbered folder holds nothing but what its maker had not finished."""
    return all(_UNFINISHED.fullmatch(path.name) for path in folder.iterdir())


def remove(folder: StudyFolder) -> None:
    """Remove what is half made; the caller holds the study, so that nobody writes."""
    for path in _unfinished(folder):
        with contextlib.suppress(OSError):  # what cannot be removed harms nothing
            path.unlink()
    for numbered in _numbered(folder):
        with contextlib.suppress(OSError):
            if not any(numbered.iterdir()):
                numbered.rmdir()


def _numbered(folder: StudyFolder) -> Iterator[Path]:
    purposes: tuple[Purpose, ...] = ("trial", "remeasurement")
    parents = [layout.header_file(folder, purpose, 0).parent.parent for purpose in purposes]
    for parent in (*parents, folder.path / comparisons.FOLDER):
        for path in parent.iterdir() if parent.is_dir() else ():
            if path.name.isdecimal() and path.is_dir():
                yield path


def _unfinished(folder: StudyFolder) -> Iterator[Path]:
    places = [folder.path]
    for numbered in _numbered(folder):
        places += [numbered, *numbered.glob("attempt-*")]
    for place in places:
        for path in list(place.iterdir()) if place.is_dir() else ():
            if _UNFINISHED.fullmatch(path.name) and path.is_file():
                yield path
