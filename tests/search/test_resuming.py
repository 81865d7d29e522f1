"""What a later search makes of an earlier one: changed spaces, contexts, killed coordinators."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import optuna
import pytest
from scripted import SPACE, Act, Bench, by_micro_batch

from autotune.contract.folder import StudyFolder
from autotune.errors import EnvironmentFault, InputError, SchemaTooNewError
from autotune.search import history
from autotune.search.events import SearchStarted
from autotune.store.importer import read_study
from autotune.store.lock import hold


def started(bench: Bench) -> SearchStarted:
    return next(event for event in bench.events if isinstance(event, SearchStarted))


def test_changed_space_says_what_changed_and_old_trials_inform(bench: Bench) -> None:
    bench.search(by_micro_batch, trials=6)
    narrower = SPACE.replace("[1, 2, 4, 8]", "[1, 2, 4]")
    result = bench.search(by_micro_batch, space=narrower, trials=9)
    assert "the space changed:" in bench.messages()
    assert "micro_batch" in bench.messages()
    inside = [t for t in result.contents.trials[:6] if t.header.params["micro_batch"] != 8]
    assert started(bench).observations == len(inside)
    assert started(bench).counted == 6
    assert history.counted(result.contents) == 9
    best = result.contents.trial(result.verdict.best_trial or 0)
    assert best is not None
    assert best.header.params["micro_batch"] == 4


def test_another_workload_measures_the_baseline_anew(bench: Bench) -> None:
    first = bench.search(by_micro_batch, trials=5)
    other = SPACE.replace("max_length: 64", "max_length: 128")
    result = bench.search(by_micro_batch, space=other, trials=4)
    assert "not comparable" in bench.messages()
    assert started(bench).observations == started(bench).counted == 0
    assert len(result.contents.trials) == 5 + 4
    assert [t.header.origin for t in result.contents.trials].count("baseline") == 2
    assert first.contents.study.context != result.contents.study.context
    baseline = result.contents.baseline()
    assert baseline is not None
    assert baseline.number == 5


def test_going_back_to_an_earlier_workload_uses_its_trials_again(bench: Bench) -> None:
    other = SPACE.replace("max_length: 64", "max_length: 128")
    bench.search(by_micro_batch, trials=5)
    bench.search(by_micro_batch, space=other, trials=3)
    assert "kept and shown, but not counted: 5; the baseline is measured anew" in bench.messages()
    result = bench.search(by_micro_batch, trials=6)
    assert "but not counted: 3" in bench.messages()
    assert "used again: 5" in bench.messages()
    assert "measured anew" not in bench.messages()
    assert started(bench).counted == 5
    assert len(result.contents.trials) == 5 + 3 + 1


def test_changed_baseline_is_measured_once(bench: Bench) -> None:
    bench.search(by_micro_batch, trials=5)
    other = SPACE.replace("baseline: {micro_batch: 1}", "baseline: {micro_batch: 2}")
    result = bench.search(by_micro_batch, space=other, trials=6)
    baseline = result.contents.baseline()
    assert baseline is not None
    assert baseline.header.params["micro_batch"] == 2
    keys = [trial.header.key for trial in result.contents.trials]
    assert len(keys) == len(set(keys)) == 6


def test_reordered_space_is_the_same(bench: Bench) -> None:
    bench.search(by_micro_batch, trials=4)
    bench.search(by_micro_batch, space=SPACE + "\n# a comment\n", trials=4)
    assert "the space changed" not in bench.messages()
    assert bench.launcher is not None
    assert bench.launcher.plans == []


KILLED = """
import sys
sys.path.insert(0, {tests!r})
from pathlib import Path
from scripted import Act, Bench, by_micro_batch

def script(plan):
    return Act(forever=True) if plan.number == 3 else by_micro_batch(plan)

