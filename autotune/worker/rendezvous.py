"""How the ranks of a trial meet: a store on the loopback interface, then gloo or NCCL.

The fork server binds port 0 of 127.0.0.1 before it forks and rank 0 inherits the listening
socket, so there is no moment at which another program could take the port and no default port
to collide on. Ranks that were started by hand (``python -m autotune.worker``) meet through a
file in the attempt folder, in which rank 0 writes the port that it got.
"""

from __future__ import annotations

import datetime
import os
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from autotune.contract import jsonfile, smallfile
from autotune.contract.failures import FailureKind
from autotune.contract.plan import Plan
from autotune.contract.processes import LISTEN_FD
from autotune.worker.failures import TrialError
from autotune.worker.rank_process import LOOPBACK

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

PORT_FILE: Final = "rendezvous.json"
DEFAULT_INIT_S: Final = 120.0
"""Limit for the ranks to meet, where the plan has no deadline for the phase ``init``."""


class RendezvousError(TrialError):
    """The ranks did not meet: a matter of the machine, never of the configuration."""

    kind: FailureKind = "infra"


def init_process_group(plan: Plan, rank: int, *, folder: Path | None = None) -> None:
    """Initialise the default process group: gloo on CPU, NCCL on CUDA.

    The limit on meeting is that of the plan's phase ``init``. The limit on a collective lies
    beyond the plan's total deadline: the launcher ends a trial that hangs, and knows the phase.

    Args:
        plan: Names world size and device.
        rank: This process.
        folder: Attempt folder; only for ranks that no launcher started.

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
    store = _store(rank, processes, limit_s, folder)
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


def _store(rank: int, processes: int, limit_s: float, folder: Path | None) -> Store:
    if "MASTER_PORT" in os.environ:
        listen = os.environ.pop(LISTEN_FD, None)
        handle = None if listen is None else int(listen)
        port = int(os.environ["MASTER_PORT"])
        host = os.environ.get("MASTER_ADDR", LOOPBACK)
        return _open(host, port, rank, processes, limit_s, handle)
    if folder is None:
        raise RendezvousError("neither MASTER_PORT nor an attempt folder says where to meet")
    return _meet_by_file(folder / PORT_FILE, rank, processes, limit_s)


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


def _meet_by_file(path: Path, rank: int, processes: int, limit_s: float) -> Store:
    if rank == 0:
        listener = socket.create_server((LOOPBACK, 0), backlog=max(128, processes))
        port = listener.getsockname()[1]
        jsonfile.write_json(path, {"port": port, "pid": os.getpid()})
        return _open(LOOPBACK, port, rank, processes, limit_s, listener.detach())
    port = _await_port(path, limit_s)
    return _open(LOOPBACK, port, rank, processes, limit_s, None)


def _await_port(path: Path, limit_s: float) -> int:
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        found = smallfile.read_object(path, smallfile.MAX_HEARTBEAT_BYTES) or {}
        port, pid = found.get("port"), found.get("pid")
        # The file of an earlier attempt names a process that is gone.
        if isinstance(port, int) and isinstance(pid, int) and _is_alive(pid):
            return port
        time.sleep(0.02)
    raise RendezvousError(f"no rank 0 wrote {path} within {limit_s:.0f} s")


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return pid > 0
