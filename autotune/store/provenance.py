"""Where a study ran: versions, processor, accelerators. Reads metadata, imports nothing heavy.

Secrets are not collected: no user name, no command line, and of the environment only the variables
of allocator, driver and NCCL that knobs know or that are the site's alone.
"""

from __future__ import annotations

import os
import platform
import socket
import subprocess
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import autotune
from autotune.contract import jsonfile
from autotune.contract.plan import Topology
from autotune.knobs import environment as environment_knobs
from autotune.knobs.environment import FORBIDDEN

_TUNABLE: Final = tuple(
    dict.fromkeys((*environment_knobs.ALLOCATOR_NAMES, *(k.name for k in environment_knobs.KNOBS)))
)
_KERNELS: Final = (
    "flash-attn",
    "flash-linear-attention",
    "causal-conv1d",
    "liger-kernel",
    "tilelang",
    "kernels",
)
_PACKAGES: Final = (
    "torch", "transformers", "deepspeed", "triton", "optuna", "accelerate", "peft",
    "bitsandbytes", *_KERNELS,
)  # fmt: skip
_TIMED_PACKAGES: Final = ("torch", "transformers", "deepspeed", "triton", *_KERNELS)
"""Packages whose version may change a step's time."""
_QUERY_S: Final = 10.0
"""Longest wait for ``nvidia-smi`` or ``git`` (s)."""


def environment(topology: Topology) -> dict[str, Any]:
    """Return what a reader needs to know about the machine of a study.

    Args:
        topology: Accelerators are asked for only where its device is ``cuda``.
    """
    return {
        "autotune": autotune.__version__,
        "python": platform.python_version(),
        "packages": {name: found for name in _PACKAGES if (found := _version(name)) is not None},
        "system": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
        "cpu": _cpu_model(),
        "cpu_cores": len(os.sched_getaffinity(0)),
        "device": topology.device,
        "variables": variables(os.environ),
        **(_accelerators() if topology.device == "cuda" else {"gpus": [], "driver": None}),
        "git": _git(),
        "hostname": socket.gethostname(),
    }


def variables(present: Mapping[str, str]) -> dict[str, str]:
    """Return what the site itself has set of the variables that change a step on a device."""
    return {name: present[name] for name in (*_TUNABLE, *FORBIDDEN) if name in present}


def environment_fingerprint(found: dict[str, Any]) -> str:
    """Return the digest of what may change a step's time.

    The host's name, the kernel's release, the state of the user's repository and the versions of
    autotune, Optuna and Accelerate are left out: another node of the same kind is comparable.
    Times that are played from a table are comparable with no others.
    """
    timed = {
        "python": ".".join(str(found["python"]).split(".")[:2]),
        "packages": {k: v for k, v in found["packages"].items() if k in _TIMED_PACKAGES},
        **{key: found[key] for key in ("machine", "cpu", "cpu_cores", "device", "gpus", "driver")},
    }
    if "replayed_from" in found:
        timed["replayed_from"] = found["replayed_from"]["sha256"]
    changed = found.get("variables", {})
    if changed and found["device"] == "cuda":
        timed["variables"] = changed
    return jsonfile.digest(timed)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _cpu_model() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor()
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("model name", "Model", "cpu"):
            return value.strip()
    return platform.processor() or platform.machine()


def _accelerators() -> dict[str, Any]:
    fields = "index,uuid,name,memory.total,driver_version"
    text = _output("nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits")
    rows = [[cell.strip() for cell in line.split(",")] for line in (text or "").splitlines()]
    return parse_accelerators(rows, os.environ.get("CUDA_VISIBLE_DEVICES"))


def parse_accelerators(rows: list[list[str]], visible: str | None) -> dict[str, Any]:
    """Return name and memory of the visible accelerators.

    Args:
        rows: index, uuid, name, memory (MiB) and driver of each, as ``nvidia-smi`` prints them.
        visible: ``CUDA_VISIBLE_DEVICES``: indices or UUIDs (a prefix will do), or ``None``.
    """
    rows = [row for row in rows if len(row) == 5]
    if visible is not None:
        wanted = [item.strip() for item in visible.split(",") if item.strip()]
        rows = [r for r in rows if any(w == r[0] or r[1].startswith(w) for w in wanted)]
    return {
        "gpus": [{"name": row[2], "memory_mib": _number(row[3])} for row in rows],
        "driver": rows[0][4] if rows else None,
    }


def _number(text: str) -> int | None:
    return int(text) if text.isdecimal() else None


def _git() -> dict[str, Any] | None:
    commit = _output("git", "rev-parse", "HEAD")
    if not commit:
        return None
    return {"commit": commit.strip(), "dirty": bool(_output("git", "status", "--porcelain"))}


def _output(*command: str) -> str | None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_QUERY_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
