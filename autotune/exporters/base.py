"""What every export target does. A new target is one new file and one line in the registry."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from autotune.contract.outcome import Outcome
from autotune.contract.plan import Plan
from autotune.store.records import StudyContents


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportRequest:
    """One measured configuration to write out."""

    contents: StudyContents
    report: Mapping[str, Any]
    """The report document; ``report["best"]`` is what is exported."""
    trial: int
    plan: Plan
    """The plan that was measured, from its trial folder."""
    outcome: Outcome
    """What its ranks returned."""
    file_name: str
    """Name of the main file, without a folder."""
    folder: Path | None = None
    """Where the files will lie; ``None`` if they are printed."""
    target_version: str | None = None
    """Version of the target's package to write for; ``None`` for the installed one."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportResult:
    """Files to write side by side."""

    files: dict[str, str]
    """File name to text; the first is the main file and has the name that was asked for."""
    notes: tuple[str, ...] = ()
    """What the user must know: what the target cannot say, what was not checked."""
    adaptations: tuple[str, ...] = ()
    """What stands in another form than the measured engine had it, to the same effect."""
    losses: tuple[str, ...] = ()
    """What was measured and cannot be said in these files; empty: they equal what ran."""
    checked_with: str | None = None
    """Package and version that loaded the files; ``None`` if it is not installed here."""


class Exporter(Protocol):
    """The function that the registry names for a format."""

    def __call__(self, request: ExportRequest) -> ExportResult:
        """Return the files, checked.

        Raises:
            NothingToExportError: The target cannot say this configuration; says why.
        """
