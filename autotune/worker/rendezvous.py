"""How the ranks of a trial meet: at a store that rank 0 keeps, then by gloo or NCCL.

*One node.* The fork server binds port 0 of 127.0.0.1 before it forks and rank 0 inherits the
listening socket, so there is no moment at which another program could take the port and no
default port to collide on.

*Several nodes*, and ranks that were started by hand (``python -m autotune.worker``): rank 0 binds
a port itself and writes where it listens into ``rendezvous.json`` in the attempt folder, which all
nodes share. On one node that is a port of the loopback interface; for several nodes one outside
the range that the kernel gives away, on one address (``worker.addresses``). Where it listens holds
a word that only this trial's store knows, so that what an earlier attempt left is not believed.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import secrets
import socket
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from autotune.contract import jsonfile, smallfile
from autotune.contract.plan import Plan
from autotune.contract.processes import LISTEN_FD, MARKER
from autotune.worker import addresses
from autotune.worker.addresses import RendezvousError
from autotune.worker.rank_process import LOOPBACK

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

PLACE_FILE: Final = "rendezvous.json"
DEFAULT_INIT_S: Final = 120.0
"""Limit for the ranks to meet, where the plan has no deadline for the phase ``init``."""
LOOK_EVERY_S: Final = 0.05
ANSWER_S: Final = 5.0
"""How long the place in the file may owe an answer before the file is read again."""


def init_process_group(plan: Plan, rank: int, *, folder: Path | None = None) -> None:
    """Initialise the default process group: gloo on CPU, NCCL on CUDA.

    The limit on meeting is that of the plan's phase ``init``. The limit on a collective lies
    beyond the plan's total deadline: the launcher ends a trial that hangs, and knows the phase.

    Args:
        plan: Names world size, nodes and device.
        rank: This process.
        folder: Attempt folder; not needed by the ranks that one fork server made.

    Raises:
        RendezvousError: The ranks did not meet in time.
    """
    import torch
    import torch.distributed as dist

    processes, device = plan.topology.processes, plan.topology.device
    limit_s = plan.deadlines.phase_s.get("init", DEFAULT_INIT_S)
    if plan.topology.nodes == 1:
        # Also here, so that ranks started by hand keep to the loopback interface.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
    store = _store(plan, rank, limit_s, folder)
    local = None
    if device == "cuda":
        local = torch.device("cuda", int(os.environ.get("LOCAL_RANK", rank)))
        torch.cuda.set_device(local)
    dist.init_process_group(
        backend="nccl" if device == "cuda" else "gloo",
        store=store,
        rank=rank,
        world_size=processes,
        timeout=datetime.timedelta(seconds=plan.deadlines.total_s + 60.0),
        device_id=local,
    )


def _store(plan: Plan, rank: int, limit_s: float, folder: Path | None) -> Store:
    processes = plan.topology.processes
    # A launcher's variables speak of one node; those of several nodes meet by the folder.
    if plan.topology.nodes == 1 and "MASTER_PORT" in os.environ:
        listen = os.environ.pop(LISTEN_FD, None)
        handle = None if listen is None else int(listen)
        port = int(os.environ["MASTER_PORT"])
        host = os.environ.get("MASTER_ADDR", LOOPBACK)
        return _open(host, port, rank, processes, limit_s, handle)
    if folder is None:
        raise RendezvousError("neither MASTER_PORT nor an attempt folder says where to meet")
    path = folder / PLACE_FILE
    if rank == 0:
        return _keep_store(plan, path, limit_s)
    return _find_store(plan, path, rank, limit_s)


def _open(
    host: str, port: int, rank: int, processes: int, limit_s: float, handle: int | None
) -> Store:
    import torch.distributed as dist
    from torch._C._distributed_c10d import TCPStore

    try:
        # Taking over a bound socket: torch/csrc/distributed/c10d/TCPStore.hpp, masterListenFd.
        return TCPStore(
            host,
            port,
            processes,
            rank == 0,
            datetime.timedelta(seconds=limit_s),
            wait_for_workers=False,
            master_listen_fd=handle,
        )
    except (dist.DistError, RuntimeError) as error:
        raise RendezvousError(f"rank {rank} did not reach {host}:{port}: {error}") from error


def _keep_store(plan: Plan, path: Path, limit_s: float) -> Store:
    """Open the store in this process, rank 0, and say in the file where it is."""
    processes = plan.topology.processes
    backlog = max(128, processes)
    if plan.topology.nodes == 1:
        listener = socket.create_server((LOOPBACK, 0), backlog=backlog)
    else:
        listener = addresses.listen(
            addresses.own_address(os.environ, plan.topology.device), backlog
        )
    host, port = listener.getsockname()[:2]
    store = _open(host, port, 0, processes, limit_s, listener.detach())
    word = secrets.token_hex(16)
    store.set(_key(word), word)
    jsonfile.write_json(path, {"host": host, "port": port, "word": word, "job": _job()})
    _settle(plan, host, port, own=host)
    return store


def _find_store(plan: Plan, path: Path, rank: int, limit_s: float) -> Store:
    """Wait until the file names a store that is this trial's."""
    deadline = time.monotonic() + limit_s
    problem = f"no rank 0 wrote {path}"
    while (left := deadline - time.monotonic()) > 0:
        place = _read_place(path)
        if place is not None:
            host, port, word = place
            try:
                own = _reach(host, port, min(ANSWER_S, left))
                store = _open_if_answered(host, port, rank, plan.topology.processes, limit_s)
                if store.check([_key(word)]):
                    _settle(plan, host, port, own=own)
                    return store
                problem = f"{host}:{port} is not the store of this trial"
            except (OSError, RuntimeError, RendezvousError) as error:
                problem = f"rank 0 is said to listen on {host}:{port}, but: {error}"
        time.sleep(LOOK_EVERY_S)
    raise RendezvousError(f"rank {rank} found nowhere to meet within {limit_s:.0f} s: {problem}")


