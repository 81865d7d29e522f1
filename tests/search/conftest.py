from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from scripted import Bench

MEMORY = Path("/dev/shm")
"""Studies of the tests lie there: a commit to a disk waits some milliseconds for it, and one
search commits hundreds of times. What a killed process has written stays on both."""


@pytest.fixture(scope="session")
def memory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    if not os.access(MEMORY, os.W_OK):
        yield tmp_path_factory.mktemp("memory")
        return
    with tempfile.TemporaryDirectory(prefix="autotune-tests-", dir=MEMORY) as name:
        yield Path(name)


@pytest.fixture
def memory_path(memory: Path) -> Iterator[Path]:
    """As ``tmp_path``, but removed at the test's end."""
    with tempfile.TemporaryDirectory(dir=memory) as name:
        yield Path(name)


@pytest.fixture
def bench(memory_path: Path) -> Bench:
    return Bench(memory_path)
