"""BUG-024 for several nodes: two network namespaces, each a host of its own with one rank."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import secrets
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from launching import HERE, WAIT_S, make_attempt, make_plan, wait_for
from support_trials import make_plan as make_real_plan

from autotune.contract.folder import AttemptFolder, StudyFolder
from autotune.worker import addresses

ROOT = HERE.parents[1]
ADDRESSES = ("10.213.7.1", "10.213.7.2")
HOLD = """
import socket, sys
held = [socket.create_server((sys.argv[1], int(port))) for port in sys.argv[2:]]
print("held", flush=True)
sys.stdin.read()
"""


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


class Hosts:
    """Two hosts with one network cable between them."""

    def __init__(self, names: tuple[str, str]) -> None:
        self.names = names

    def start(self, host: int, *arguments: str, **options) -> subprocess.Popen[str]:
        prefixes = ("MASTER_", "GLOO_", "NCCL_", "AUTOTUNE_", "LOCAL_")
        environment = {k: v for k, v in os.environ.items() if not k.startswith(prefixes)}
        environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(HERE)])
        environment |= {"OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}
        environment |= options.pop("environment", {})
        return subprocess.Popen(
            ["ip", "netns", "exec", self.names[host], sys.executable, *arguments],
            env=environment,
            text=True,
            **options,
        )

    def give_away_all_ports_but(self, host: int, ports: int) -> None:
        """Leave the ports 10000, 10001, … outside the range for outgoing connections."""
        first = addresses.LOWEST_PORT + ports
        code = f"open('/proc/sys/net/ipv4/ip_local_port_range', 'w').write('{first} 65535')"
        assert self.start(host, "-c", code).wait() == 0

    def listening(self, host: int) -> set[str]:
        """Addresses on which anything listens."""
        files = ("/proc/net/tcp", "/proc/net/tcp6")
        command = ["ip", "netns", "exec", self.names[host], "cat", *files]
        lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        rows = [line.split() for line in lines.splitlines() if "0A" in line.split()]
        raw = [bytes.fromhex(row[1].partition(":")[0]) for row in rows if row[3] == "0A"]
        return {socket.inet_ntoa(one[::-1]) if len(one) == 4 else one.hex() for one in raw}

    @contextlib.contextmanager
    def occupied(self, host: int, *ports: int):
        words = [ADDRESSES[host], *map(str, ports)]
        with self.start(
            host, "-c", HOLD, *words, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as holder:
            assert holder.stdout.readline() == "held\n"
            yield


@pytest.fixture
def hosts():
    word = secrets.token_hex(3)
    names = (f"at-{word}-a", f"at-{word}-b")
    ends = (f"va{word}", f"vb{word}")
    try:
        ip("netns", "add", names[0])
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"network namespaces cannot be made here: {error}")
    try:
        ip("netns", "add", names[1])
        ip("link", "add", ends[0], "netns", names[0], "type", "veth", "peer", "name", ends[1],
           "netns", names[1])  # fmt: skip
        for name, end, address in zip(names, ends, ADDRESSES, strict=True):
            ip("-n", name, "addr", "add", f"{address}/24", "dev", end)
            ip("-n", name, "link", "set", end, "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield Hosts(names)
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)


def two_nodes(plan):
    topology = dataclasses.replace(plan.topology, devices_per_node=1, nodes=2)
    return dataclasses.replace(plan, topology=topology)


def place_of(folder: AttemptFolder) -> dict[str, object]:
    return json.loads((folder.path / "rendezvous.json").read_text())


def test_a_real_trial_on_two_nodes_meets_on_a_port_that_nobody_is_given(tmp_path, hosts):
    plan = two_nodes(make_real_plan("zero3"))
    folder = AttemptFolder(tmp_path)
    folder.write_plan(plan)
    # What an earlier trial left there, and something else listens in that place now.
    hosts.give_away_all_ports_but(0, 2)
    first, second = addresses.LOWEST_PORT, addresses.LOWEST_PORT + 1
    place = {"host": ADDRESSES[0], "port": first, "word": "earlier", "job": ""}
    (tmp_path / "rendezvous.json").write_text(json.dumps(place))
    with hosts.occupied(0, first):
        ranks = [
            hosts.start(rank, "-m", "autotune.worker", f"--folder={tmp_path}", f"--rank={rank}")
            for rank in (0, 1)
        ]
        try:
            assert [rank.wait(2 * WAIT_S) for rank in ranks] == [0, 0]
        finally:
            for rank in ranks:
                rank.kill()
    assert (place_of(folder)["host"], place_of(folder)["port"]) == (ADDRESSES[0], second)
    for rank in (0, 1):
        record = folder.read_rank(rank)
        assert record is not None
        assert record.status == "measured"


def test_ranks_on_two_nodes_listen_on_the_network_between_them_only(tmp_path, hosts):
    plan = two_nodes(make_plan(processes=2))
    folder = make_attempt(StudyFolder(tmp_path), 0, [["all_reduce"], ["all_reduce"]], plan)
    words = [f"--folder={folder.path}"]
    ranks = [hosts.start(r, "-m", "scripted_ranks", *words, f"--rank={r}") for r in (0, 1)]
    try:
        wait_for(lambda: all((folder.path / f"sum-{r}").exists() for r in (0, 1)), "the sums")
        for host, address in enumerate(ADDRESSES):
            assert hosts.listening(host) == {address}
        (folder.path / "go-on").touch()
        assert [rank.wait(WAIT_S) for rank in ranks] == [0, 0]
    finally:
        for rank in ranks:
            rank.kill()


LISTEN = f"""
from autotune.worker import addresses
try:
    addresses.listen({ADDRESSES[0]!r}, 128)
