from __future__ import annotations

import itertools
import os

import pytest
from launching import HERE, WAIT_S, make_attempt, make_plan

from autotune.contract.folder import StudyFolder
from autotune.launchers.local import LocalLauncher


@pytest.fixture(scope="session", autouse=True)
def _scripts_are_importable():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(HERE), prepend=os.pathsep)
        yield


class Bench:
    """A launcher with scripted ranks."""

    def __init__(self, launcher: LocalLauncher, study: StudyFolder) -> None:
        self.launcher = launcher
        self.study = study
        self._numbers = itertools.count()

    def submit(self, *actions, **plan):
        plan = make_plan(processes=len(actions), **plan)
        folder = make_attempt(self.study, next(self._numbers), list(actions), plan)
        return self.launcher.submit(folder, plan), folder

    def run(self, *actions, **plan):
        job, folder = self.submit(*actions, **plan)
        status = self.launcher.poll(job, timeout_s=WAIT_S)
        assert status.state == "ended"
        return status, folder


def open_bench(path, *, warm):
    study = StudyFolder(path)
    return Bench(LocalLauncher(study, 2, "cpu", warm, entry="scripted_ranks:run_rank"), study)


@pytest.fixture(scope="module", params=["warm", "cold"])
def bench(request, tmp_path_factory):
    """One server for all tests of a module; they may not harm it."""
    bench = open_bench(tmp_path_factory.mktemp("runs") / "study", warm=request.param == "warm")
    bench.launcher.start()
    yield bench
    bench.launcher.close()


@pytest.fixture
def own_bench(tmp_path):
    """A server that a test may kill; the cold one starts at once."""
    bench = open_bench(tmp_path / "runs" / "study", warm=False)
    yield bench
    bench.launcher.close()
