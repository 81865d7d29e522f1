"""Has accelerate itself load what is about to be exported, in a process of its own."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

import autotune
from autotune.errors import EnvironmentFault, NothingToExportError
from autotune.exporters import exactness

_LOAD_S: Final = 300.0
"""Longest wait for accelerate to be imported and to load the file (s)."""
_OVERWRITTEN: Final = frozenset({"steps_per_print"})
"""Keys of the DeepSpeed JSON that accelerate sets itself (``DeepSpeedPlugin.__post_init__``)."""
_DROPPED_PREFIXES: Final = ("ACCELERATE_", "FSDP_", "MEGATRON_LM_", "PARALLELISM_CONFIG_")


def check_in_accelerate(
    files: Mapping[str, str], main: str, expected: Mapping[str, Any]
) -> str | None:
    """Load the files as ``accelerate launch`` does and compare what it understood.

    Args:
        files: File name to text; they are written to a temporary folder.
        main: Name of the YAML.
        expected: What accelerate must have understood, under the names of ``accelerate_loading``.

    Returns:
        Accelerate's version, or ``None`` if it is not installed.

    Raises:
        NothingToExportError: Accelerate refuses the files or understands other values.
        EnvironmentFault: Accelerate is installed and cannot be imported.
    """
    if importlib.util.find_spec("accelerate") is None:
        return None
    with tempfile.TemporaryDirectory(prefix="autotune-") as folder:
        expected = dict(expected)
        for name, text in files.items():
            if name == main:
                text, beside = _beside(text, Path(folder))
                if beside is not None:
                    expected["deepspeed"] = json.loads(files[beside])
            (Path(folder) / name).write_text(text, encoding="utf-8")
        answer = _ask(Path(folder), main)
    if answer["refused"] is not None:
        raise NothingToExportError(
            f"accelerate {answer['version']} refuses the file: {answer['refused']}"
        )
    wrong = differences(expected, answer["understood"])
    if wrong:
        raise NothingToExportError(
            f"accelerate {answer['version']} understands the file in another way: "
            + "; ".join(wrong)
        )
    return str(answer["version"])


def differences(expected: Mapping[str, Any], understood: Mapping[str, Any]) -> list[str]:
    """Where ``understood`` lacks or changes something that is expected; more is no difference."""
    found = []
    for key, value in expected.items():
        seen = understood.get(key)
        if key in _OVERWRITTEN:
            continue
        if isinstance(value, Mapping) and isinstance(seen, Mapping):
            found += [f"{key}.{line}" for line in differences(value, seen)]
        elif not exactness.same(value, seen):
            found.append(f"{key} is {seen!r}, not {value!r}")
    return found


def _beside(text: str, folder: Path) -> tuple[str, str | None]:
    """Return the YAML with its JSON's path in ``folder``, and the name of that JSON."""
    data = yaml.safe_load(text)
    section = data.get("deepspeed_config")
    if section is None:
        return text, None
    name = Path(section["deepspeed_config_file"]).name
    section["deepspeed_config_file"] = str(folder / name)
    return yaml.safe_dump(data, sort_keys=False), name


def _ask(folder: Path, main: str) -> dict[str, Any]:
    root = str(Path(autotune.__file__).parent.parent)
    path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    kept = {k: v for k, v in os.environ.items() if not k.startswith(_DROPPED_PREFIXES)}
    try:
        done = subprocess.run(
            [sys.executable, "-m", "autotune.exporters.accelerate_loading"],
            input=json.dumps({"folder": str(folder), "file": main}),
            capture_output=True,
            text=True,
            timeout=_LOAD_S,
            check=False,
            # The check reads files; it must not touch the user's devices.
            env=kept | {"CUDA_VISIBLE_DEVICES": "", "DS_ACCELERATOR": "cpu", "PYTHONPATH": path},
        )
    except subprocess.TimeoutExpired as error:
        raise EnvironmentFault(
            f"accelerate did not load the file within {_LOAD_S:.0f} s"
        ) from error
    lines = done.stdout.splitlines()
    if done.returncode != 0 or not lines:
        last = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        raise EnvironmentFault(
            f"accelerate is installed and cannot load a configuration: {last}",
            hint="'python -c \"import accelerate\"' shows what it misses",
        )
    answer: dict[str, Any] = json.loads(lines[-1])
    return answer
