"""Searches whose folder, disk, clock or database is taken away from under them."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from scripted import SPACE, Act, Bench, ScriptedLauncher, by_micro_batch

from autotune.contract.folder import StudyFolder
from autotune.contract.plan import Plan
from autotune.errors import EnvironmentFault
from autotune.search import disk, history
from autotune.search.request import SearchResult
from autotune.store.importer import read_study


def at_trial(number: int, happens) -> dict[str, object]:
    """Options of a search in which something happens while a trial runs."""

    def on_submit(plan: Plan) -> None:
        if plan.purpose == "trial" and plan.number == number:
            happens()

    def prepare(launcher: ScriptedLauncher) -> None:
        launcher.on_submit = on_submit

    return {"prepare": prepare}


def check_whole(bench: Bench, result: SearchResult, trials: int) -> None:
    """Exactly the trials asked for, each counted once."""
    contents = result.contents
    assert [trial.number for trial in contents.trials] == list(range(trials))
    assert len({trial.header.key for trial in contents.trials}) == trials
    assert history.counted(contents) == trials
    assert contents.problems == ()
    assert read_study(StudyFolder.of(bench.runs, "s")) == contents


@pytest.mark.parametrize("what", ["runs", "study", "half"])
def test_a_folder_that_is_removed_meanwhile_is_said_in_one_sentence(bench: Bench, what) -> None:
    study = bench.runs / "s"

    def remove() -> None:
        if what == "half":  # as far as a removal has come that is still going on
            shutil.rmtree(study / "trials")
            (study / "study.json").unlink()
        else:
            shutil.rmtree(bench.runs if what == "runs" else study)

    with pytest.raises(EnvironmentFault, match="was removed while it was searched") as caught:
        bench.search(by_micro_batch, trials=6, **at_trial(2, remove))
    assert "begins the study anew" in (caught.value.hint or "")
    assert not study.exists()
    assert "behind" not in bench.messages()
    check_whole(bench, bench.search(by_micro_batch, trials=4), 4)


def test_a_study_that_another_made_anew_in_the_same_place_is_left_alone(bench: Bench) -> None:
    study, theirs = bench.runs / "s", []

    def replace() -> None:
        study.rename(bench.runs / "away")
        shutil.copytree(bench.runs / "away", study)
        theirs.extend(sorted(path.relative_to(study) for path in study.rglob("*")))

    with pytest.raises(EnvironmentFault, match="was removed while it was searched"):
        bench.search(by_micro_batch, trials=6, **at_trial(2, replace))
    assert sorted(path.relative_to(study) for path in study.rglob("*")) == theirs


def test_a_database_that_is_removed_meanwhile_is_filled_again(bench: Bench) -> None:
    file = bench.runs / "autotune.db"
    with pytest.raises(EnvironmentFault, match="has lost its tables") as caught:
        bench.search(by_micro_batch, trials=6, **at_trial(2, file.unlink))
    assert "the same command fills it again" in (caught.value.hint or "")
    check_whole(bench, bench.search(by_micro_batch, trials=6), 6)


@contextlib.contextmanager
def small_disk(path: Path, megabytes: int) -> Iterator[None]:
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "autotune-test", str(path)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        pytest.skip(f"no file system can be mounted here: {error}")
    if done.returncode:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


def test_a_disk_that_fills_up_meanwhile_costs_no_trial(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(disk, "MIN_FREE_BYTES", 0)  # as if another program took the last of it
    room = tmp_path / "room"
    with small_disk(room, 4):
        bench = Bench(room)

        def fill() -> None:
            with contextlib.suppress(OSError), (room / "filler").open("wb") as filler:
                while True:
                    filler.write(bytes(4096))
                    filler.flush()

        for number in (1, 2):
            with pytest.raises(EnvironmentFault, match="no space left on the disk"):
                bench.search(by_micro_batch, trials=5, **at_trial(number, fill))
            with pytest.raises(EnvironmentFault, match="no space left|cannot be written"):
                bench.search(by_micro_batch, trials=5)
            (room / "filler").unlink()
        check_whole(bench, bench.search(by_micro_batch, trials=5), 5)


def test_a_folder_that_may_not_be_written_any_more_costs_no_trial(tmp_path: Path) -> None:
    """As root too: the flag binds everybody. A file system in memory may not know it."""
    bench = Bench(tmp_path)

    def flag(how: str, path: Path) -> None:
        done = subprocess.run(["chattr", how, str(path)], capture_output=True, check=False)
        if done.returncode:
            pytest.skip(f"no folder can be made immutable here: {done.stderr.decode().strip()}")

    attempt = bench.runs / "s" / "trials" / "00002" / "attempt-0"
    try:
        with pytest.raises(EnvironmentFault, match="cannot write .*outcome.json"):
            bench.search(by_micro_batch, trials=5, **at_trial(2, lambda: flag("+i", attempt)))
        with pytest.raises(EnvironmentFault, match="cannot write .*outcome.json"):
            bench.search(by_micro_batch, trials=5)
    finally:
        flag("-i", attempt)
    check_whole(bench, bench.search(by_micro_batch, trials=5), 5)


def test_a_clock_that_is_set_back_hides_no_trial_from_the_verdict(bench: Bench, monkeypatch):
    first = bench.search(by_micro_batch, trials=3)
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() - 86_400.0)

    def faster(plan: Plan) -> Act:
        act = by_micro_batch(plan)
        return Act(s_per_it=act.s_per_it / (10 if plan.key not in known else 1))

    known = {trial.header.key for trial in first.contents.trials}
    result = bench.search(faster, trials=6)
    check_whole(bench, result, 6)
    assert (result.verdict.best_trial or 0) > 2
    times = [trial.header.created_at for trial in result.contents.trials]
    assert times == sorted(times)
    order = [number for number, _ in result.contents.launches_in_order()]
    assert order.index(5) > max(order.index(n) for n in range(5))


def test_a_trial_that_is_launched_again_with_more_time_may_win_after_a_verdict(bench: Bench):
    def script(plan: Plan) -> Act:
        if plan.config["workload.micro_batch"] != 8:
            return by_micro_batch(plan)
        if plan.deadlines.total_s < 100:
            return Act(forever=False, stopped_for="timeout", signal=9)
        return Act(s_per_it=0.1)

    short, long = (f"{SPACE}search: {{max_trial_time: {limit}}}\n" for limit in ("1m", "10m"))
    first = bench.search(script, space=short, trials=8)
    best = first.contents.trial(first.verdict.best_trial or 0)
    assert best.header.params["micro_batch"] == 4
    assert any(trial.header.params["micro_batch"] == 8 for trial in first.contents.trials)
    second = bench.search(script, space=long, trials=8)
    best = second.contents.trial(second.verdict.best_trial or 0)
    assert best.header.params["micro_batch"] == 8


ONE_OF_THREE = """
import sys, time
sys.path.insert(0, {tests!r})
from pathlib import Path
from autotune.errors import EnvironmentFault
from scripted import Bench, by_micro_batch

