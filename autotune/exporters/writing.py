"""Puts exported files in place: whole or not at all, and never over somebody else's file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autotune.contract import jsonfile
from autotune.errors import AutotuneError, EnvironmentFault, InputError
from autotune.exporters.provenance import SUFFIX


def check_target(file: Path) -> None:
    """Refuse a target that cannot be a file of ours.

    Raises:
        InputError: Its folder is missing, or it is a folder itself.
    """
    if not file.parent.is_dir():
        raise InputError(
            f"there is no folder {file.parent} to write {file.name} into",
            hint=f"create it (mkdir -p {file.parent}) or choose another file with -o",
        )
    if file.is_dir():
        raise InputError(f"{file} is a folder", hint="give a file name with -o")


def check_replaceable(file: Path, texts: Mapping[str, str]) -> None:
    """Refuse to replace files that are not our own unchanged exports.

    Args:
        file: The main file.
        texts: File name to the text that is about to be written beside it.

    Raises:
        InputError: A file is there that was not exported by us, or was edited since.
    """
    companion = file.with_name(file.name + SUFFIX)
    known = _recorded_hashes(companion)
    for path in [file.with_name(name) for name in texts] + [companion]:
        if not path.exists():
            continue
        ours = known is not None if path == companion else _is_unchanged(path, known, texts)
        if not ours:
            raise InputError(
                f"{path} is there already and is not an unchanged export of autotune",
                hint="choose another file with -o, or replace it with --force",
            )


def write(file: Path, texts: Mapping[str, str], companion: Mapping[str, Any]) -> tuple[Path, ...]:
    """Write all files beside ``file``, itself last, and return their paths, itself first.

    Raises:
        EnvironmentFault: The folder cannot be written or the disk is full.
    """
    about = file.with_name(file.name + SUFFIX)
    others = [file.with_name(name) for name in texts if name != file.name]
    try:
        for path in others:
            jsonfile.write_text(path, texts[path.name])
        jsonfile.write_json(about, companion)
        jsonfile.write_text(file, texts[file.name])
    except EnvironmentFault as error:
        raise EnvironmentFault(error.message, hint="choose another file with -o") from error
    return (file, about, *others)


def _is_unchanged(path: Path, known: dict[str, str] | None, texts: Mapping[str, str]) -> bool:
    content = path.read_bytes()
    if content == texts[path.name].encode():
        return True
    return known is not None and known.get(path.name) == hashlib.sha256(content).hexdigest()


def _recorded_hashes(companion: Path) -> dict[str, str] | None:
    """File name to hash as our last export wrote them; ``None`` if that is no file of ours."""
    try:
        data = jsonfile.read_json(companion)
        return {name: str(entry["sha256"]) for name, entry in data["files"].items()}
    except (OSError, AutotuneError, KeyError, TypeError, AttributeError, json.JSONDecodeError):
        return None
