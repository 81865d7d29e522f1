"""Build an extension before any trial needs it: one process, no ranks that wait for it."""

from __future__ import annotations

import contextlib
import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from autotune.backends.base import backend_of
from autotune.contract import errortexts
from autotune.contract.extensions import FOLDER_VARIABLE, ExtensionBuild
from autotune.contract.plan import Plan
from autotune.errors import EnvironmentFault
from autotune.worker.failures import TrialError

if TYPE_CHECKING:
    from autotune.backends.base import CompilingBackend

_MADE: Final = (".o", ".so")
"""Ends of the names of what compilers and linkers write."""
_FAULT: Final = re.compile(r"\berror\b.{0,3}:|undefined reference|\bld: |Killed|Error \d+")
"""A line in which a compiler (g++, clang, nvcc, ptxas, ld) or ninja says what is wrong."""

_COMMANDS: Final = ("[", "FAILED", "Error building")
"""How ninja and torch begin lines that only repeat a command."""


class ExtensionError(TrialError):
    """An extension cannot be built or loaded."""

    def __init__(self, name: str, error: Exception) -> None:
        text = str(error)
        types = {cls.__name__ for cls in type(error).__mro__}
        kind = errortexts.kind_of(types, text)
        # The compiler's word on the same sources stays the same: no accident.
        self.kind = "incompatible" if kind == "crash" else kind
        super().__init__(f"{name} cannot be built: {_said(text) or type(error).__name__}")


def build(plan: Plan) -> ExtensionBuild:
    """Build and load the extension that the plan's one knob needs.

    Raises:
        ExtensionError: That failed; the cause holds all that the compiler said.
        EnvironmentFault: As the backend raises it.
    """
    (name,) = plan.verify
    backend = cast("CompilingBackend", backend_of(plan.backend))
    knob = next(knob for knob in backend.knobs if knob.full_name == name)
    extension = knob.extension(plan.config[name])
    assert extension is not None, "only a value that needs one is planned"
    folder = Path(os.environ[FOLDER_VARIABLE])
    before, begun = _made(folder), time.perf_counter()
    try:
        library = backend.load_extension(extension)
    except EnvironmentFault:
        raise
    except Exception as error:  # an engine's builder may fail in any way
        raise ExtensionError(extension, error) from error
    return ExtensionBuild(
        extension=extension,
        library=library,
        compiled=_made(folder) != before,
        seconds=time.perf_counter() - begun,
    )


def _made(folder: Path) -> set[tuple[str, int]]:
    """Files that compilers made, with the times of their last change."""
    made: set[tuple[str, int]] = set()
    for path in folder.rglob("*"):
        if path.suffix in _MADE:
            with contextlib.suppress(FileNotFoundError):  # of somebody else's build
                made.add((str(path), path.stat().st_mtime_ns))
    return made


def _said(text: str) -> str:
    """The first line that says what is wrong; a compiler's output begins with its command."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    answers = (line for line in lines if not line.startswith(_COMMANDS))
    return next(filter(_FAULT.search, answers), lines[0] if lines else "")
