"""From the name that the user wrote to the model: preset, folder or hub id. No torch."""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NoReturn

from autotune.contract.plan import Model
from autotune.errors import InputError
from autotune.models.checkpoint import check_weights
from autotune.models.family import find_family
from autotune.models.hidden_size import OF_FAMILY, hidden_size
from autotune.models.hub import download
from autotune.models.presets import PRESETS

_HUB_ID: Final = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)
_SHOWN: Final = 200
"""Characters of a name that a message repeats."""
_MAX_CONFIG_BYTES: Final = 16 * 1024 * 1024


def resolve_model(name: str, *, load_weights: bool, seed: int = 0) -> Model:
    """Return the model that ``name`` stands for.

    A path that exists wins, then a preset, then a hub id.

    Args:
        name: Preset, local folder with a ``config.json``, or hub id ``org/name``.
        load_weights: Start from the folder's real weights instead of drawn ones.
        seed: Seed of drawn weights.

    Raises:
        InputError: There is no such model, its configuration is unusable, or its weights are
            wanted and missing, damaged or those of another model.
        EnvironmentFault: The name can only be a hub id, and the hub was not reached.
    """
    folder = _existing(name)
    if folder is None and name in PRESETS:
        if load_weights:
            raise InputError(
                f"model {name} is a preset and has no weights to load",
                hint="give a folder with safetensors files, or leave load_weights out",
            )
        config: dict[str, Any] = PRESETS[name]
        where = f"preset {name}"
    else:
        if folder is None:
            folder = _from_hub(name, load_weights=load_weights)
        config, where = read_config(folder), str(folder / "config.json")
    family = find_family(config, where)
    completed = family.complete(config, where)
    parameters = family.parameters(completed)
    if load_weights:
        assert folder is not None
        check_weights(folder, parameters)
    return Model(
        name=name,
        family=family.name,
        config=completed,
        weights=str(folder.absolute()) if load_weights and folder is not None else None,
        num_parameters=sum(math.prod(parameter.shape) for parameter in parameters),
        seed=seed,
        hidden_size_from=_hidden_size_from(config, completed),
    )


def _hidden_size_from(config: dict[str, Any], completed: Mapping[str, Any]) -> str:
    """The field with the size that the model has; a family ignores fields that it does not know."""
    with contextlib.suppress(InputError):
        size, field = hidden_size(config)
        if size == completed["hidden_size"]:
            return field
    return OF_FAMILY


def read_config(folder: Path) -> dict[str, Any]:
    """Return the data of the folder's ``config.json``.

    Raises:
        InputError: It is missing, cannot be read, or is not a JSON object.
    """
    path = folder / "config.json"
    try:
        if path.stat().st_size > _MAX_CONFIG_BYTES:
            raise InputError(f"{path} is too large to be a model's configuration")
        data = json.loads(path.read_text(encoding="utf-8-sig"), parse_constant=_refuse)
    except FileNotFoundError as error:
        raise InputError(
            f"{folder} has no config.json",
            hint="give the folder that holds the model's config.json, a preset "
            f"({', '.join(PRESETS)}) or a hub id (org/name)",
        ) from error
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(data, dict):
        raise InputError(f"{path} must hold a JSON object")
    return data


def _existing(name: str) -> Path | None:
    """The folder that ``name`` is, if it is a path that exists."""
    if not name.strip():
        raise InputError("the model's name is empty", hint=f"presets: {', '.join(PRESETS)}")
    try:
        path = Path(name).expanduser()
        if not path.exists():
            return None
    except (OSError, ValueError, RuntimeError):
        # Too long, a null byte, an unknown user: no path of this machine.
        return None
    if not path.is_dir():
        raise InputError(
            f"model {name} is a file", hint="give the folder that holds the model's config.json"
        )
    return path


def _from_hub(name: str, *, load_weights: bool) -> Path:
    if not _HUB_ID.fullmatch(name):
        raise InputError(
            f"model {_shown(name)} is neither a preset nor a folder that exists nor a hub id",
            hint=f"presets: {', '.join(PRESETS)}; a hub id looks like org/name",
        )
    patterns = ["config.json"]
    if load_weights:
        patterns += ["*.safetensors", "*.safetensors.index.json"]
    return download(name, patterns)


def _shown(name: str) -> str:
    return repr(name if len(name) <= _SHOWN else name[: _SHOWN - 3] + "...")


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a JSON number")