Bench(Path({folder!r})).search(script, trials=6)
"""


def test_kill_9_in_mid_trial_and_the_same_command_goes_on(bench: Bench) -> None:
    code = KILLED.format(tests=str(Path(__file__).parent), folder=str(bench.runs.parent))
    coordinator = subprocess.Popen([sys.executable, "-c", code], env=os.environ | {})
    try:
        plan = StudyFolder.of(bench.runs, "s").attempt("trial", 3, 0).plan_file
        deadline = time.monotonic() + 120
        while not plan.exists():
            assert coordinator.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        coordinator.send_signal(signal.SIGKILL)
        coordinator.wait()
    result = bench.search(by_micro_batch, trials=6)
    assert len(result.contents.trials) == history.counted(result.contents) == 6
    trial = result.contents.trial(3)
    assert trial is not None
    assert [a.outcome.state for a in trial.attempts if a.outcome] == ["interrupted", "complete"]
    shown = optuna.load_study(study_name="s", storage=f"sqlite:///{bench.runs}/autotune.db")
    states = [t.state.name for t in shown.trials]
    assert states.count("COMPLETE") == 6
    assert "RUNNING" not in states


KILLED_ANYWHERE = """
import sys, time
sys.path.insert(0, {tests!r})
from pathlib import Path
from scripted import Bench, by_micro_batch

def script(plan):
    time.sleep(0.05)
    return by_micro_batch(plan)

