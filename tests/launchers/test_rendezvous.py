from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import socket
import subprocess
import sys

import psutil
from launching import HERE, WAIT_S, make_attempt, make_plan, open_bench, read_pid, wait_for

from autotune.contract.folder import StudyFolder


def sums_of(folder, ranks=2):
    def read():
        files = [folder.path / f"sum-{rank}" for rank in range(ranks)]
        texts = [file.read_text() if file.exists() else "" for file in files]
        return all(texts) and [float(text) for text in texts]

    return wait_for(read, "the sums")


def listening(pid):
    connections = psutil.Process(pid).net_connections()
    return [c.laddr.ip for c in connections if c.status == psutil.CONN_LISTEN]


def test_trials_in_parallel_meet_on_ports_of_their_own_and_listen_on_loopback_only(tmp_path):
    """BUG-024: an occupied default port and a second job on the node harm no trial."""
    bench = open_bench(tmp_path / "study", warm=True, entry="scripted_ranks:run_rank")
    with contextlib.ExitStack() as stack:
        stack.callback(bench.launcher.close)
        with contextlib.suppress(OSError):  # taken by someone else: just as well
            stack.enter_context(socket.create_server(("0.0.0.0", 29500)))
        jobs = [bench.submit(["all_reduce"], ["all_reduce"]) for _ in range(2)]
        for _, folder in jobs:
            assert sums_of(folder) == [3.0, 3.0]
            addresses = [
                address for r in (0, 1) for address in listening(read_pid(folder.path / f"pid-{r}"))
            ]
            assert addresses
            assert all(ipaddress.ip_address(address).is_loopback for address in addresses)
            (folder.path / "go-on").touch()
        for job, _ in jobs:
            status = bench.launcher.poll(job, timeout_s=WAIT_S)
            assert [e.exit_code for e in status.exits] == [0, 0]


def test_ranks_started_by_hand_meet_through_the_folder(tmp_path):
    folder = make_attempt(
        StudyFolder(tmp_path), 0, [["all_reduce"], ["all_reduce"]], make_plan(processes=2)
    )
    # What an earlier attempt left there is not taken for an answer: nobody listens there.
    place = {"host": "127.0.0.1", "port": 1, "word": "earlier", "job": ""}
    (folder.path / "rendezvous.json").write_text(json.dumps(place))
    (folder.path / "go-on").touch()
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MASTER_")}
    environment["PYTHONPATH"] = os.pathsep.join([str(HERE.parents[1]), str(HERE)])
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "scripted_ranks", f"--folder={folder.path}", f"--rank={rank}"],
            env=environment,
        )
        for rank in (1, 0)
    ]
    assert [rank.wait(WAIT_S) for rank in ranks] == [0, 0]
    assert sums_of(folder) == [3.0, 3.0]
