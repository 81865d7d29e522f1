"""Number formats of the plan as torch has them. Imports torch: for the parts that run in a rank."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import torch

from autotune.contract.plan import DType

TORCH_DTYPES: Final[dict[DType, torch.dtype]] = {"fp32": torch.float32, "bf16": torch.bfloat16}


def names_of(dtypes: Iterable[torch.dtype]) -> str:
    """Return the formats by their names in a space file; several are joined by commas."""
    names: dict[torch.dtype, str] = {dtype: name for name, dtype in TORCH_DTYPES.items()}
    return ", ".join(sorted({names.get(dtype, str(dtype)) for dtype in dtypes}))
