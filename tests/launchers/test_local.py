from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import psutil
import pytest
from launching import is_running, make_plan, read_pid, wait_for

from autotune.contract.folder import AttemptFolder


def exits(status):
    return [(e.exit_code, e.signal) for e in status.exits]


def rank_pids(folder, ranks=2):
    return wait_for(
        lambda: (p := [read_pid(folder.path / f"pid-{r}") for r in range(ranks)]) and all(p) and p,
        "the ranks' pids",
    )


def test_exit_codes_and_signals_are_reported_as_they_were(bench):
    status, _ = bench.run(["exit", 0], ["exit", 137], ["signal", signal.SIGSEGV])
    assert status.stopped_for is None
    assert exits(status) == [(0, None), (137, None), (None, signal.SIGSEGV)]
    assert [one.rank for one in status.exits] == [0, 1, 2]
    assert all(status.submitted_at < one.at <= time.time() for one in status.exits)


def test_sys_exit_in_a_rank_ends_only_that_rank(bench):
    status, _ = bench.run(["system_exit", 5], ["exit", 0])
    assert exits(status) == [(5, None), (0, None)]


def test_an_exception_and_a_fatal_signal_leave_their_traceback_in_the_log(bench):
    status, folder = bench.run(["raise", "no such thing"], ["signal", signal.SIGSEGV])
    assert exits(status) == [(1, None), (None, signal.SIGSEGV)]
    assert "RuntimeError: no such thing" in folder.log_file(0).read_text()
    assert "do_signal" in folder.log_file(1).read_text()


def test_wall_time_stands_still_once_ended(bench):
    job, _ = bench.submit(["exit", 0])
    first = bench.launcher.poll(job, timeout_s=60)
    time.sleep(0.05)
    second = bench.launcher.poll(job)
    assert first.state == "ended"
    assert first.wall_s == second.wall_s > 0


def test_poll_returns_while_the_job_runs(bench):
    job, _ = bench.submit(["sleep", 600])
    assert bench.launcher.poll(job, timeout_s=0.2).state == "running"
    bench.launcher.cancel(job)
    status = bench.launcher.poll(job)
    assert (status.state, status.stopped_for) == ("ended", "cancelled")


def test_cancel_ends_ranks_that_ignore_sigterm(bench):
    job, folder = bench.submit(["ignore_term"], ["ignore_term"])
    pids = rank_pids(folder)
    wait_for(lambda: (folder.path / "ignoring-1").exists(), "the handler")
    bench.launcher.cancel(job)
    assert not any(psutil.pid_exists(pid) for pid in pids)
    assert bench.launcher.poll(job).stopped_for == "cancelled"


def test_the_total_deadline_stops_a_trial(bench):
    status, folder = bench.run(["sleep", 600], ["stop_itself"], total_s=1.0)
    assert status.stopped_for == "timeout"
    assert len(status.exits) == 2
    assert not any(psutil.pid_exists(pid) for pid in rank_pids(folder))


def test_a_phase_that_passes_its_deadline_is_a_hang_and_leaves_its_stack(bench):
    status, folder = bench.run(
        ["phase", "measure", 600], ["phase", "build", 600], phase_s={"build": 0.5, "measure": 50.0}
    )
    assert (status.stopped_for, status.phase) == ("hang", "build")
    if bench.launcher.ready.modules:  # a cold rank is another program and sets its own handlers
        assert "do_phase" in folder.log_file(1).read_text()


def test_a_slow_rank_whose_heartbeat_moves_is_no_hang(bench):
    status, _ = bench.run(["moving", "build", 8, 0.25], phase_s={"build": 1.5})
    assert status.stopped_for is None
    assert exits(status) == [(0, None)]


def test_the_rank_that_came_least_far_is_the_one_that_hangs(bench):
    status, _ = bench.run(
        ["moving", "measure", 3, 0.1, 600],
        ["moving", "measure", 2, 0.1, 600],
        phase_s={"measure": 1.0},
    )
    assert (status.stopped_for, status.stopped_rank) == ("hang", 1)
    assert status.stopped_limit_s == 1.0


def test_a_rank_that_ends_as_if_all_were_well_but_left_no_record_ends_its_peers(bench):
    status, _ = bench.run(["exit", 0], ["sleep", 600])
    assert status.stopped_for == "peer_failed"


def test_a_rank_that_left_its_process_group_is_ended_too(bench):
    # Not rank 0, which leads the group: a leader cannot leave it.
    job, folder = bench.submit(["sleep", 600], ["leave_group"])
    wait_for(lambda: (folder.path / "left-group").exists(), "the rank's own session")
    pids = rank_pids(folder)  # the other one may not have begun yet
    bench.launcher.cancel(job)
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_the_peers_of_a_crashed_rank_are_ended(bench):
    status, _ = bench.run(["exit", 3], ["sleep", 600])
    assert status.stopped_for == "peer_failed"
    assert exits(status) == [(3, None), (None, signal.SIGTERM)]


def test_a_failed_record_ends_all_ranks_though_none_has_exited(bench):
    status, _ = bench.run(["failed_record"], ["sleep", 600])
    assert status.stopped_for == "peer_failed"


def test_garbage_in_the_folder_counts_as_a_failed_rank(bench):
    status, _ = bench.run(["garbage"], ["sleep", 600])
    assert status.stopped_for == "peer_failed"


