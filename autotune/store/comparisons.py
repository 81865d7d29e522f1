"""Comparisons of two configurations that a user asked for, each one folder of the study.

::

    STUDY/comparisons/00000/comparison.json   what was asked for
    STUDY/comparisons/00000/result.json       what was found, once it is

The launches are re-measurements of the study (role ``compared``), and name the comparison.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Final, Literal

from autotune.contract import codec, jsonfile
from autotune.contract.folder import StudyFolder
from autotune.errors import AutotuneError

FOLDER: Final = "comparisons"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ComparisonHeader:
    """Two configurations to be launched in turns."""

    schema_version: int = 1
    number: int
    names: tuple[str, ...]
    """The two, as the user named them."""
    trials: tuple[int, ...]
    """The trials that hold them."""
    rounds: int
    context: str
    created_at: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class ComparisonResult:
    """What the launches showed."""

    schema_version: int = 1
    number: int
    verdict: Literal["a_faster", "b_faster", "tie", "failed"]
    ratio: float | None = None
    """A's time ÷ B's time: above 1 B is faster."""
    low: float | None = None
    high: float | None = None
    """95 % interval of ``ratio`` between launches."""
    rounds: int
    """Whole rounds that it rests on."""
    winner: int | None = None
    """The trial to take; of a tie the one that the tie rule names; ``None`` when one failed."""
    reason: str = ""
    at: float


def begin(folder: StudyFolder, header: ComparisonHeader) -> None:
    """Record what is asked for, before the first launch."""
    jsonfile.write_json(_path(folder, header.number) / "comparison.json", codec.to_json(header))


def end(folder: StudyFolder, result: ComparisonResult) -> None:
    """Record what was found."""
    jsonfile.write_json(_path(folder, result.number) / "result.json", codec.to_json(result))


def unfinished(
    folder: StudyFolder, trials: tuple[int, ...], rounds: int, context: str
) -> ComparisonHeader | None:
    """The last comparison of the same two that has no result yet; files that are none are skipped.

    Its finished rounds count.
    """
    for number in reversed(_numbers(folder)):
        path = _path(folder, number)
        if (path / "result.json").exists():
            continue
        try:
            data = jsonfile.read_json(path / "comparison.json")
            header = codec.from_json(ComparisonHeader, data, where=str(path))
        except (AutotuneError, OSError):
            continue
        if (header.trials, header.rounds, header.context) == (trials, rounds, context):
            return header
    return None


def next_number(folder: StudyFolder) -> int:
    """The next free number."""
    return max(_numbers(folder), default=-1) + 1


def _numbers(folder: StudyFolder) -> list[int]:
    found = (path.name for path in (folder.path / FOLDER).glob("*") if path.is_dir())
    return sorted(int(name) for name in found if name.isdecimal())


def _path(folder: StudyFolder, number: int) -> Path:
    return folder.path / FOLDER / f"{number:05d}"
