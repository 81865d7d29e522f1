"""How a parameter starts where no checkpoint is read."""

from __future__ import annotations

from typing import Literal

Start = Literal["normal", "ones", "zeros", "log_uniform", "adapter"]
"""``normal`` has the configuration's ``initializer_range``; ``log_uniform`` is the logarithm of
a uniform draw from 0.01 to 16, the decay rates of gated delta nets; ``adapter`` is uniform within
± 1 / √columns, as a linear layer starts, which peft leaves the first matrix of an adapter at."""
