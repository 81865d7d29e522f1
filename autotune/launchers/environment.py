"""The environment of a trial's processes: inherited, less what another launcher left behind.

Dropped are the variables by which launchers tell ranks who they are. They would make a trial
believe that it belongs to the job from which ``autotune`` was started:

- ``RANK``, ``WORLD_SIZE``, ``LOCAL_*``, ``MASTER_*``, ``GROUP_RANK``, ``ROLE_RANK`` and their
  likes, and ``TORCHELASTIC_*`` (torchrun),
- ``ACCELERATE_*`` and ``FSDP_*`` (``accelerate launch`` configures the engine with them),
- step-level ``SLURM_*``: what ``srun`` sets for one task (``SLURM_PROCID``, ``SLURM_STEP_ID``, …);
  the allocation's own variables stay,
- ``AUTOTUNE_TRIAL`` and this program's other variables of a rank.

All else reaches every rank as it is: the site's settings (``NCCL_NVLS_ENABLE``,
``TORCH_SYMM_MEM_DISABLE_MULTICAST``, ``NVSHMEM_DISABLE_NVLS``) and secrets. Only the *names* of
what was dropped are recorded.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal

from autotune.contract.plan import Plan
from autotune.contract.processes import LISTEN_FD, MARKER, MARKER_LENGTH
from autotune.contract.steps import FOLDER, ITERATIONS, SYNCHRONISE_EVERY

_DROPPED_NAMES: Final = frozenset(
    {
        "RANK",
        "WORLD_SIZE",
        "GROUP_RANK",
        "GROUP_WORLD_SIZE",
        "ROLE_RANK",
        "ROLE_NAME",
        "ROLE_WORLD_SIZE",
        "CROSS_RANK",
        "CROSS_SIZE",
        MARKER,
        LISTEN_FD,
        FOLDER,
        ITERATIONS,
        SYNCHRONISE_EVERY,
        # srun, "OUTPUT ENVIRONMENT VARIABLES": those of a step or of one of its tasks.
        "SLURM_PROCID",
        "SLURM_LOCALID",
        "SLURM_NODEID",
        "SLURM_GTIDS",
        "SLURM_TASK_PID",
        "SLURM_LAUNCH_NODE_IPADDR",
        "SLURM_SRUN_COMM_HOST",
        "SLURM_SRUN_COMM_PORT",
        "SLURM_UMASK",
        "SLURM_CPU_BIND",
        "SLURM_DISTRIBUTION",
    }
)
_DROPPED_PREFIXES: Final = (
    "LOCAL_",
    "MASTER_",
    "TORCHELASTIC_",
    "ACCELERATE_",
    "FSDP_",
    "SLURM_STEP",
    "SLURM_CPU_BIND_",
)

THREAD_VARIABLES: Final = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "RAYON_NUM_THREADS",
)
"""Variables that libraries read when they are loaded to size their thread pools."""

_LATE_NAMES: Final = frozenset(
    {
        "CUDA_DEVICE_MAX_CONNECTIONS",
        "OMP_NUM_THREADS",
        # The rank itself tells the allocator (``worker/allocator.py``).
        "PYTORCH_ALLOC_CONF",
        "PYTORCH_CUDA_ALLOC_CONF",
    }
)
_LATE_PREFIXES: Final = ("NCCL_", "TORCH_NCCL_", "GLOO_")


def is_dropped(name: str) -> bool:
    """Whether a variable of the parent is kept from a trial's processes."""
    return name in _DROPPED_NAMES or name.startswith(_DROPPED_PREFIXES)