def script(plan):
    time.sleep(0.2)
    return by_micro_batch(plan)

bench = Bench(Path({folder!r}))
bench.file = bench.file.with_name(sys.argv[1] + ".yaml")
bench.file.with_suffix(".ready").touch()
deadline = time.monotonic() + 100
while len(list(bench.file.parent.glob("*.ready"))) < 3 and time.monotonic() < deadline:
    time.sleep(0.001)
try:
    bench.search(script, trials=6, study=sys.argv[1][0])
    print("done", "behind" in bench.messages())
except EnvironmentFault as error:
    print(error.message)
"""


def test_of_searches_that_begin_at_once_each_study_has_one(bench: Bench):
    """They make the runs folder, the database and its tables at the same moment."""
    tests = str(Path(__file__).parent)
    code = ONE_OF_THREE.format(tests=tests, folder=str(bench.runs.parent))
    first, second, alone = (
        subprocess.Popen([sys.executable, "-c", code, name], stdout=subprocess.PIPE, text=True)
        for name in ("s1", "s2", "t")
    )
    said = sorted(one.communicate(timeout=120)[0].strip() for one in (first, second))
    assert said[0].startswith("another search is running on study 's'")
    assert said[1] == alone.communicate(timeout=120)[0].strip() == "done False"
    check_whole(bench, bench.search(by_micro_batch, trials=6), 6)
    assert history.counted(read_study(StudyFolder.of(bench.runs, "t"))) == 6


def test_a_launcher_that_does_not_start_leaves_the_log_that_its_error_names(bench: Bench) -> None:
    log = bench.runs / "s" / "server.log"

    def prepare(launcher: ScriptedLauncher) -> None:
        def start() -> str | None:
            log.write_text("boom")
            raise EnvironmentFault("the server ended", hint=f"the whole log: {log}")

        launcher.start = start  # type: ignore[method-assign]

    with pytest.raises(EnvironmentFault, match="the server ended"):
        bench.search(by_micro_batch, trials=2, prepare=prepare)
    assert log.read_text() == "boom"
    check_whole(bench, bench.search(by_micro_batch, trials=2), 2)
