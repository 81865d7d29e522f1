"""The server or the coordinator dies; whatever it is, nothing survives it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest
from launching import (
    HERE,
    WAIT_S,
    is_running,
    make_attempt,
    make_plan,
    open_bench,
    read_pid,
    wait_for,
)

from autotune.contract.folder import StudyFolder
from autotune.errors import EnvironmentFault
from autotune.launchers import local
from autotune.launchers.local import LocalLauncher


def test_ranks_do_not_outlive_a_killed_server(own_bench):
    job, folder = own_bench.submit(["ignore_term"], ["daemons", ["sleep", 600]])
    names = ("pid-0", "pid-1", "daemon-forked")
    wait_for(lambda: all(read_pid(folder.path / name) for name in names), "the processes")
    server = own_bench.launcher.ready.pid
    os.kill(server, signal.SIGKILL)
    # The kernel ends the ranks, before the launcher has looked.
    wait_for(lambda: not is_running(read_pid(folder.path / "pid-0")), "the rank's end")
    status = own_bench.launcher.poll(job, timeout_s=WAIT_S)
    assert (status.state, status.stopped_for) == ("ended", "server_lost")
    assert not any(is_running(read_pid(folder.path / name)) for name in names)
    after, _ = own_bench.run(["exit", 0])
    assert after.stopped_for is None
    assert own_bench.launcher.ready.pid != server


def test_servers_that_keep_dying_are_not_restarted_for_ever(own_bench):
    for _ in range(3):
        job, folder = own_bench.submit(["sleep", 600])
        wait_for((folder.path / "pid-0").exists, "the rank")
        os.kill(own_bench.launcher.ready.pid, signal.SIGKILL)
        assert own_bench.launcher.poll(job, timeout_s=WAIT_S).stopped_for == "server_lost"
    with pytest.raises(EnvironmentFault, match="died 3 times in a row") as caught:
        own_bench.submit(["exit", 0])
    assert caught.value.exit_code == 3


def test_close_ends_running_trials_and_the_server(own_bench):
    job, folder = own_bench.submit(["ignore_term"], ["daemons", ["sleep", 600]])
    names = ("pid-0", "pid-1", "daemon-forked", "daemon-executed")
    pids = [wait_for(lambda n=n: read_pid(folder.path / n), n) for n in names]
    pids.append(own_bench.launcher.ready.pid)
    own_bench.launcher.close()
    assert not any(is_running(pid) for pid in pids)
    assert own_bench.launcher.poll(job).stopped_for == "cancelled"
    own_bench.launcher.close()


def test_a_module_that_ends_the_server_is_named_with_what_it_said(tmp_path, monkeypatch):
    (tmp_path / "fatal_module.py").write_text(
        "import os; os.write(2, b'boom: no luck'); os._exit(3)"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    study = StudyFolder(tmp_path / "study")
    launcher = LocalLauncher(study, 1, "cpu", backends=("none",), entry="fatal_module:run")
    with contextlib.closing(launcher):
        for number in (1, 2):
            said = r"ended while it started(.|\n)*boom: no luck"
            with pytest.raises(EnvironmentFault, match=said) as caught:
                launcher.start()
            assert str(caught.value).count("boom") == 1
            assert (study.path / "server.log").read_text().count("boom") == number


def test_a_library_that_cannot_be_imported_is_the_environments_fault(tmp_path, monkeypatch):
    """No trial is spent on it: each would crash in the same way."""
    package = tmp_path / "deepspeed"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('libfoo.so: no such file')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    launcher = LocalLauncher(StudyFolder(tmp_path / "study"), 1, "cpu", backends=("zero3",))
    said = "cannot be imported: deepspeed: RuntimeError: libfoo.so: no such file"
    with contextlib.closing(launcher), pytest.raises(EnvironmentFault, match=said):
        launcher.start()
    launcher = LocalLauncher(StudyFolder(tmp_path / "study"), 1, "cpu", backends=("ddp",))
    with contextlib.closing(launcher):
        launcher.start()


def test_a_library_that_ends_the_server_by_a_signal_is_in_what_it_says(tmp_path, monkeypatch):
    (tmp_path / "fatal_module.py").write_text("import ctypes; ctypes.string_at(0)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    study = StudyFolder(tmp_path / "study")
    launcher = LocalLauncher(study, 1, "cpu", backends=("none",), entry="fatal_module:run")
    with contextlib.closing(launcher):
        with pytest.raises(EnvironmentFault, match=r"ended while it started \(SIGSEGV\)") as caught:
            launcher.start()
        assert "\nFatal Python error: Segmentation fault" in str(caught.value)
        assert "fatal_module.py" in (study.path / "server.log").read_text()


def test_a_module_that_starts_a_thread_makes_ranks_start_cold(tmp_path, monkeypatch):
    (tmp_path / "threaded_module.py").write_text(
        "import light_ranks, threading\n"
        "threading.Thread(target=threading.Event().wait, daemon=True).start()"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    study = StudyFolder(tmp_path / "study")
    launcher = LocalLauncher(study, 1, "cpu", backends=("none",), entry="threaded_module:run")
    try:
        note = launcher.start()
        assert note is not None
        assert "an import has left threads (python)" in note
        assert launcher.ready.modules == 0  # the server that runs now has imported nothing
        assert launcher.ready.no_fork is None
    finally:
        launcher.close()


def test_a_server_that_is_not_ready_in_time_is_ended(tmp_path, monkeypatch):
    (tmp_path / "slow_module.py").write_text(
        f"import os, pathlib, time; pathlib.Path({str(tmp_path / 'pid')!r}).write_text("
        "str(os.getpid())); time.sleep(600)"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    study = StudyFolder(tmp_path / "study")
    launcher = LocalLauncher(
        study, 1, "cpu", backends=("none",), entry="slow_module:run", start_limit_s=0.5
    )
    before = set(psutil.Process().children(recursive=True))
    with contextlib.closing(launcher), pytest.raises(EnvironmentFault, match="not ready"):
        launcher.start()
    assert set(psutil.Process().children(recursive=True)) <= before


def test_an_unwritable_study_folder_is_the_environments_fault(tmp_path):
    (tmp_path / "file").touch()
    launcher = LocalLauncher(StudyFolder(tmp_path / "file" / "study"), 1, "cpu", False)
    with pytest.raises(EnvironmentFault, match="cannot write"):
        launcher.start()


@pytest.fixture
def coordinator(tmp_path):
    """A coordinator in a process of its own, in the midst of two trials."""
    process = subprocess.Popen(
        [sys.executable, str(HERE / "coordinator.py"), str(tmp_path)],
        stdout=subprocess.PIPE,
        start_new_session=True,
        text=True,
    )
    line = process.stdout.readline()
    pids = [int(pid) for pid in line.split()]
    assert len(pids) == 6
    yield process, pids
    process.kill()
    process.wait()
    process.stdout.close()


def test_nothing_survives_a_killed_coordinator(coordinator):
    process, pids = coordinator
    assert all(is_running(pid) for pid in pids)
    process.kill()
    wait_for(lambda: not any(is_running(pid) for pid in pids), "the end of all processes")


def test_nothing_survives_when_the_kernel_kills_coordinator_and_server_at_once(coordinator):
    process, pids = coordinator
    process.kill()
    os.kill(pids[0], signal.SIGKILL)
    ranks = pids[1:5]
    wait_for(lambda: not any(is_running(pid) for pid in ranks), "the end of all ranks")
    if is_running(pids[5]):  # out of reach of both: the next search of the study ends it
        os.kill(pids[5], signal.SIGKILL)


def test_ctrl_c_reaches_the_coordinator_alone(coordinator):
    """BUG-072, the processes' side: the coordinator decides what a signal means."""
    process, pids = coordinator
    os.killpg(process.pid, signal.SIGINT)
    assert process.stdout.readline() == "interrupted, still running: 6 of 6\n"
    assert process.wait(WAIT_S) == 130
    assert not any(is_running(pid) for pid in pids)