Bench(Path({folder!r})).search(script, trials=12)
"""


def test_kill_9_at_any_moment_loses_nothing_and_counts_nothing_twice(bench: Bench) -> None:
    """At each single change: ``test_killed_at_every_step.py``; real trials: ``kills.py``."""
    folder = str(bench.runs.parent)
    code = KILLED_ANYWHERE.format(tests=str(Path(__file__).parent), folder=folder)
    study = StudyFolder.of(bench.runs, "s")
    moments = random.Random(7)
    for _ in range(5):
        coordinator = subprocess.Popen([sys.executable, "-c", code])
        try:
            # Its imports take most of the time: the moments lie in what follows them.
            before = len(list(study.path.glob("*/*/attempt-*")))
            deadline = time.monotonic() + 120
            while len(list(study.path.glob("*/*/attempt-*"))) == before:
                if coordinator.poll() is not None or time.monotonic() > deadline:
                    break
                time.sleep(0.005)
            time.sleep(moments.uniform(0.0, 0.4))
        finally:
            coordinator.send_signal(signal.SIGKILL)
            coordinator.wait()
    result = bench.search(by_micro_batch, trials=12)
    trials = result.contents.trials
    assert [trial.number for trial in trials] == list(range(12))
    assert len({trial.header.key for trial in trials}) == 12
    assert history.counted(result.contents) == 12
    assert result.contents.problems == ()
    for trial in trials:
        states = [attempt.outcome.state for attempt in trial.attempts if attempt.outcome]
        assert states[-1] == "complete"
        assert set(states[:-1]) <= {"interrupted"}
    assert read_study(study) == result.contents


def test_users_optuna_study_holds_the_truth(bench: Bench) -> None:
    def script(plan):
        if plan.config["workload.micro_batch"] == 2:
            return Act(error="CUDA out of memory", error_type="torch.OutOfMemoryError")
        return by_micro_batch(plan)

    result = bench.search(script, trials=10)
    storage = f"sqlite:///{bench.runs}/autotune.db"
    shown = optuna.load_study(study_name="s", storage=storage)
    assert len(shown.trials) == 10
    for trial, record in zip(shown.trials, result.contents.trials, strict=True):
        assert trial.user_attrs["trial"] == record.number
        assert trial.user_attrs["params"] == record.header.params
        assert trial.params == record.header.params
        if record.measurement is not None:
            assert trial.value == record.measurement.s_per_it
        else:
            assert trial.state.name == "FAIL"
            assert trial.user_attrs["kind"] == "oom_device"
            assert trial.user_attrs["log"].endswith("rank-0.log")


def test_foreign_optuna_study_is_left_alone(bench: Bench) -> None:
    bench.runs.mkdir()
    storage = f"sqlite:///{bench.runs}/autotune.db"
    optuna.create_study(study_name="s", storage=storage)
    with pytest.raises(InputError, match="not of autotune"):
        bench.search(by_micro_batch)
    assert not (bench.runs / "s").exists()


def test_a_study_of_ours_that_is_not_marked_yet_is_no_foreign_one(bench: Bench) -> None:
    """Optuna makes a study and marks it in two steps; a search may be killed in between."""
    bench.search(by_micro_batch, trials=2)
    storage = f"sqlite:///{bench.runs}/autotune.db"
    optuna.delete_study(study_name="s", storage=storage)
    optuna.create_study(study_name="s", storage=storage)
    bench.search(by_micro_batch, trials=3)
    assert len(optuna.load_study(study_name="s", storage=storage).trials) == 3


def test_deleted_folder_begins_anew(bench: Bench) -> None:
    import shutil

    bench.search(by_micro_batch, trials=4)
    shutil.rmtree(bench.runs / "s")
    result = bench.search(by_micro_batch, trials=3)
    assert "whose folder is gone, was replaced" in bench.messages()
    assert len(result.contents.trials) == 3
    shown = optuna.load_study(study_name="s", storage=f"sqlite:///{bench.runs}/autotune.db")
    assert len(shown.trials) == 3


def test_damage_in_optunas_tables_is_called_damage(bench: Bench) -> None:
    bench.search(by_micro_batch, trials=2)
    file = bench.runs / "autotune.db"
    with contextlib.closing(sqlite3.connect(file)) as database:
        query = "select rootpage from sqlite_master where name = 'studies'"
        (page,) = database.execute(query).fetchone()
        (size,) = database.execute("pragma page_size").fetchone()
    with file.open("r+b") as raw:
        raw.seek((page - 1) * size)
        raw.write(b"\xff" * size)
    with pytest.raises(EnvironmentFault, match="damaged") as caught:
        bench.search(by_micro_batch, trials=3)
    assert "autotune import" in (caught.value.hint or "")
    file.unlink()
    assert history.counted(bench.search(by_micro_batch, trials=3).contents) == 3


def test_one_coordinator_a_study(bench: Bench) -> None:
    bench.search(by_micro_batch, trials=2)
    with hold(StudyFolder.of(bench.runs, "s")), pytest.raises(EnvironmentFault, match="another"):
        bench.search(by_micro_batch, trials=3)


def test_newer_record_is_refused_and_left(bench: Bench) -> None:
    """BUG-023: both versions in one line, and nothing is written."""
    bench.search(by_micro_batch, trials=2)
    file = StudyFolder.of(bench.runs, "s").study_file
    newer = file.read_text().replace('"schema_version": 1', '"schema_version": 99')
    file.write_text(newer)
    with pytest.raises(SchemaTooNewError, match="99"):
        bench.search(by_micro_batch, trials=3)
    assert file.read_text() == newer


def test_no_half_made_study_when_the_launcher_cannot_start(bench: Bench) -> None:
    def prepare(launcher) -> None:
        def fail() -> None:
            raise EnvironmentFault("no fork server")

        launcher.start = fail

    with pytest.raises(EnvironmentFault, match="no fork server"):
        bench.search(by_micro_batch, prepare=prepare)
    assert not (bench.runs / "s").exists()
    with pytest.raises(EnvironmentFault):
        bench.search(by_micro_batch, prepare=prepare)


def test_full_disk_stops_before_a_launch(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    from autotune.search import disk

    bench.search(by_micro_batch, trials=2)
    monkeypatch.setattr(disk, "MIN_FREE_BYTES", 2**62)
    with pytest.raises(EnvironmentFault, match="MiB are free"):
        bench.search(by_micro_batch, trials=4)
    monkeypatch.undo()
    result = bench.search(by_micro_batch, trials=4)
    assert history.counted(result.contents) == 4


def test_damaged_trial_is_said_and_its_number_not_used_again(bench: Bench) -> None:
    bench.search(by_micro_batch, trials=4)
    folder = StudyFolder.of(bench.runs, "s")
    (folder.attempt("trial", 2, 0).path.parent / "trial.json").write_text("not json")
    result = bench.search(by_micro_batch, trials=4)
    assert "trial.json" in bench.messages()
    assert [t.number for t in result.contents.trials] == [0, 1, 3, 4]
    assert read_study(folder).problems


def test_coordinator_loads_no_torch_and_stays_small(tmp_path: Path) -> None:
    code = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from pathlib import Path
from scripted import Bench, by_micro_batch
Bench(Path({str(tmp_path)!r})).search(by_micro_batch, trials=8)
print([m for m in ("torch", "transformers", "deepspeed", "scipy") if m in sys.modules])
# Unlike ru_maxrss, this does not inherit the peak of the process that forked us.
status = Path("/proc/self/status").read_text()
print(int(status.split("VmHWM:")[1].split()[0]) // 1024)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300
    )
    loaded, peak_mib = done.stdout.splitlines()
    assert loaded == "[]"
    assert int(peak_mib) <= 250
