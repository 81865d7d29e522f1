"""Has accelerate itself load what is about to be exported, in a process of its own."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from autotune.errors import NothingToExportError
from autotune.exporters import exactness
from autotune.exporters.asking import ask, is_installed

_OVERWRITTEN: Final = frozenset({"steps_per_print"})
"""Keys of the DeepSpeed JSON that accelerate sets itself (``DeepSpeedPlugin.__post_init__``)."""


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
    if not is_installed("accelerate"):
        return None
    with tempfile.TemporaryDirectory(prefix="autotune-") as folder:
        expected = dict(expected)
        for name, text in files.items():
            if name == main:
                text, beside = _beside(text, Path(folder))
                if beside is not None:
                    expected["deepspeed"] = json.loads(files[beside])
            (Path(folder) / name).write_text(text, encoding="utf-8")
        answer = ask("accelerate", {"folder": folder, "file": main})
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
