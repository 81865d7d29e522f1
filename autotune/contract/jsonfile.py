"""JSON files that are whole or absent, and the canonical text that is hashed."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import math
import os
import secrets
import stat
from pathlib import Path
from typing import Any, Final, NoReturn

from autotune.errors import EnvironmentFault, RecordError

MAX_BYTES: Final = 256 * 1024 * 1024
"""Larger files are refused unread: no record of ours comes near it."""


def canonical(data: Any) -> str:
    """Return the one text that equal data has: sorted keys, no spaces, ASCII."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False)


def digest(data: Any) -> str:
    """Return the SHA-256 of :func:`canonical`, in hexadecimal."""
    return hashlib.sha256(canonical(data).encode()).hexdigest()


def write_json(path: Path, data: Any) -> None:
    """Write ``data`` so that a reader sees the old file or the whole new one, also after a crash.

    Raises:
        EnvironmentFault: The folder cannot be written, or the disk is full.
    """
    text = json.dumps(data, indent=1, allow_nan=False) + "\n"
    write_text(path, text)


def write_text(path: Path, text: str) -> None:
    """As :func:`write_json`, for text."""
    # Not tempfile: its files are closed to the group, and a team shares its runs folder.
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        _discard(temporary)
        raise unwritable(path, error) from error
    except BaseException:
        _discard(temporary)
        raise


def _discard(temporary: Path) -> None:
    with contextlib.suppress(OSError):
        temporary.unlink()


def unwritable(path: Path, error: OSError) -> EnvironmentFault:
    """Return the error to raise when writing ``path`` failed."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return EnvironmentFault(
            f"no space left on the disk that holds {path}",
            hint="free some space or choose another folder with --runs; the same command resumes",
        )
    return EnvironmentFault(
        f"cannot write {path}: {error.strerror or error}",
        hint="choose a folder that you may write with --runs",
    )


def read_json(path: Path) -> Any:
    """Return the data of a JSON file.

    Raises:
        RecordError: It is no plain file, is too large, is not UTF-8, not JSON, has a key twice,
            or holds NaN or infinity.
        FileNotFoundError: There is no such file.
    """
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise RecordError(f"{path}: not a plain file")
    if status.st_size > MAX_BYTES:
        raise RecordError(f"{path}: {status.st_size} bytes are more than any record of ours has")
    return parse(path.read_bytes(), where=str(path))


def parse(raw: bytes, *, where: str) -> Any:
    """Return the data of a JSON text.

    Args:
        raw: The text.
        where: Prefix for error messages, usually the file.

    Raises:
        RecordError: It is not UTF-8, not JSON, has a key twice, or holds NaN or infinity.
    """
    try:
        return json.loads(
            raw.decode("utf-8"),
            parse_constant=_refuse,
            parse_float=_finite,
            object_pairs_hook=_once,
        )
    except (UnicodeDecodeError, ValueError, RecursionError) as error:
        raise RecordError(f"{where}: not a JSON record ({error})") from error


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a JSON number")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is larger than any number that can be held")
    return number


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"key {twice!r} stands twice")
    return data
