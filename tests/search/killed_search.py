"""Searches in forked processes that end themselves with SIGKILL at their n-th change of anything.

``python killed_search.py FOLDER STEP``: each change to a trial's own folder, every third of those
before there is a trial, and every STEP-th of the others. A change is a file opened for writing,
renamed, removed or a folder made (the interpreter's audit events, which come before the change), or
a commit to the database. After each kill another process resumes; one JSON line says what the study
then holds.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import optuna
from scripted import Bench, by_micro_batch
from sqlalchemy import Engine, event

from autotune.contract.folder import StudyFolder
from autotune.search import history
from autotune.store.database import Store
from autotune.store.importer import read_study

TRIALS = 2
SPACE = """
version: 1
backend: zero3
workload: {model: qwen3-tiny, global_batch: 16, data: {lengths: ultrachat-like, max_length: 64}}
topology: {processes: 2}
baseline: {micro_batch: 1}
params:
  micro_batch: {choices: [1, 2, 4, 8]}
"""
ANY_TRIAL = "/trials/"
TRIAL = "/trials/00001"
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class Counter:
    """Notes changes below a folder; kills the process before the one numbered ``end``."""

    def __init__(self, folder: Path, end: int | None) -> None:
        self.changes: list[str] = []
        self._prefix = str(folder)
        self._end = end
        sys.addaudithook(self._hear)
        event.listen(Engine, "commit", lambda connection: self._add("commit"))

    def _hear(self, name: str, arguments: tuple[object, ...]) -> None:
        changes = name in ("os.mkdir", "os.rename", "os.remove", "os.rmdir")
        if name == "open":
            changes = isinstance(arguments[2], int) and bool(arguments[2] & WRITING)
        if changes and str(arguments[0]).startswith(self._prefix):
            self._add(str(arguments[0]))

    def _add(self, what: str) -> None:
        self.changes.append(what)
        if len(self.changes) == self._end:
            os.kill(os.getpid(), signal.SIGKILL)


def in_child(work: Callable[[], None]) -> int:
    """Run ``work`` in a forked process and return how that ended."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def search(folder: Path) -> dict[str, object]:
    """Search, and return what the study then holds."""
    bench = Bench(folder)
    result = bench.search(by_micro_batch, space=SPACE, trials=TRIALS)
    contents = result.contents
    study = StudyFolder.of(bench.runs, "s")
    storage = f"sqlite:///{bench.runs}/autotune.db"
    shown = optuna.load_study(study_name="s", storage=storage).trials
    store = Store(storage)
    ends = [[a.outcome.state for a in t.attempts if a.outcome is not None] for t in contents.trials]
    return {
        "numbers": [trial.number for trial in contents.trials],
        "keys": len({trial.header.key for trial in contents.trials}),
        "counted": history.counted(contents),
        "ends": [end[-1:] for end in ends],
        "before": sorted({state for end in ends for state in end[:-1]}),
        "rounds": len({one.header.round for one in contents.remeasurements} - {None}),
        "again": [one.number for one in contents.remeasurements],
        "problems": list(contents.problems),
        "verdict": None if result.verdict is None else result.verdict.verdict,
        "folder": read_study(study) == contents,
        "database": store.contents("s", study) == contents,
        "shown": sorted(trial.state.name for trial in shown if trial.state.name != "FAIL"),
        "left": sorted(path.name for path in bench.runs.rglob(".*.*.????????????????")),
    }


def lives(folder: Path, end: int) -> dict[str, object]:
    """Kill a search at its ``end``-th change, resume it, and say what came of it."""
    folder.mkdir()

    def first() -> None:
        Counter(folder, end)
        search(folder)

    def second() -> None:
        (folder / "result.json").write_text(json.dumps(search(folder)))

    killed = in_child(first)
    resumed = in_child(second)
    found = {"end": end, "killed": killed, "resumed": resumed}
    if resumed == 0:
        found |= json.loads((folder / "result.json").read_text())
    return found


def main() -> None:
    base, step = Path(sys.argv[1]), int(sys.argv[2])
    (base / "imports").mkdir()
    search(base / "imports")  # what is imported late is imported now

    def count() -> None:
        counter = Counter(base / "count", None)
        search(base / "count")
        (base / "changes.json").write_text(json.dumps(counter.changes))

    (base / "count").mkdir()
    assert in_child(count) == 0
    changes = json.loads((base / "changes.json").read_text())
    opening = next(end for end, what in enumerate(changes, start=1) if ANY_TRIAL in what)
    for end, what in enumerate(changes, start=1):
        every = min(3, step) if end < opening else step
        if end % every and TRIAL not in what:
            continue
        print(json.dumps(lives(base / str(end), end)), flush=True)


if __name__ == "__main__":
    main()
