"""Has the package that a file is for load it, in a process of its own.

Importing such a package prints, and takes memory and seconds; and it must not see the user's
devices, nor what a launcher left in the environment.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import autotune
from autotune.errors import EnvironmentFault

_LIMIT_S: Final = 300.0
"""Longest wait for the package to be imported and to load the file (s)."""
_DROPPED_PREFIXES: Final = ("ACCELERATE_", "FSDP_", "MEGATRON_LM_", "PARALLELISM_CONFIG_")
"""Variables with which ``accelerate launch`` configures an engine."""


def is_installed(package: str) -> bool:
    """Whether ``package`` could be imported; it is not."""
    return importlib.util.find_spec(package) is not None


def ask(package: str, request: dict[str, Any]) -> dict[str, Any]:
    """Return what ``autotune.exporters.PACKAGE_loading`` answers to ``request``.

    Args:
        package: An installed package, by the name of its module.
        request: Goes to the program's stdin as JSON; the last line of its stdout is the answer.

    Raises:
        EnvironmentFault: The package cannot be imported, or it takes too long.
    """
    root = str(Path(autotune.__file__).parent.parent)
    path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    kept = {k: v for k, v in os.environ.items() if not k.startswith(_DROPPED_PREFIXES)}
    hint = f"'python -P -c \"import {package}\"' shows what it misses"
    try:
        done = subprocess.run(
            # -P: a file of the package's name in the working directory must not shadow it.
            [sys.executable, "-P", "-m", f"autotune.exporters.{package}_loading"],
            input=json.dumps(request),
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            check=False,
            env=kept | {"CUDA_VISIBLE_DEVICES": "", "DS_ACCELERATOR": "cpu", "PYTHONPATH": path},
        )
    except subprocess.TimeoutExpired as error:
        raise EnvironmentFault(
            f"{package} did not load the file within {_LIMIT_S:.0f} s", hint=hint
        ) from error
    lines = done.stdout.splitlines()
    if done.returncode != 0 or not lines:
        last = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        raise EnvironmentFault(
            f"{package} is installed and cannot load a configuration: {last}", hint=hint
        )
    answer: dict[str, Any] = json.loads(lines[-1])
    return answer
