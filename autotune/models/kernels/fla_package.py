"""flash-linear-attention: whether it can run here, and what its kernels want of packed rows.

Importing it touches the device (``fla/utils/hardware.py`` asks for its name), so only a rank does.
Read from fla 0.6.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from autotune.models.kernels.choice import Machine, is_importable, version

if TYPE_CHECKING:
    import torch

PACKAGES: Final = ("fla", "triton", "einops")
INSTALL: Final = "pip install flash-linear-attention"
CHUNK: Final = 64
"""Tokens that its kernels take together, unless told otherwise (``chunk_size``)."""
_HOPPER: Final = 9
_WRONG_FROM: Final = (3, 4)
_WRONG_BELOW: Final = (3, 7, 1)


def wrong_gradients(machine: Machine) -> str | None:
    """Return why its gated delta net would refuse to run backward on this machine.

    ``fla/ops/common/chunk_o.py`` raises on Hopper with these versions of Triton, whose gradients
    are wrong, unless TileLang computes that part (``fla/ops/common/backends/tilelang``).
    """
    found = version("triton")
    if machine.capability is None or machine.capability[0] != _HOPPER or found is None:
        return None
    if not _WRONG_FROM <= _numbers(found) < _WRONG_BELOW or _has_tilelang():
        return None
    return (
        f"Triton {found} computes wrong gradients on Hopper (fla issue 640), so fla refuses to run "
        "backward; to have it: pip install tilelang, with nvcc on PATH, or Triton 3.7.1 or later"
    )


def _numbers(text: str) -> tuple[int, ...]:
    found = re.match(r"\d+(\.\d+)*", text)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def _has_tilelang() -> bool:
    """As ``TileLangBackend.is_available`` decides it, and what its switch says."""
    if not is_importable("tilelang") or os.environ.get("FLA_TILELANG", "1") == "0":
        return False
    homes = (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda")
    if any(home and Path(home, "bin", "nvcc").exists() for home in homes):
        return True
    return shutil.which("nvcc") is not None or _wheel_has_nvcc()


def _wheel_has_nvcc() -> bool:
    try:
        files = importlib.metadata.files("nvidia-cuda-nvcc") or []
    except importlib.metadata.PackageNotFoundError:
        return False
    return any(file.name == "nvcc" for file in files)


class Chunks:
    """For each row's boundaries, the table of its chunks.

    Its kernels make it from the boundaries and wait for the device to learn its size; fla
    remembers the last four. The rows of a trial come again and again, as the same tensors, so it
    is made once for each.
    """

    def __init__(self) -> None:
        from torch.utils.weak import WeakIdKeyDictionary

        self._made: Any = WeakIdKeyDictionary()

    def of(self, cu_seqlens: torch.Tensor | None) -> torch.Tensor | None:
        """Return what ``chunk_indices`` of a kernel should be."""
        if cu_seqlens is None:
            return None
        found: torch.Tensor | None = self._made.get(cu_seqlens)
        if found is None:
            from fla.ops.utils.index import prepare_chunk_indices

            found = prepare_chunk_indices(cu_seqlens, CHUNK)
            self._made[cu_seqlens] = found
        return found
