"""What a search is asked for, and what it returns."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

from autotune.contract.folder import StudyFolder
from autotune.contract.plan import Topology
from autotune.launchers.base import Launcher
from autotune.space.search_space import SearchSpace
from autotune.store.records import StudyContents, Verdict

MakeLauncher = Callable[[StudyFolder, Topology, SearchSpace], Launcher]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SearchRequest:
    """``autotune search``, option by option."""

    space: str
    """Path of a space file, or the name of a shipped one."""
    text: str | None = None
    """The space file's text, where a study's record has it; ``None``: as the file is now."""
    overrides: tuple[str, ...] = ()
    """``KEY=VALUE`` of each ``--set``."""
    trials: int | None = None
    """How many trials the study is to have; ``None``: as the space file says."""
    study: str | None = None
    """Name; ``None``: the space file's stem."""
    runs: Path = Path("runs")
    storage: str | None = None
    """Database URL; ``None``: ``autotune.db`` in ``runs``."""
    anchors: bool = True
    early_stop: bool = True
    command: tuple[str, ...] = ("autotune", "search")
    """The words that resume the search."""
    launcher: str | None = None
    """``NAME`` or ``NAME=ARGUMENT``; ``None``: the study's own, else ``local``."""
    make_launcher: MakeLauncher | None = None
    """Makes a launcher in place of the one that is named."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SearchResult:
    """A search that ended by itself."""

    contents: StudyContents
    verdict: Verdict
