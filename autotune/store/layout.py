"""Files of the store inside a study's folder, beside those of ``contract.folder``."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from autotune.contract.folder import StudyFolder
from autotune.contract.plan import Purpose

HEADER_NAMES: Final[dict[Purpose, str]] = {
    "trial": "trial.json",
    "remeasurement": "remeasurement.json",
}


def header_file(folder: StudyFolder, purpose: Purpose, number: int) -> Path:
    """Where the header of a trial or re-measurement lies."""
    return folder.attempt(purpose, number, 0).path.parent / HEADER_NAMES[purpose]


def verdict_file(folder: StudyFolder) -> Path:
    """Where the verdict of the confirmation lies."""
    return folder.path / "verdict.json"
