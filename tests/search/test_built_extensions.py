"""BUG-037 with a real compiler: real searches, real builds, killed and resumed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
WAIT_S = 120.0
SPACE = """
version: 1
backend: zero3
workload: {model: qwen3-tiny, global_batch: 4, data: {lengths: ultrachat-like, max_length: 32}}
topology: {processes: 2}
baseline: {micro_batch: 1, allgather_sequential: true}
params:
  allgather_sequential: {choices: [false, true]}
"""
SOURCE = """
#include <Python.h>
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "planted", nullptr, -1, nullptr};
PyMODINIT_FUNC PyInit_planted() {
  PyObject* made = PyModule_Create(&module);
  PyModule_AddIntConstant(made, "answer", 42);
  return made;
}
"""
SLOW = """#!/bin/sh
# A compiler that takes its time, as long as the file `slow` is there.
here=$(dirname "$0")
case " $* " in *" -c "*)
  echo $$ > "$here/compiling"
  if [ -e "$here/full" ]; then
    rm "$here/full"
    echo "fatal error: error writing to x.s: No space left on device" >&2
    exit 1
  fi
  while [ -e "$here/slow" ]; do sleep 0.05; done;;
esac
exec g++ "$@"
"""


class Place:
    """A folder with a space file, a source and a compiler."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.compiler = folder / "bin"
        self.compiler.mkdir()
        (self.compiler / "c++").write_text(SLOW)
        (self.compiler / "c++").chmod(0o755)
        (folder / "space.yaml").write_text(SPACE)
        self.source = folder / "planted.cpp"
        self.source.write_text(SOURCE)
        self.started: list[subprocess.Popen[str]] = []

    def start(self, study: str = "s") -> subprocess.Popen[str]:
        """Begin a search."""
        environment = {
            name: value for name, value in os.environ.items() if name != "TORCH_EXTENSIONS_DIR"
        } | {
            "PATH": f"{self.compiler}:{os.environ['PATH']}",
            "PYTHONPATH": f"{HERE}:{ROOT}",
            "PLANTED_SOURCES": str(self.folder),
        }
        command = [sys.executable, str(HERE / "extension_search.py"), str(self.folder)]
        process = subprocess.Popen(
            [*command, study],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.started.append(process)
        return process

    def search(self, study: str = "s") -> str:
        """Search to the end and return what was said."""
        return self.start(study).communicate(timeout=300)[0]

    def begin_build(self) -> tuple[subprocess.Popen[str], int]:
        """Begin a search and wait until the compiler runs; return both."""
        (self.compiler / "slow").touch()
        process = self.start()
        return process, wait_for(self._compiling)

    def _compiling(self) -> int | None:
        with contextlib.suppress(OSError, ValueError):
            return int((self.compiler / "compiling").read_text())
        return None

    def made(self) -> dict[str, int]:
        """What compilers made, and when."""
        cache = self.folder / "runs" / ".cache"
        files = [*cache.rglob("*.o"), *cache.rglob("*.so")]
        return {path.name: path.stat().st_mtime_ns for path in files}

    def locks(self) -> list[Path]:
        return list((self.folder / "runs" / ".cache").rglob("extensions/*/lock"))

    def outcomes(self, study: str = "s") -> dict[bool, str]:
        """State of each trial, by the setting."""
        found = {}
        for file in (self.folder / "runs" / study / "trials").glob("*/attempt-*/outcome.json"):
            plan = json.loads((file.parent / "plan.json").read_text())
            state = json.loads(file.read_text())["state"]
            found[plan["config"]["zero3.allgather_sequential"]] = state
        return found


def wait_for(condition) -> int:
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError("waited in vain")


def is_running(pid: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    for process in made.started:
        if process.poll() is None:
            process.kill()
            process.communicate()


def test_no_trial_compiles_what_was_built_before(place: Place) -> None:
    said = place.search()
    assert "the extension PlantedBuilder was built in" in said
    assert said.endswith("done\n")
    assert place.outcomes() == {True: "complete"}
    built = place.folder / "runs" / "s" / "extensions" / "00000" / "attempt-0" / "rank-0.json"
    record = json.loads(built.read_text())
    assert record["extension"]["compiled"] is True
    before = place.made()
    assert set(before) == {"planted.o", "planted.so"}
    # Two ranks and several launches have loaded it since.
    assert max(before.values()) / 1e9 <= record["ended_at"]
    said = place.search("other")
    assert "the extension PlantedBuilder was there, and loaded" in said
    assert place.outcomes("other") == {True: "complete"}
    assert place.made() == before


def test_a_compilers_error_leaves_the_value_out_in_its_words(place: Place) -> None:
    (place.folder / "space.yaml").write_text(SPACE.replace("tial: true", "tial: false"))
    place.source.write_text(SOURCE.replace("42", "forty_two"))
    said = place.search()
    assert "zero3.allgather_sequential: true is left out: PlantedBuilder cannot be built: " in said
    assert "planted.cpp:6:" in said
    assert "‘forty_two’ was not declared" in said or "'forty_two' was not declared" in said
    assert place.outcomes() == {False: "complete"}


def test_a_disk_that_was_full_is_the_machines_fault_and_tried_again(place: Place) -> None:
    (place.compiler / "full").touch()
    said = place.search()
    assert "No space left on device; tried again" in said
    assert "the extension PlantedBuilder was built in" in said


def test_a_coordinator_killed_in_mid_build_leaves_nothing_running_and_the_next_recovers(
    place: Place,
) -> None:
    process, compiler = place.begin_build()
    tree = [one.pid for one in psutil.Process(process.pid).children(recursive=True)]
    assert compiler in tree
    (lock,) = place.locks()
    process.send_signal(signal.SIGKILL)
    wait_for(lambda: not any(is_running(pid) for pid in tree))
    process.communicate(timeout=60)
    assert lock.exists()
    (place.compiler / "slow").unlink()
    said = place.search()
    assert f"removed {lock}, the lock of a build that was killed" in said
    assert "the extension PlantedBuilder was built in" in said
    assert place.outcomes() == {True: "complete"}
    assert place.locks() == []


def test_ctrl_c_in_mid_build_ends_all_of_it(place: Place) -> None:
    process, _ = place.begin_build()
    tree = [one.pid for one in psutil.Process(process.pid).children(recursive=True)]
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=60)
    assert said.endswith("InterruptedSearch\n")
    assert "interrupted before the first trial" in said
    assert not any(is_running(pid) for pid in tree)
    assert not (place.folder / "runs" / "s").exists()
