"""One coordinator a study: an advisory lock that the kernel drops when its holder dies."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final

from autotune.contract import jsonfile
from autotune.contract.folder import StudyFolder
from autotune.errors import EnvironmentFault

_PROBE_S: Final = 1.0
"""How long to wait for a reader that only looks whether the lock is held (s)."""
_BUSY: Final = (errno.EAGAIN, errno.EACCES)


@dataclasses.dataclass(frozen=True)
class Held:
    """A study that is held."""

    _file: IO[str]
    _path: Path

    @property
    def is_in_place(self) -> bool:
        """Whether the folder is still the one that is held: it may be removed and made anew."""
        return _is_at(self._file, self._path)

    @property
    def is_replaced(self) -> bool:
        """Whether another coordinator has made the folder anew."""
        return self._path.exists() and not self.is_in_place


@contextlib.contextmanager
def hold(folder: StudyFolder) -> Iterator[Held]:
    """Hold the study while the block runs. Creates the study's folder if need be.

    The lock belongs to the open file: it goes when the process ends, however it ends, and is not
    handed to programs that the process starts.

    Raises:
        EnvironmentFault: Another process holds it, or the file system cannot lock.
    """
    while True:
        with _open(folder.lock_file) as file:
            _lock(file, folder)
            if not _is_at(file, folder.lock_file):
                continue  # its last holder made no study and removed the folder meanwhile
            with contextlib.suppress(OSError):  # a full disk must not hide behind the lock's note
                file.truncate(0)
                file.write(f"{os.getpid()}\n")
                file.flush()
            yield Held(file, folder.lock_file)
            return


def _open(path: Path) -> IO[str]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("a+", encoding="utf-8")
    except OSError as error:
        with contextlib.suppress(OSError):
            path.parent.rmdir()  # only if it is empty
        raise jsonfile.unwritable(path, error) from error


def _is_at(file: IO[str], path: Path) -> bool:
    """Whether the open file is the one that lies at ``path`` now."""
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    return False


def _lock(file: IO[str], folder: StudyFolder) -> None:
    deadline = time.monotonic() + _PROBE_S
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in _BUSY:
                raise EnvironmentFault(
                    f"{folder.lock_file} cannot be locked: {error.strerror}",
                    hint="choose a folder on another file system with --runs",
                ) from error
            if time.monotonic() > deadline:
                raise _held(folder.lock_file, folder.name) from None
            time.sleep(0.05)
        else:
            return


def _held(path: Path, study: str) -> EnvironmentFault:
    with contextlib.suppress(OSError, ValueError):
        holder = f" (process {int(path.read_text(encoding='utf-8'))})"
        return EnvironmentFault(
            f"another search is running on study {study!r}{holder}",
            hint="wait for it, stop it with Ctrl-C, or give this one another --study",
        )
    return EnvironmentFault(
        f"another search is running on study {study!r}",
        hint="wait for it, stop it with Ctrl-C, or give this one another --study",
    )


def is_held(folder: StudyFolder) -> bool:
    """Whether a coordinator holds the study now. Creates and writes nothing."""
    try:
        with folder.lock_file.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError as error:
        return error.errno in _BUSY
    return False
