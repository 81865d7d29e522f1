from __future__ import annotations

import os

import pytest
from launching import HERE, open_bench


@pytest.fixture(scope="session", autouse=True)
def _scripts_are_importable():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(HERE), prepend=os.pathsep)
        yield


@pytest.fixture(scope="session", params=["warm", "cold"])
def bench(request, tmp_path_factory):
    """One server for all tests, with all imports; they may not harm it."""
    path = tmp_path_factory.mktemp("runs") / "study"
    entry = "scripted_ranks:run_rank"
    bench = open_bench(path, warm=request.param == "warm", entry=entry)
    bench.launcher.start()
    yield bench
    bench.launcher.close()


@pytest.fixture
def own_bench(tmp_path):
    """A server that a test may kill; the cold one starts at once."""
    bench = open_bench(tmp_path / "runs" / "study", warm=False)
    yield bench
    bench.launcher.close()
