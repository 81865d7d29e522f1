"""Settings of the whole suite."""

from __future__ import annotations

import sys
from pathlib import Path

import hypothesis
import pytest

# The same examples everywhere, and no limit in seconds on a shared machine.
hypothesis.settings.register_profile("suite", deadline=None, derandomize=True, database=None)
hypothesis.settings.load_profile("suite")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Modules with slow tests first, so that no worker begins one when the others have ended."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)
    if any(Path("/dev").glob("nvidia[0-9]*")):
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


def pytest_collection_finish() -> None:
    """One thread for torch in this process: its waiting threads take the other workers' cores."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)