except addresses.RendezvousError as error:
    print(error.kind, error)
"""


def test_no_port_to_be_had_is_a_matter_of_the_machine(hosts):
    hosts.give_away_all_ports_but(0, 2)
    with (
        hosts.occupied(0, addresses.LOWEST_PORT, addresses.LOWEST_PORT + 1),
        hosts.start(0, "-c", LISTEN, stdout=subprocess.PIPE) as listener,
    ):
        said = listener.stdout.read()
    assert said.startswith("infra no port could be had on 10.213.7.1")
    assert "Address already in use" in said
    with hosts.start(1, "-c", LISTEN, stdout=subprocess.PIPE) as listener:
        said = listener.stdout.read()
    assert said.startswith("infra 10.213.7.1 is no address of this host")


def test_a_rank_without_a_rank_0_says_where_it_looked(tmp_path, hosts):
    plan = two_nodes(make_plan(processes=2, phase_s={"init": 1.0}))
    folder = make_attempt(StudyFolder(tmp_path), 0, [["all_reduce"], ["all_reduce"]], plan)
    words = [f"--folder={folder.path}", "--rank=1"]
    with hosts.start(1, "-m", "scripted_ranks", *words, stderr=subprocess.PIPE) as rank:
        said = rank.stderr.read()
    assert "found nowhere to meet within 1 s: no rank 0 wrote" in said


ASK = (
    "import os; from autotune.worker import addresses as a; print(a.own_address(os.environ, 'cpu'))"
)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, ADDRESSES[0]),
        ({addresses.VARIABLE: ADDRESSES[0]}, ADDRESSES[0]),
        ({addresses.VARIABLE: "other7"}, "10.99.0.7"),
        ({addresses.VARIABLE: "10.99.0.7", "GLOO_SOCKET_IFNAME": "va"}, "10.99.0.7"),
        ({"GLOO_SOCKET_IFNAME": "other"}, "10.99.0.7"),
        ({"GLOO_SOCKET_IFNAME": "^va"}, "10.99.0.7"),
        ({"NCCL_SOCKET_IFNAME": "other"}, ADDRESSES[0]),
    ],
)
def test_the_address_is_that_of_the_network_that_is_asked_for(hosts, environment, expected):
    here = ("-n", hosts.names[0])
    ip(*here, "link", "add", "other7", "type", "veth", "peer", "name", "other8")
    ip(*here, "addr", "add", "10.99.0.7/24", "dev", "other7")
    ip(*here, "link", "set", "other7", "up")
    with hosts.start(0, "-c", ASK, environment=environment, stdout=subprocess.PIPE) as asked:
        assert asked.stdout.read().strip() == expected


@pytest.mark.parametrize("asked", ["no-such-interface", "192.0.2.1"])
def test_an_address_that_is_not_here_is_refused(asked):
    with pytest.raises(addresses.RendezvousError, match="this host has no such address"):
        addresses.own_address({addresses.VARIABLE: asked}, "cpu")


def test_interfaces_are_meant_as_nccl_means_them():
    names = ("eth0", "eth1", "ib0", "docker0")
    assert addresses.chosen_interfaces("eth", names) == ("eth0", "eth1")
    assert addresses.chosen_interfaces("=eth1,ib", names) == ("eth1",)
    assert addresses.chosen_interfaces("^docker,eth", names) == ("ib0",)
    assert addresses.chosen_interfaces("^=docker0", names) == ("eth0", "eth1", "ib0")


def test_ports_lie_outside_what_the_kernel_gives_away():
    text = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text()
    first, last = map(int, text.split())
    ports = addresses.candidates()
    assert len(set(ports)) == len(ports) == addresses.TRIES
    assert not any(first <= port <= last for port in ports)
    assert addresses.candidates() != ports
