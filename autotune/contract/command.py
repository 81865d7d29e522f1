"""A command's arguments: which placeholders they hold, and what stands in their place.

``{trial_dir}`` is the folder of the launch, ``{processes}`` the number of ranks that the command
is to start, ``{deepspeed_json}`` the path of the rendered configuration there, ``{param:NAME}``
the value of a knob. ``{{`` and ``}}`` are the braces themselves. No shell reads any of it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

DEEPSPEED_JSON: Final = "deepspeed_json"
TRIAL_DIR: Final = "trial_dir"
PROCESSES: Final = "processes"
PARAM: Final = "param:"
OWNER: Final = "command"
"""Owner of the settings that only the command itself knows."""

_BRACES: Final = re.compile(r"\{\{|\}\}|\{(?P<name>[^{}]*)\}|[{}]")


def placeholders(argument: str) -> tuple[str, ...]:
    """Return the names between braces, in order.

    Raises:
        ValueError: A brace without its partner.
    """
    found: list[str] = []
    for match in _BRACES.finditer(argument):
        if match["name"] is not None:
            found.append(match["name"])
        elif len(match[0]) == 1:
            raise ValueError(f"the brace at character {match.start() + 1} has no partner")
    return tuple(found)


def fill(argument: str, values: Mapping[str, str]) -> str:
    """Return ``argument`` with every placeholder replaced by its value."""

    def replaced(match: re.Match[str]) -> str:
        return match[0][0] if match["name"] is None else values[match["name"]]

    return _BRACES.sub(replaced, argument)


def renamed(argument: str, names: Mapping[str, str]) -> str:
    """Return ``argument`` with other names between its braces; doubled braces stay doubled."""

    def replaced(match: re.Match[str]) -> str:
        name = match["name"]
        return match[0] if name is None else f"{{{names.get(name, name)}}}"

    return _BRACES.sub(replaced, argument)


def fill_all(
    command: Iterable[str],
    config: Mapping[str, Any],
    *,
    folder: Path,
    processes: int,
    rendered: Mapping[str, Path],
) -> list[str]:
    """Return the program and its arguments as they are started.

    Args:
        command: With placeholders; ``{param:…}`` by full knob names.
        config: Full knob name to value.
        folder: The launch's own folder.
        processes: Ranks that the command is to start.
        rendered: Placeholder of a rendered configuration to its path.
    """
    values = {TRIAL_DIR: str(folder), PROCESSES: str(processes)}
    values |= {name: str(path) for name, path in rendered.items()}
    values |= {f"{PARAM}{name}": text_of(value) for name, value in config.items()}
    return [fill(argument, values) for argument in command]


def text_of(value: Any) -> str:
    """Return a knob's value as an argument: ``8``, ``true``, ``none``, ``full``."""
    if isinstance(value, str):
        return value
    return "none" if value is None else json.dumps(value)


def rendered_file(folder: Path, placeholder: str) -> Path:
    """Where the rendered configuration lies: ``deepspeed.json`` for ``{deepspeed_json}``."""
    stem, _, suffix = placeholder.rpartition("_")
    return folder / f"{stem}.{suffix}"