def _open_if_answered(host: str, port: int, rank: int, processes: int, limit_s: float) -> Store:
    """As :func:`_open`, for a place where something else may listen.

    The store waits without limit for the first answer, and something else may owe it for ever.
    """
    found: list[Store] = []
    problems: list[RendezvousError] = []

    def connect() -> None:
        try:
            found.append(_open(host, port, rank, processes, limit_s, None))
        except RendezvousError as error:
            problems.append(error)

    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    thread.join(ANSWER_S)
    if problems:
        raise problems[0]
    if not found:
        raise RendezvousError("what listens there does not answer as a store does")
    return found[0]


def _read_place(path: Path) -> tuple[str, int, str] | None:
    with contextlib.suppress(OSError), os.scandir(path.parent) as entries:
        # A network file system remembers that a file was missing until its folder is looked at.
        next(entries, None)
    found: dict[str, Any] = smallfile.read_object(path, smallfile.MAX_HEARTBEAT_BYTES) or {}
    host, port, word = found.get("host"), found.get("port"), found.get("word")
    if found.get("job") != _job():
        return None
    if isinstance(host, str) and isinstance(port, int) and isinstance(word, str):
        return host, port, word
    return None


def _reach(host: str, port: int, limit_s: float) -> str:
    """Connect once, and return the address of this host that is on the way there."""
    with socket.create_connection((host, port), timeout=limit_s) as connection:
        return str(connection.getsockname()[0])


def _settle(plan: Plan, host: str, port: int, *, own: str) -> None:
    """Tell the libraries in this rank what was found; what the user set stays."""
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = host, str(port)
    interface = addresses.interface_of(own)
    if plan.topology.nodes > 1 and interface is not None:
        # Gloo would take what the host's name stands for, which may be the loopback interface.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)


def _key(word: str) -> str:
    return f"autotune/{word}"


def _job() -> str:
    """The launch that this rank belongs to; empty for one that was started by hand."""
    return os.environ.get(MARKER, "")
