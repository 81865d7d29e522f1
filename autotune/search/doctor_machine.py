"""What ``autotune doctor`` finds out about the machine: files, variables, sockets. Reads only."""

from __future__ import annotations

import os
import shutil
import socket
import sys
from pathlib import Path
from typing import Final

from autotune import registry
from autotune.contract import hostmemory
from autotune.errors import AutotuneError, EnvironmentFault
from autotune.launchers.environment import inherited, with_caches
from autotune.search import disk
from autotune.search.checks import Check, State, attempt
from autotune.search.devices import Devices

_GIB: Final = 1024**3
_LEAST_SHARED_BYTES: Final = 1 * _GIB
"""NCCL's buffers between processes of one machine lie in shared memory; 64 MiB is Docker's."""
_MULTICAST: Final = (
    "NCCL_NVLS_ENABLE",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST",
    "NVSHMEM_DISABLE_NVLS",
)
"""The site's settings for NVLink multicast: reported, passed on to ranks, never changed."""


def checks(runs: Path, devices: Devices) -> list[Check]:
    """Everything about the machine.

    Args:
        runs: Where studies would lie.
        devices: The visible GPUs.
    """
    return [
        _compiler(),
        _caches(runs),
        *_launchers(),
        attempt("runs folder", lambda: disk.check_writable(runs), f"{runs} can be written"),
        _disk(runs),
        _memory(),
        shared_memory(Path("/dev/shm"), devices),  # noqa: S108 - looked at, not written
        _multicast(),
        _leftovers(),
    ]


def _compiler() -> Check:
    """DeepSpeed's ops, Triton and Inductor need a C++ compiler, and ``ninja`` beside Python."""
    beside = str(Path(sys.executable).parent)
    path = os.pathsep.join(filter(None, (os.environ.get("PATH"), beside)))
    compiler = shutil.which("c++", path=path) or shutil.which("g++", path=path)
    ninja = shutil.which("ninja", path=path)
    data = {"compiler": compiler, "ninja": ninja, "nvcc": shutil.which("nvcc", path=path)}
    missing = [name for name in ("compiler", "ninja") if data[name] is None]
    if missing:
        return Check(
            name="compiler",
            state="warning",
            text=f"no {' and no '.join(missing)}: what is compiled at first use cannot be",
            hint="install a C++ compiler (g++) and 'pip install ninja'",
            data=data,
        )
    return Check(name="compiler", state="ok", text=f"{compiler}, {ninja}", data=data)


def _caches(runs: Path) -> Check:
    before = dict(os.environ)
    caches = {
        name: value
        for name, value in with_caches(before, runs.absolute()).items()
        if name.endswith(("_CACHE_DIR", "_EXTENSIONS_DIR"))
    }
    own = sorted(name for name in caches if name in before)
    text = f"compiled kernels outlive trials below {runs / '.cache'}"
    if own:
        text += f"; set by you: {', '.join(own)}"
    return Check(name="caches", state="ok", text=text, data=caches)


def _launchers() -> list[Check]:
    found = []
    for name in registry.names("launchers"):
        if name == "local":
            found.append(attempt("launcher local", _loopback, "ranks can reach each other here"))
            continue
        try:
            registry.load("launchers", name)
        except AutotuneError as error:
            found.append(
                Check(name=f"launcher {name}", state="warning", text=error.message, hint=error.hint)
            )
        else:
            found.append(Check(name=f"launcher {name}", state="ok", text="can be loaded"))
    return found


def _loopback() -> None:
    """Listen and connect on loopback, as the ranks' rendezvous does.

    Raises:
        EnvironmentFault: It cannot be done.
    """
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname(), timeout=5.0).close()
    except OSError as error:
        raise EnvironmentFault(
            f"no connection over loopback: {error.strerror or error}",
            hint="ranks of a trial meet at 127.0.0.1",
        ) from error


def _disk(runs: Path) -> Check:
    found = attempt("disk", lambda: disk.check_room(runs), "")
    if found.state == "failed":
        return found
    free = shutil.disk_usage(disk.existing_parent(runs)).free
    text = f"{free / _GIB:.1f} GiB free where {runs} lies"
    return Check(name="disk", state="ok", text=text, data={"free_bytes": free})


def _memory() -> Check:
    free, total = hostmemory.available_bytes(), hostmemory.total_bytes()
    text = f"{free / _GIB:.1f} of {total / _GIB:.1f} GiB available"
    data = {"available_bytes": free, "total_bytes": total}
    return Check(name="memory", state="ok", text=text, data=data)


def shared_memory(folder: Path, devices: Devices) -> Check:
    """Room in shared memory, which matters where ranks exchange data through it."""
    try:
        usage = shutil.disk_usage(folder)
    except OSError as error:
        text = f"{folder} cannot be looked at: {error.strerror or error}"
        return Check(name="shared memory", state="warning", text=text)
    data = {"free_bytes": usage.free, "total_bytes": usage.total}
    text = f"{usage.free / _GIB:.2f} of {usage.total / _GIB:.2f} GiB free in {folder}"
    if len(devices.found) > 1 and usage.free < _LEAST_SHARED_BYTES:
        return Check(
            name="shared memory",
            state="warning",
            text=f"only {text}",
            hint="start the container with --shm-size=16g or --ipc=host",
            data=data,
        )
    return Check(name="shared memory", state="ok", text=text, data=data)


def _multicast() -> Check:
    found = {name: os.environ.get(name) for name in _MULTICAST}
    shown = ", ".join(f"{name}={value}" for name, value in found.items() if value is not None)
    text = f"{shown} (passed on as it is)" if shown else "no variable is set"
    return Check(name="NVLink multicast", state="ok", text=text, data=found)


def _leftovers() -> Check:
    _, dropped = inherited(os.environ)
    text = f"kept from trials: {', '.join(dropped)}" if dropped else "nothing to keep from trials"
    state: State = "note" if dropped else "ok"
    return Check(name="other launchers", state=state, text=text, data={"names": list(dropped)})
