from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from study_factory import StudyBuilder, measured

from autotune.contract.folder import StudyFolder
from autotune.errors import EnvironmentFault
from autotune.store import lock
from autotune.store.importer import import_runs, read_study

HOLDER = """
import sys, time
from pathlib import Path
from autotune.contract.folder import StudyFolder
from autotune.store import lock
with lock.hold(StudyFolder(Path(sys.argv[1]))):
    print("held", flush=True)
    sys.stdin.read()
"""


def start_holder(folder: StudyFolder) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def test_a_second_coordinator_is_refused_and_told_of_the_first(tmp_path: Path) -> None:
    folder = StudyFolder.of(tmp_path, "demo")
    holder = start_holder(folder)
    try:
        with (
            pytest.raises(EnvironmentFault, match=f"process {holder.pid}") as caught,
            lock.hold(folder),
        ):
            pytest.fail("two coordinators")
        assert caught.value.exit_code == 3
    finally:
        end(holder)


def test_a_killed_coordinator_leaves_no_lock(tmp_path: Path) -> None:
    study = StudyBuilder(tmp_path)
    study.trial(measured(0.5))
    study.trial(None)
    holder = start_holder(study.folder)
    assert lock.is_held(study.folder)
    assert [t.state for t in read_study(study.folder).trials] == ["complete", "running"]
    holder.send_signal(signal.SIGKILL)
    holder.communicate()
    assert not lock.is_held(study.folder)
    assert [t.state for t in read_study(study.folder).trials] == ["complete", "interrupted"]
    with lock.hold(study.folder):
        assert lock.is_held(study.folder)
    assert not lock.is_held(study.folder)


def test_looking_for_a_lock_creates_nothing(tmp_path: Path) -> None:
    assert not lock.is_held(StudyFolder.of(tmp_path, "demo"))
    assert list(tmp_path.iterdir()) == []


def test_an_import_leaves_a_running_study_alone(tmp_path: Path) -> None:
    study = StudyBuilder(tmp_path)
    with lock.hold(study.folder):
        done = import_runs(tmp_path, study.store)
    assert done.studies == ()
    assert "search is running" in done.problems[0]


def test_a_lock_whose_folder_was_removed_while_it_was_awaited_is_not_taken(tmp_path: Path) -> None:
    """The first search made no study, and takes its folder away as it ends."""
    folder = StudyFolder.of(tmp_path, "demo")
    holder = start_holder(folder)
    with folder.lock_file.open("rb") as removed:
        threading.Timer(0.3, lambda: (shutil.rmtree(folder.path), end(holder))).start()
        with lock.hold(folder):
            assert lock.is_held(folder)
            assert not os.path.samestat(os.fstat(removed.fileno()), folder.lock_file.stat())
            with pytest.raises(EnvironmentFault), lock.hold(folder):
                pytest.fail("two coordinators")


def test_a_lock_that_cannot_be_made_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = StudyFolder.of(tmp_path, "demo")

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(EnvironmentFault, match="no space left"), lock.hold(folder):
        pytest.fail("held")
    assert not folder.path.exists()
