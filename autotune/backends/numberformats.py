"""Number formats of the plan as torch has them. Imports torch: for the parts that run in a rank."""

from __future__ import annotations

from typing import Final

import torch

from autotune.contract.plan import DType

TORCH_DTYPES: Final[dict[DType, torch.dtype]] = {"fp32": torch.float32, "bf16": torch.bfloat16}