def test_a_fifo_in_place_of_a_heartbeat_blocks_nobody(bench):
    status, _ = bench.run(["fifo_heartbeat"], total_s=1.0)
    assert (status.stopped_for, status.phase) == ("timeout", "launch")


@pytest.mark.parametrize("then", [["exit", 0], ["signal", signal.SIGKILL], ["sleep", 600]])
def test_descendants_that_left_the_group_die_with_the_trial(bench, then):
    status, folder = bench.run(["daemons", then], total_s=3.0 if then[0] == "sleep" else 60.0)
    assert len(status.exits) == 1
    for name in ("daemon-forked", "daemon-executed"):
        assert not psutil.pid_exists(read_pid(folder.path / name)), name


def test_ending_one_trial_leaves_another_and_its_descendants_alone(bench):
    long, long_folder = bench.submit(["daemons", ["sleep", 600]], ["sleep", 600])
    rank_pids(long_folder)
    wait_for(lambda: read_pid(long_folder.path / "daemon-forked"), "the descendant")
    short, _ = bench.run(["daemons", ["exit", 0]], ["exit", 0])
    assert short.stopped_for is None
    alive = [long_folder.path / name for name in ("pid-0", "pid-1", "daemon-forked")]
    assert all(is_running(read_pid(path)) for path in alive)
    bench.launcher.cancel(long)
    assert not any(psutil.pid_exists(read_pid(path)) for path in alive)


def test_a_flood_of_output_is_cut_and_keeps_both_ends(bench):
    status, folder = bench.run(["print", 100, 1.0])
    log = folder.log_file(0).read_bytes()
    assert exits(status) == [(0, None)]
    assert len(log) < 33 * 1024 * 1024
    assert log.startswith(b"first line\n")
    assert log.endswith(b"last line\n")
    assert b"bytes of this log were cut" in log


def test_a_rank_without_a_log_file_still_runs(bench):
    job, folder = bench.submit(["sleep", 0.3])
    bench.launcher.poll(job, timeout_s=60)
    blocked = AttemptFolder(folder.path.with_name("attempt-1"))
    blocked.log_file(0).mkdir(parents=True)
    (blocked.path / "script.json").write_text(json.dumps([["print", 1, 0]]))
    job = bench.launcher.submit(blocked, make_plan(processes=1))
    assert exits(bench.launcher.poll(job, timeout_s=60)) == [(0, None)]


def test_what_a_rank_is_born_with(bench, monkeypatch):
    monkeypatch.setenv("FSDP_VERSION", "1")
    monkeypatch.setenv("RANK", "7")
    monkeypatch.setenv("MARKED_BY_TEST", "kept")
    # DeepSpeed sets it when it is imported, as an earlier test may have done.
    monkeypatch.delenv("PYTORCH_NVML_BASED_CUDA_CHECK", raising=False)
    _, folder = bench.run(["describe"], ["describe"], environment={"NCCL_BUFFSIZE": "1"})
    first, second = (json.loads((folder.path / f"described-{r}.json").read_text()) for r in (0, 1))
    # The C library sees the same variables as Python.
    assert first["c"] == {
        "RANK": "0",
        "MARKED_BY_TEST": "kept",
        "FSDP_VERSION": None,
        "PYTORCH_NVML_BASED_CUDA_CHECK": None,
    }
    assert second["environment"]["RANK"] == second["environment"]["LOCAL_RANK"] == "1"
    assert second["environment"]["WORLD_SIZE"] == "2"
    assert second["environment"]["NCCL_BUFFSIZE"] == "1"
    assert "FSDP_VERSION" not in first["environment"]
    assert first["pgid"] == second["pgid"] != os.getpgid(0)
    assert first["sid"] != os.getsid(0)
    assert first["cwd"] == str(Path.cwd())
    assert first["stdin"] == "/dev/null"
    assert first["sigterm_is_default"]
    assert first["threads"] == 1
    # Rank 0 keeps the rendezvous socket and nothing else of the server.
    assert set(second["fds"].values()) == {"/dev/null", str(folder.log_file(1))}
    assert sum("socket" in target for target in first["fds"].values()) == 1
    dropped = json.loads((folder.path / "dropped-environment.json").read_text())["names"]
    assert {"FSDP_VERSION", "RANK"} <= set(dropped)


def test_a_secret_reaches_the_rank_and_no_file(bench, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_do_not_write_me")
    job, folder = bench.submit(["sleep", 600])
    (pid,) = rank_pids(folder, 1)
    if not bench.launcher.ready.modules:  # a cold rank's variables can be seen from outside
        assert psutil.Process(pid).environ()["HF_TOKEN"] == "hf_do_not_write_me"
    bench.launcher.cancel(job)
    files = [path for path in bench.study.path.rglob("*") if path.is_file()]
    assert len(files) > 3
    assert not [path for path in files if b"hf_do_not_write_me" in path.read_bytes()]


def test_no_zombie_stays_behind(bench):
    bench.run(["daemons", ["exit", 0]], ["signal", signal.SIGKILL])
    assert psutil.Process(bench.launcher.ready.pid).children(recursive=True) == []


def test_a_trial_without_heartbeat_is_in_its_launch_phase(bench):
    """The last one: a server whose ranks did nothing is replaced before the next trial."""
    status, _ = bench.run(["sleep", 600], phase_s={"launch": 0.5})
    assert (status.stopped_for, status.phase) == ("hang", "launch")