def inherited(parent: Mapping[str, str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return what is inherited of ``parent``, and the names of what is not, sorted."""
    kept = {name: value for name, value in parent.items() if not is_dropped(name)}
    return kept, tuple(sorted(set(parent) - set(kept)))


def child_environment(
    parent: Mapping[str, str], plan: Plan, *, cores: int
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the environment that the ranks of ``plan`` share, and the names that were dropped.

    Args:
        parent: The coordinator's environment.
        plan: Its ``environment`` wins over what is inherited.
        cores: Processors this machine lets us use; they are divided among the ranks for
            ``OMP_NUM_THREADS`` unless the user set it.
    """
    environment, dropped = inherited(parent)
    per_node = max(1, plan.topology.processes // plan.topology.nodes)
    environment.setdefault("OMP_NUM_THREADS", str(max(1, cores // per_node)))
    environment.setdefault("TOKENIZERS_PARALLELISM", "false")
    environment["PATH"] = with_interpreters_folder(environment.get("PATH", os.defpath))
    if plan.topology.nodes == 1:
        # One node needs no network: nothing of a trial listens where others can reach it.
        environment.setdefault("GLOO_SOCKET_IFNAME", "lo")
        environment.setdefault("NCCL_SOCKET_IFNAME", "lo")
    environment |= device_environment(environment, plan.topology.device)
    if plan.topology.device == "cpu":
        # As DeepSpeed's own launcher does. Otherwise it runs `numactl` at each question for the
        # number of devices (``deepspeed/accelerator/cpu_accelerator.py``), 26 times in a trial.
        environment["LOCAL_SIZE"] = str(per_node)
    for name in plan.unset:
        environment.pop(name, None)
    environment |= plan.environment
    return environment, dropped


def device_environment(parent: Mapping[str, str], device: Literal["cpu", "cuda"]) -> dict[str, str]:
    """Return the variables that keep a CPU study off the accelerators of its host.

    ``DS_ACCELERATOR`` (``deepspeed/accelerator/real_accelerator.py``) is read when DeepSpeed is
    imported, so the fork server needs it as well as the ranks.
    """
    if device != "cpu":
        return {}
    return {"CUDA_VISIBLE_DEVICES": "", "DS_ACCELERATOR": parent.get("DS_ACCELERATOR", "cpu")}


def server_environment(
    parent: Mapping[str, str],
    *,
    device: Literal["cpu", "cuda"],
    package_root: Path | None,
    mark: str = "",
    settings: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Return the environment of a fork server.

    One thread in every library (a child of a process with threads can hang), no CUDA context
    for the question whether there is a device (``torch/cuda/__init__.py``, ``is_available``),
    and room for the marker that each rank writes over the placeholder.

    Args:
        parent: The coordinator's environment.
        device: ``cpu`` keeps it off the accelerators.
        package_root: As for :func:`with_package`.
        mark: The study's (``contract.processes.mark_of``).
        settings: What libraries shall read while they are imported.
    """
    environment, _ = inherited(parent)
    environment |= settings or {}
    environment |= dict.fromkeys(THREAD_VARIABLES, "1")
    environment["TOKENIZERS_PARALLELISM"] = "false"
    environment["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    # Arrow, which transformers imports where pandas is installed, would start a thread.
    environment.setdefault("JE_ARROW_MALLOC_CONF", "background_thread:false")
    environment |= device_environment(environment, device)
    environment[MARKER] = mark.ljust(MARKER_LENGTH, "-")
    return with_package(environment, package_root)


def with_interpreters_folder(path: str) -> str:
    """Return a search path that also leads to what is installed beside the interpreter.

    Extensions are built by ``ninja``, which an environment that is not activated has there.
    """
    folder = str(Path(sys.executable).parent)
    parts = path.split(os.pathsep)
    return path if folder in parts else os.pathsep.join([*parts, folder])


def with_package(environment: Mapping[str, str], package_root: Path | None) -> dict[str, str]:
    """Return the environment with ``package_root`` importable, from whatever folder it is run.

    Args:
        environment: Not changed.
        package_root: Folder that holds the package; ``None`` when every interpreter finds it.
    """
    result = dict(environment)
    if package_root is not None:
        present = result.get("PYTHONPATH")
        parts = present.split(os.pathsep) if present else []
        if str(package_root) not in parts:
            result["PYTHONPATH"] = os.pathsep.join([str(package_root), *parts])
    return result


def read_at_import(plan: Plan) -> dict[str, str]:
    """Return the plan's variables that a preloaded library may already have read.

    In a rank that is forked from an ordinary server such a value would come too late.
    """
    return {
        name: value
        for name, value in sorted(plan.environment.items())
        if name not in _LATE_NAMES and not name.startswith(_LATE_PREFIXES)
    }


def needs_interpreter(plan: Plan) -> bool:
    """Whether a plan sets what no fork server may have: more than one thread in a library."""
    return not set(THREAD_VARIABLES).isdisjoint(read_at_import(plan))
