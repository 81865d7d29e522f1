"""Durations as people and scripts write them. A duration without a unit is refused."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Final

SECONDS_PER_UNIT: Final[dict[str, float]] = {
    "us": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "m": 60.0,
    "min": 60.0,
    "h": 3600.0,
    "d": 86400.0,
}
_PART = re.compile(r"\s*([0-9][0-9_]*(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)\s*([a-z]+)\s*")


def parse_duration(value: Any) -> float:
    """Return seconds for ``"5m"``, ``"1h30m"``, ``"350ms"`` or ``{"value": 350, "unit": "ms"}``.

    Raises:
        ValueError: No unit, an unknown unit, or a duration that is not positive and finite.
    """
    if isinstance(value, Mapping):
        return _from_parts([(value.get("value"), value.get("unit"))], value)
    if not isinstance(value, str):
        raise ValueError(f"duration {value!r} has no unit: write for example {value!r}s or 5m")
    parts: list[tuple[Any, Any]] = []
    position = 0
    while position < len(value):
        match = _PART.match(value, position)
        if match is None:
            raise ValueError(f"{value!r} is not a duration: write for example 90s, 5m or 1h30m")
        parts.append((float(match[1].replace("_", "")), match[2]))
        position = match.end()
    if not parts:
        raise ValueError("an empty text is not a duration: write for example 90s, 5m or 1h30m")
    return _from_parts(parts, value)


def _from_parts(parts: list[tuple[Any, Any]], shown: Any) -> float:
    total = 0.0
    for number, unit in parts:
        if not isinstance(unit, str) or unit not in SECONDS_PER_UNIT:
            known = ", ".join(SECONDS_PER_UNIT)
            raise ValueError(f"{shown!r} has no known unit of time (known: {known})")
        if isinstance(number, bool) or not isinstance(number, int | float):
            raise ValueError(f"{shown!r} is not a duration: its value is no number")
        try:
            total += number * SECONDS_PER_UNIT[unit]
        except OverflowError:
            total = math.inf
    if not math.isfinite(total) or total <= 0:
        raise ValueError(f"{shown!r} is not a positive, finite duration")
    return total


def duration_text(seconds: float) -> str:
    """``75 s``, ``12 min``, ``3.5 h``: a time to wait, as exact as people need it."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def seconds_text(seconds: float) -> str:
    """``1.360``, ``0.08512``: a measured time with four figures, so that columns compare."""
    return f"{seconds:#.4g}".rstrip(".")
