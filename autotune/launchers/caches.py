"""Where compilers keep what they made, so that one trial's compilation serves the next.

::

    RUNS/.cache/HOST/FINGERPRINT/fingerprint.json    what the name stands for
    RUNS/.cache/HOST/FINGERPRINT/slot-0.lock         held by the one launcher that uses slot-0
    RUNS/.cache/HOST/FINGERPRINT/slot-0/triton/rank-1/…

- *One per environment.* Versions, GPU models, driver, CPU, compiler settings and whatever libraries
  read while they are imported make up the fingerprint: nothing made for another machine is met.
- *One writer.* A launcher takes the first free slot and holds it by a lock that the kernel drops
  with it, so searches that run at once do not meet, and one after another they share. Within a
  trial each rank has a folder of its own: ranks of one trial compile the same things at the same
  moment, so that a common folder would spare nothing.
- Extensions, which take a compiler a minute or more, have one folder for all ranks. A search
  builds them before its first trial (``search/extensions.py``); ranks only load them, one after
  the other, by a lock file (``torch/utils/file_baton.py``). A process that is killed meanwhile
  leaves the file, and every later one would wait for it: as the slot's only user a launcher knows
  that such a file has no owner, and removes it.
- Inductor takes a library that is there for a whole one (``torch/_inductor/codecache.py``), and a
  C++ compiler that is killed leaves the beginning of one, which no process can load: it is removed
  in the same way.

A variable that the user has set stays as it is.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import importlib.metadata
import os
import platform
import socket
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import IO, Any, Final

from autotune.contract import jsonfile
from autotune.contract.extensions import FOLDER_VARIABLE as EXTENSIONS

RANK_FOLDERS: Final = {
    "TRITON_CACHE_DIR": "triton",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TILELANG_CACHE_DIR": "tilelang",
}
"""Variables whose folder has a part for each rank."""
EXTENSIONS_FOLDER: Final = "extensions"
BUILD_LOCK: Final = "lock"
"""Name of the file that marks a build under way (``torch/utils/cpp_extension.py``)."""

_PACKAGES: Final = (
    "torch",
    "triton",
    "deepspeed",
    "transformers",
    "tilelang",
    "flash-linear-attention",
    "causal-conv1d",
    "liger-kernel",
)
INDUCTOR_FOLDER: Final = RANK_FOLDERS["TORCHINDUCTOR_CACHE_DIR"]
_COMPILER_VARIABLES: Final = ("CC", "CXX", "CUDA_HOME", "TORCH_CUDA_ARCH_LIST")
_MOST_SLOTS: Final = 1000
_PROC: Final = Path("/proc")


@dataclasses.dataclass(frozen=True)
class CacheSlot:
    """One launcher's caches for one environment."""

    folder: Path
    _lock: IO[str] | None = None

    def for_server(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return the environment with a folder for whatever the server itself compiles."""
        return dict(locations(self.folder)) | dict(environment)

    def for_ranks(self, environment: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
        """Return the environment of the ranks, and the variables of which each gets its own."""
        own = {
            name: path
            for name, path in locations(self.folder).items()
            if name in RANK_FOLDERS and name not in environment
        }
        shared = {EXTENSIONS: str(self.folder / EXTENSIONS_FOLDER)} | dict(environment)
        return shared, own

    def remove_leftovers(self) -> tuple[str, ...]:
        """Remove what builds left that were killed; only while no trial of this launcher runs.

        Returns:
            What was done, in words.
        """
        done: list[str] = []
        for path in sorted((self.folder / EXTENSIONS_FOLDER).rglob(BUILD_LOCK)):
            with contextlib.suppress(OSError):
                path.unlink()
                done.append(f"removed {path}, the lock of a build that was killed")
        for path in sorted((self.folder / INDUCTOR_FOLDER).rglob("*.so")):
            with contextlib.suppress(OSError):
                if not is_whole_library(path):
                    path.unlink()
                    done.append(f"removed {path}, which a killed compiler had half written")
        return tuple(done)

    def release(self) -> None:
        """Let another launcher have the slot."""
        if self._lock is not None:
            self._lock.close()


def is_whole_library(path: Path) -> bool:
    """Whether a shared library was written to its end, where linkers put the section headers.

    Of 64-bit little-endian ELF files, the only ones that training runs on; fields by ``elf(5)``.
    """
    with path.open("rb") as file:
        header = file.read(64)
        size = os.fstat(file.fileno()).st_size
    if len(header) < 64 or not header.startswith(b"\x7fELF"):
        return False
    start, entry, count = (
        int.from_bytes(header[begin:end], "little") for begin, end in ((40, 48), (58, 60), (60, 62))
    )
    return start + entry * count <= size


def locations(folder: Path) -> dict[str, str]:
    """Return each variable's folder in a slot, or in the fingerprint's folder for display."""
    parts = {**RANK_FOLDERS, EXTENSIONS: EXTENSIONS_FOLDER}
    return {name: str(folder / part) for name, part in parts.items()}


def home(runs: Path, settings: Mapping[str, str]) -> Path:
    """Return the folder that holds the slots of this environment."""
    digest = jsonfile.digest(fingerprint(settings))
    return runs / ".cache" / socket.gethostname() / digest[:16]


def take(runs: Path, settings: Mapping[str, str]) -> CacheSlot:
    """Take the first slot that nobody uses.

    Args:
        runs: The runs folder.
        settings: What the trial's libraries read while they are imported.

    Raises:
        EnvironmentFault: The runs folder cannot be written.
    """
    folder = home(runs, settings)
    about = folder / "fingerprint.json"
    if not about.exists():
        jsonfile.write_json(about, fingerprint(settings))
    for number in range(_MOST_SLOTS):
        lock = _try_lock(folder / f"slot-{number}.lock")
        if lock is not None:
            return CacheSlot(folder / f"slot-{number}", lock)
    # Where files cannot be locked, a slot is never shared.
    return CacheSlot(folder / f"slot-{os.getpid()}")


def _try_lock(path: Path) -> IO[str] | None:
    try:
        file = path.open("a", encoding="utf-8")
    except OSError as error:
        raise jsonfile.unwritable(path, error) from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        return None
    return file


def fingerprint(settings: Mapping[str, str]) -> dict[str, Any]:
    """Return what compiled code depends on."""
    compiler = {name: os.environ[name] for name in _COMPILER_VARIABLES if name in os.environ}
    return {**_machine(), "compiler": compiler, "read_at_import": dict(sorted(settings.items()))}


@cache
def _machine() -> dict[str, Any]:
    packages: dict[str, str] = {}
    for name in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            packages[name] = importlib.metadata.version(name)
    flags = next(_values(_PROC / "cpuinfo", "flags", "Features"), "")
    models = (_PROC / "driver/nvidia/gpus").glob("*/information")
    return {
        "python": platform.python_version(),
        "packages": packages,
        "machine": platform.machine(),
        "cpu_flags": hashlib.sha256(flags.encode()).hexdigest()[:16],
        "gpus": sorted({next(_values(path, "Model"), "") for path in models}),
        "driver": next(_values(_PROC / "driver/nvidia/version", "NVRM version"), ""),
    }


def _values(path: Path, *names: str) -> Iterator[str]:
    """Values of lines ``name: value`` in a file of the kernel's; none where there is no file."""
    with contextlib.suppress(OSError), path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            name, colon, value = line.partition(":")
            if colon and name.strip() in names:
                yield value.strip()
