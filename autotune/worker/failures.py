"""What went wrong in a rank, and which failure kind that is."""

from __future__ import annotations

import time
import traceback
from typing import Final

from autotune.backends.base import IncompatibleConfigError
from autotune.contract.failures import FailureKind, Phase
from autotune.contract.outcome import RankError
from autotune.errors import EnvironmentFault

MAX_TEXT: Final = 20_000
"""Longest message or traceback that goes into a record (characters; the end is kept)."""

_DEVICE_MEMORY: Final = ("CUDA out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "out of memory on dev")
_HOST_MEMORY: Final = ("DefaultCPUAllocator: not enough memory", "can't allocate memory")
_PEER_LOST: Final = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "Timed out waiting",
    "Socket Timeout",
    "remote process exited",
)
_INFRA_TYPES: Final = ("DistBackendError", "DistNetworkError", "DistStoreError")


class TrialError(Exception):
    """A failure whose kind the rank knows for certain."""

    kind: FailureKind = "crash"


class NumericsError(TrialError):
    """A loss or gradient norm that is not finite, zero, or not the baseline's."""

    kind: FailureKind = "numerics"


class NotInEffectError(TrialError):
    """The running engine holds another value than the plan asks for."""

    kind: FailureKind = "not_in_effect"


class PlanMismatchError(TrialError):
    """The ranks did not read the same plan."""

    kind: FailureKind = "infra"


class InterruptedTrialError(TrialError):
    """SIGTERM: the user, the watchdog or the scheduler ended the trial."""

    kind: FailureKind = "interrupted"


def kind_of(error: BaseException) -> FailureKind:
    """Return the failure kind of an exception that ended a rank.

    Types decide; the message only where the library has no type for it.
    """
    if isinstance(error, TrialError):
        return error.kind
    if isinstance(error, IncompatibleConfigError):
        return "incompatible"
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    if isinstance(error, MemoryError):
        return "oom_host"
    names = {cls.__name__ for cls in type(error).__mro__}
    text = str(error)
    if "OutOfMemoryError" in names or any(part in text for part in _DEVICE_MEMORY):
        return "oom_device"
    if any(part in text for part in _HOST_MEMORY):
        return "oom_host"
    if names.intersection(_INFRA_TYPES) or any(part in text for part in _PEER_LOST):
        return "infra"
    if isinstance(error, EnvironmentFault):
        return "infra"
    return "crash"


def rank_error(error: BaseException, *, phase: Phase, iteration: int | None) -> RankError:
    """Return the record of ``error``, caught now."""
    text = "".join(traceback.format_exception(error))
    return RankError(
        type=f"{type(error).__module__}.{type(error).__qualname__}",
        message=str(error)[:MAX_TEXT] or type(error).__name__,
        traceback=text[-MAX_TEXT:],
        at=time.time(),
        phase=phase,
        iteration=iteration,
        kind=kind_of(error),
    )