def test_a_folder_with_hostile_characters_is_only_a_folder(tmp_path, monkeypatch):
    """BUG-070, local part: no shell, no option, no limit of a socket's path."""
    monkeypatch.chdir(tmp_path)
    name = "-rf $(touch pwned);touch pwned\n'\"`touch pwned` a b"
    long = tmp_path / name / ("x" * 200) / ("y" * 200) / "-study"
    for warm in (True, False):
        bench = open_bench(long, warm=warm)
        try:
            status, folder = bench.run(["describe"], ["print", 1, 0])
        finally:
            bench.launcher.close()
        assert [e.exit_code for e in status.exits] == [0, 0]
        assert (folder.path / "described-0.json").exists()
        assert folder.log_file(1).read_text().endswith("last line\n")
        bench.study.path.rename(bench.study.path.with_name(f"done-{warm}"))
    assert not list(tmp_path.rglob("pwned"))


def test_a_plan_that_sets_what_is_read_at_import_gets_a_server_of_its_own(tmp_path, monkeypatch):
    (tmp_path / "settings_at_import.py").write_text(
        "import os, runpy\n"
        "from light_ranks import run_rank\n"
        "SEEN = os.environ.get('TORCH_LOGS', '')\n"
        "if __name__ == '__main__':\n"
        "    runpy.run_module('scripted_ranks', run_name='__main__')\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    study = StudyFolder(tmp_path / "study")
    launcher = LocalLauncher(
        study, 1, "cpu", backends=("none",), entry="settings_at_import:run_rank"
    )
    try:
        described = [
            _describe(launcher, study, number, environment)
            for number, environment in enumerate(
                [{}, {"TORCH_LOGS": "+dynamo"}, {"NCCL_ALGO": "Ring"}, {"TORCH_LOGS": "+dynamo"}]
            )
        ]
        assert [one["seen_at_import"] for one in described] == ["", "+dynamo", "", "+dynamo"]
        servers = [one["server"] for one in described]
        assert servers[0] == servers[2] != servers[1] == servers[3]
        threads = _describe(launcher, study, 4, {"MKL_NUM_THREADS": "4"})
        assert threads["seen_at_import"] is None  # a program of its own imported nothing before
        assert threads["environment"]["MKL_NUM_THREADS"] == "4"
    finally:
        launcher.close()
    assert not any(is_running(pid) for pid in servers)


def _describe(launcher, study, number, environment):
    plan = make_plan(processes=1, environment=environment)
    folder = make_attempt(study, number, [["describe"]], plan)
    status = launcher.poll(launcher.submit(folder, plan), timeout_s=WAIT_S)
    assert status.exits[0].exit_code == 0
    return json.loads((folder.path / "described-0.json").read_text())


def test_a_server_that_hangs_is_replaced_and_its_ranks_are_ended(tmp_path):
    bench = open_bench(tmp_path / "runs" / "study", warm=False, silence_s=1.0)
    try:
        job, folder = bench.submit(["ignore_term"], ["daemons", ["sleep", 600]])
        names = ("pid-0", "pid-1", "daemon-forked")
        pids = [wait_for(lambda n=n: read_pid(folder.path / n), n) for n in names]
        server = bench.launcher.ready.pid
        os.kill(server, signal.SIGSTOP)
        status = bench.launcher.poll(job, timeout_s=WAIT_S)
        assert (status.state, status.stopped_for) == ("ended", "server_lost")
        assert not any(is_running(pid) for pid in [*pids, server])
        after, _ = bench.run(["exit", 0])
        assert after.stopped_for is None
    finally:
        bench.launcher.close()


def test_an_answer_that_came_while_the_coordinator_slept_counts(tmp_path):
    bench = open_bench(tmp_path / "runs" / "study", warm=False, silence_s=0.5)
    try:
        job, _ = bench.submit(["sleep", 600])
        bench.launcher.poll(job, timeout_s=0.1)  # asks
        time.sleep(1.5)
        assert bench.launcher.poll(job, timeout_s=0.1).state == "running"
        bench.launcher.cancel(job)
    finally:
        bench.launcher.close()


def test_a_server_whose_ranks_die_before_they_run_anything_is_replaced(tmp_path):
    bench = open_bench(tmp_path / "runs" / "study", warm=True)
    try:
        bench.launcher.start()
        first = bench.launcher.ready.pid
        bench.run(["phase", "build", 0.0])
        bench.run(["exit", 0])
        assert bench.launcher.ready.pid == first
        bench.run(["signal", signal.SIGSEGV])  # in its init phase: a fault of the trial
        bench.run(["exit", 0])
        assert bench.launcher.ready.pid == first
        bench.run(["signal_at_once", signal.SIGSEGV])
        bench.run(["exit", 0])
        assert bench.launcher.ready.pid != first
        assert not is_running(first)
    finally:
        bench.launcher.close()


def test_a_server_that_may_no_longer_fork_is_replaced_once_and_then_ranks_start_cold(
    tmp_path, monkeypatch
):
    """It is found sound when it starts; a thread comes later, as from a library's timer."""
    (tmp_path / "late_thread.py").write_text(
        "import threading\n"
        "import autotune.worker.preload as preload\n"
        "asked = []\n"
        "sound = preload.why_no_fork\n"
        "preload.why_no_fork = lambda: asked.append(1) or (\n"
        "    sound() if len(asked) == 1 else 'a thread came late')\n"
        "from light_ranks import run_rank\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    study = StudyFolder(tmp_path / "study")
    launcher = LocalLauncher(study, 1, "cpu", backends=("none",), entry="late_thread:run_rank")
    launcher._entry_for = lambda warm: "late_thread:run_rank" if warm else "scripted_ranks"
    try:
        assert launcher.start() is None
        before = launcher.ready.pid
        plan = make_plan(processes=1)
        folder = make_attempt(study, 0, [["exit", 7]], plan)
        status = launcher.poll(launcher.submit(folder, plan), timeout_s=WAIT_S)
        assert [e.exit_code for e in status.exits] == [7]
        assert "a thread came late" in status.notes[-1]
        assert not is_running(before)
        again = make_attempt(study, 1, [["exit", 8]], plan)
        status = launcher.poll(launcher.submit(again, plan), timeout_s=WAIT_S)
        assert [e.exit_code for e in status.exits] == [8]
        assert status.notes == ()
    finally:
        launcher.close()


def test_warm_servers_that_keep_dying_give_way_to_cold_ranks(tmp_path):
    bench = open_bench(tmp_path / "runs" / "study", warm=True)
    try:
        for _ in range(3):
            status, _ = bench.run(["stop_server", signal.SIGKILL])
            assert status.stopped_for == "server_lost"
        status, _ = bench.run(["exit", 5])
        assert [e.exit_code for e in status.exits] == [5]
        assert "died again and again" in status.notes[0]
    finally:
        bench.launcher.close()


def test_what_outlived_coordinator_and_server_is_ended_by_the_next_search(tmp_path, monkeypatch):
    """A process in a session of its own, beyond the reach of the kernel's parent signals."""
    monkeypatch.setattr(local, "STRAY_GRACE_S", 0.5)
    process = subprocess.Popen(
        [sys.executable, str(HERE / "coordinator.py"), str(tmp_path)],
        stdout=subprocess.PIPE,
        start_new_session=True,
        text=True,
    )
    with process, process.stdout:
        server, *_, stray = (int(pid) for pid in process.stdout.readline().split())
        os.kill(server, signal.SIGSTOP)  # it must not clean up
        process.kill()
    assert is_running(stray)
    other = open_bench(tmp_path / "other", warm=False)
    try:
        assert other.launcher.start() is None
        assert is_running(stray)  # another study's processes are nobody's business
    finally:
        other.launcher.close()
    launcher = LocalLauncher(StudyFolder(tmp_path / "study"), 2, "cpu", False)
    try:
        note = launcher.start()
        assert note is not None
        assert "that an earlier search of this study left" in note
        assert not is_running(stray)
        assert not is_running(server)
    finally:
        launcher.close()
