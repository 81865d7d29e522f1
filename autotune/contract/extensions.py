"""What came of building an extension: C++ or CUDA code that an engine compiles at first use."""

from __future__ import annotations

import dataclasses
from typing import Final

FOLDER_VARIABLE: Final = "TORCH_EXTENSIONS_DIR"
"""Says where extensions are built and found (``torch/utils/cpp_extension.py``)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExtensionBuild:
    """One extension, built or found by one rank."""

    extension: str
    """As its engine names it."""
    library: str
    """The file that was loaded."""
    compiled: bool
    """Whether anything was compiled for it; else all was there."""
    seconds: float
    """Until it was loaded."""
