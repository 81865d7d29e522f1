"""DeepSpeed's extensions: found, or compiled by its own builders; runs in a process of its own.

A rank that needs one calls the same ``load`` of the same class (``ops/op_builder/builder.py``),
which hands name, sources and flags to ``torch.utils.cpp_extension.load``. Nothing of that depends
on the process: the folder is ``TORCH_EXTENSIONS_DIR/NAME``, and the architectures are
``TORCH_CUDA_ARCH_LIST`` or those of all visible devices, which a single process sees as each rank
of a node does. So ninja finds the same commands in its log as this process left there, and
compiles nothing.
"""

from __future__ import annotations

import os
from pathlib import Path

from autotune.contract import processes
from autotune.contract.extensions import FOLDER_VARIABLE
from autotune.errors import EnvironmentFault


def load(name: str) -> str:
    """Load the extension of the builder class ``name`` and return its library's path.

    Raises:
        EnvironmentFault: A build that nobody runs here holds its folder.
    """
    from deepspeed.ops import op_builder

    builder = getattr(op_builder, name)()
    _require_owner(Path(os.environ[FOLDER_VARIABLE]) / builder.name / "lock")
    # Without `verbose` what the compiler says comes with the error, if there is one.
    return str(builder.load(verbose=False).__file__)


def _require_owner(lock: Path) -> None:
    """Refuse to wait for ever: who builds has the file open (``torch/utils/file_baton.py``).

    In a launcher's own folder none is left (``launchers/caches.py``); in one that the user has
    named, other machines may build.
    """
    if lock.exists() and not processes.is_open(lock) and lock.exists():
        raise EnvironmentFault(
            f"{lock} is left of a build that no process of yours runs here; remove it, unless "
            "somebody else builds there"
        )
