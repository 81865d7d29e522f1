"""BUG-037: what one process has built, the ranks of a trial find and load without compiling."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import planted_adagrad
import pytest
from support_trials import make_plan, run_trial

from autotune.contract import processes
from autotune.contract.extensions import FOLDER_VARIABLE, ExtensionBuild
from autotune.contract.outcome import RankRecord
from autotune.worker.extensions import ExtensionError

HERE = str(Path(__file__).parent)


def launch(folder: Path, name: str, *, processes: int) -> list[RankRecord]:
    """Load DeepSpeed's CPU Adagrad in so many processes at once."""
    path = os.pathsep.join([os.environ["PATH"], str(Path(sys.executable).parent)])
    plan = make_plan(
        "zero3",
        changes={planted_adagrad.KNOB: True},
        purpose="extension",
        processes=processes,
        environment={FOLDER_VARIABLE: str(folder / "extensions"), "PATH": path},
    )
    records = run_trial(plan, folder / name, fault="planted_adagrad:plant", limit_s=400)
    assert None not in records
    return records


def build(folder: Path, name: str, *, processes: int) -> list[ExtensionBuild]:
    """The same where it must succeed."""
    records = launch(folder, name, processes=processes)
    for record in records:
        assert record.status == "built", record.error
    return [record.extension for record in records]


@pytest.mark.slow
def test_deepspeeds_own_extension_is_compiled_by_one_process_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", HERE, prepend=os.pathsep)
    (first,) = build(tmp_path, "first", processes=1)
    assert first.extension == "CPUAdagradBuilder"
    assert first.compiled
    folder = tmp_path / "extensions" / "cpu_adagrad"
    assert Path(first.library) == folder / "cpu_adagrad.so"
    made = {path: path.stat().st_mtime_ns for path in folder.iterdir() if path.suffix != ".ninja"}
    assert len([path for path in made if path.suffix == ".o"]) == 1
    for later in build(tmp_path, "later", processes=2):
        assert not later.compiled
        assert later.library == first.library
        assert later.seconds < first.seconds
    again = {path: path.stat().st_mtime_ns for path in made if path.suffix in (".o", ".so")}
    assert again == {path: made[path] for path in again}


def test_the_lock_of_a_killed_build_in_a_folder_of_the_users_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be somebody else's, so it is not removed; nor is waited for it."""
    monkeypatch.setenv("PYTHONPATH", HERE, prepend=os.pathsep)
    lock = tmp_path / "extensions" / "cpu_adagrad" / "lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    (record,) = launch(tmp_path, "first", processes=1)
    assert record.error is not None
    assert record.error.kind == "infra"
    assert f"{lock} is left of a build that no process of yours runs" in record.error.message
    with lock.open():
        assert processes.is_open(lock)
    assert not processes.is_open(lock)


GCC = """Error building extension 'x': [1/2] c++ -MMD -MF a.o.d -DERROR: -c /x/a.cpp -o a.o
FAILED: [code=1] a.o
c++ -MMD -MF a.o.d -c /x/a.cpp -o a.o
/x/a.cpp:1:10: fatal error: nothing.h: No such file or directory
compilation terminated.
ninja: build stopped: subcommand failed."""
NVCC = """Error building extension 'x': [1/2] /usr/bin/nvcc -c /x/a.cu -o a.cuda.o
FAILED: a.cuda.o
/x/a.cu(3): error: identifier "b" is undefined
1 error detected in the compilation of "/x/a.cu"."""
LINKER = """Error building extension 'x': [2/2] c++ a.o -shared -o x.so
FAILED: x.so
/usr/bin/ld: final link failed: No space left on device
collect2: error: ld returned 1 exit status"""
KILLED = """Error building extension 'x': [1/2] c++ -c /x/a.cpp -o a.o
FAILED: a.o
c++: fatal error: Killed signal terminated program cc1plus"""


@pytest.mark.parametrize(
    ("text", "said", "kind"),
    [
        (GCC, "/x/a.cpp:1:10: fatal error: nothing.h: No such file or directory", "incompatible"),
        (NVCC, '/x/a.cu(3): error: identifier "b" is undefined', "incompatible"),
        (LINKER, "/usr/bin/ld: final link failed: No space left on device", "infra"),
        (KILLED, "c++: fatal error: Killed signal terminated program cc1plus", "incompatible"),
        ("[Errno 116] Stale file handle: '/c/extensions/x/lock'", "[Errno 116] Stale", "infra"),
        ("ninja not installed", "ninja not installed", "incompatible"),
    ],
)
def test_the_reason_is_what_the_compiler_said(text: str, said: str, kind: str) -> None:
    error = ExtensionError("XBuilder", RuntimeError(text))
    assert str(error).startswith(f"XBuilder cannot be built: {said}")
    assert error.kind == kind
