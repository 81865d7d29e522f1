"""What came of comparing one choice of a ``kernel.*`` knob with the reference."""

from __future__ import annotations

import dataclasses

from autotune.contract.failures import FailureKind


@dataclasses.dataclass(frozen=True, kw_only=True)
class KernelCheck:
    """Forward and backward of one choice, by one rank, at the workload's shapes."""

    knob: str
    """Full name, such as ``kernel.attention``."""
    choice: str
    passed: bool
    tensor: str
    """The one that is furthest off for what is allowed: ``gradient of …``, ``hidden states``, …"""
    error: float | None
    """‖choice - reference‖ / ‖reference‖ of that tensor; ``None`` where it is not finite."""
    allowed: float
    num_tensors: int
    """How many were compared."""
    cases: tuple[str, ...]
    """Inputs on which they were compared, in words."""
    reference: str
    """What they were compared with, in words."""
    versions: dict[str, str]
    """Of torch, its compilers, the kernel's packages, and the device."""

    @property
    def reason(self) -> str:
        """Why the choice does not pass, in words."""
        off = "not finite" if self.error is None else f"{self.error:.2g} off {self.reference}"
        return f"its {self.tensor} is {off}, and {self.allowed:.2g} is allowed"


@dataclasses.dataclass(frozen=True, kw_only=True)
class KernelVerdict:
    """Whether a choice may be offered."""

    knob: str
    """Full name."""
    choice: str
    reason: str
    """Why it may not; empty where it may."""
    check: KernelCheck | None
    """``None`` where the comparison itself failed, crashed or hung."""
    failure: FailureKind | None = None
    """How it ended, where it has no ``check``."""
    driver: str | None = None
    """Of the GPU; ``None`` without one."""
    folder: str
    """Of its launch, within the study's folder."""
