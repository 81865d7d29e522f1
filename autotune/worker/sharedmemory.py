"""Gives back the shared memory of ranks that had no time to do so themselves.

A segment in ``/dev/shm`` outlives the process that made it. NCCL and torch remove theirs, but not
from a rank that is killed. Two kinds of name are known to belong to a trial: torch's carry the
pid of the rank that made them (``torch/csrc/…/MapAllocator``: ``torch_PID_…``); NCCL's
(``nccl-XXXXXX``) do not, so one goes only if it was made while the trial ran and no process of
this user maps it any more.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final

FOLDER: Final = Path("/dev/shm")  # noqa: S108 - where the kernel keeps these segments
_TORCH: Final = re.compile(r"torch_(\d+)_")
_NCCL: Final = re.compile(r"nccl-\w+")


def give_back(
    pids: Collection[int], *, since: float, folder: Path = FOLDER, proc: Path = Path("/proc")
) -> list[str]:
    """Remove what ended ranks left, and return the names.

    Args:
        pids: The ranks; none of them lives any more.
        since: ``time.time()`` when the trial began.
        folder: Where the segments are.
        proc: Where the kernel shows processes.
    """
    suspects = dict(_suspects(pids, since, folder))
    if not suspects:
        return []
    mapped = _mapped(folder, proc) if not all(suspects.values()) else frozenset()
    gone: list[str] = []
    for path, certain in suspects.items():
        if certain or path not in mapped:
            with contextlib.suppress(OSError):
                path.unlink()
                gone.append(path.name)
    return sorted(gone)


def _suspects(pids: Collection[int], since: float, folder: Path) -> Iterator[tuple[Path, bool]]:
    """Segments of this user, and whether the name alone says that a rank made it."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            torch = _TORCH.match(entry.name)
            if torch is None and not _NCCL.fullmatch(entry.name):
                continue
            with contextlib.suppress(OSError):
                status = entry.stat(follow_symlinks=False)
                if status.st_uid != os.geteuid() or status.st_ctime < since:
                    continue
                if torch is None:
                    yield Path(entry.path), False
                elif int(torch[1]) in pids:
                    yield Path(entry.path), True


def _mapped(folder: Path, proc: Path) -> frozenset[Path]:
    """Segments that some process which we may look at maps."""
    prefix = f"{folder}/"
    found: set[Path] = set()
    for entry in proc.iterdir():
        if not entry.name.isdecimal():
            continue
        with contextlib.suppress(OSError):
            for line in (entry / "maps").read_text(errors="replace").splitlines():
                _, slash, rest = line.partition(prefix)
                if slash:
                    found.add(folder / rest.removesuffix(" (deleted)"))
    return frozenset(found)
