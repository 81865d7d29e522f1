"""The ranks of the next trial wait for it, and are neither left behind nor taken for its rest."""

from __future__ import annotations

import os
import signal

import psutil
import pytest
from launching import is_running, open_bench, read_pid, wait_for


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    bench = open_bench(tmp_path_factory.mktemp("runs") / "study", warm=True, backends=("none",))
    bench.launcher.start()
    yield bench
    bench.launcher.close()


def waiting(bench, count):
    """The processes that wait, once there are as many."""
    server = psutil.Process(bench.launcher.ready.pid)
    return wait_for(
        lambda: (pids := sorted(c.pid for c in server.children())) and len(pids) == count and pids,
        f"{count} processes that wait",
    )


def ran(folder, ranks):
    return sorted(read_pid(folder.path / f"pid-{rank}") for rank in range(ranks))


def exit_codes(status):
    return [one.exit_code for one in status.exits]


def test_a_trial_runs_on_what_was_forked_before_it(bench):
    bench.run(["exit", 0], ["exit", 0])
    ready = waiting(bench, 2)
    status, folder = bench.run(["exit", 0], ["exit", 5])
    assert exit_codes(status) == [0, 5]
    assert ran(folder, 2) == ready
    assert set(waiting(bench, 2)).isdisjoint(ready)


def test_another_number_of_ranks_gets_other_processes(bench):
    bench.run(["exit", 0], ["exit", 0])
    before = waiting(bench, 2)
    status, folder = bench.run(*[["exit", 0]] * 3)
    assert exit_codes(status) == [0, 0, 0]
    assert set(ran(folder, 3)).isdisjoint(before)
    assert not any(is_running(pid) for pid in before)
    waiting(bench, 3)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_one_that_was_killed_while_it_waited_costs_no_trial(bench, number):
    bench.run(["exit", 0], ["exit", 0])
    first, second = waiting(bench, 2)
    os.kill(first, number)
    wait_for(lambda: not is_running(first), "its end")
    status, folder = bench.run(["exit", 0], ["exit", 0])
    assert (exit_codes(status), status.stopped_for) == ([0, 0], None)
    assert set(ran(folder, 2)).isdisjoint({first, second})


def test_none_outlives_the_server(bench):
    bench.run(["exit", 0], ["exit", 0])
    before = waiting(bench, 2)
    os.kill(bench.launcher.ready.pid, signal.SIGKILL)
    wait_for(lambda: not any(is_running(pid) for pid in before), "their end")
    bench.run(["exit", 0], ["exit", 0])
    after = waiting(bench, 2)
    bench.launcher.close()
    assert not any(is_running(pid) for pid in after)
