"""What a failure for memory says about configurations that need at least as much.

All else equal, more rows or tokens a micro-step, fewer layers that recompute and no activation
checkpointing never need less memory. Such configurations are known not to fit and cost no launch.
All else is not equal where an iteration becomes a single micro-step: who asks leaves those out
(``history.is_too_large``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

_GROWING: Final = ("workload.micro_batch", "workload.max_tokens", "workload.checkpoint_every")
_BATCHING: Final = "workload.batching"
_CHECKPOINTING: Final = "workload.activation_checkpointing"
MIN_FAILURES: Final = 2
"""Failures for memory before larger cuts are avoided."""
_NEEDS_AS_MUCH: Final[Mapping[str, Collection[str]]] = {
    "full": ("full",),
    "selective": ("full", "selective"),
    "none": ("full", "none"),
}
"""What each mode needs at least the memory of. What ``selective`` keeps may be more than what the
backward of a layer without it needs."""


def known_too_large(
    backend: str, values: Mapping[str, Any], failed: Iterable[tuple[str, Mapping[str, Any]]]
) -> bool:
    """Whether a configuration needs at least the memory of one that did not fit.

    Args:
        backend: Its engine.
        values: Its knobs, full name to value.
        failed: Engine and knobs of each configuration that ran out of memory.
    """
    return any(name == backend and _needs_as_much(values, other) for name, other in failed)


def _needs_as_much(values: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    if values.keys() != other.keys():
        return False
    for name, value in values.items():
        if name in _GROWING and isinstance(value, int) and isinstance(other[name], int):
            if value < other[name]:
                return False
        elif name == _CHECKPOINTING:
            if other[name] not in _NEEDS_AS_MUCH.get(value, (value,)):
                return False
        elif type(value) is not type(other[name]) or value != other[name]:
            return False
    return True


def likely_too_large(
    backend: str,
    values: Mapping[str, Any],
    failed: Iterable[tuple[str, Mapping[str, Any]]],
    fitted: Iterable[tuple[str, Mapping[str, Any]]],
) -> bool:
    """Whether two configurations of no larger cut have failed for memory, and none as large fits.

    Other knobs may have been the reason, so this is a guess: good for steering, not for ruling
    out. Only cuts of the same kind, batching and engine are compared.
    """
    smaller = sum(name == backend and _cut_needs_as_much(values, other) for name, other in failed)
    if smaller < MIN_FAILURES:
        return False
    return not any(name == backend and _cut_needs_as_much(other, values) for name, other in fitted)


def _cut_needs_as_much(values: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    names = (*_GROWING, _CHECKPOINTING, _BATCHING)
    picked = [{name: v[name] for name in names if name in v} for v in (values, other)]
    return _needs_as_much(*picked)
