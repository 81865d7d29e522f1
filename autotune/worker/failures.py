"""What went wrong in a rank, and which failure kind that is."""

from __future__ import annotations

import time
import traceback
from typing import Final

from autotune.contract import errortexts
from autotune.contract.failures import FailureKind, Phase
from autotune.contract.outcome import RankError
from autotune.errors import EnvironmentFault
from autotune.models.kernels.choice import KernelNotBoundError, KernelRefusedError

MAX_TEXT: Final = 20_000
"""Longest message or traceback that goes into a record (characters; the end is kept)."""


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
    """Return the failure kind of an exception that ended a rank."""
    if isinstance(error, TrialError):
        return error.kind
    if isinstance(error, KernelNotBoundError):
        return "not_in_effect"
    if isinstance(error, KernelRefusedError):
        return "incompatible"
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    if isinstance(error, EnvironmentFault):
        return "infra"
    return errortexts.kind_of({cls.__name__ for cls in type(error).__mro__}, str(error))


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
