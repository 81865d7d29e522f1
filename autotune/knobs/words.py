"""Settings in words, as a space file writes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def value_words(value: Any) -> str:
    """``true``, ``null``, ``500_000_000``, ``0.5``, ``full``."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "null"
    if isinstance(value, int):
        return f"{value:_}"
    return f"{value:g}" if isinstance(value, float) else str(value)


def settings_words(settings: Mapping[str, Any]) -> str:
    """``micro_batch=2, overlap_comm=true``, in the order of ``settings``."""
    return ", ".join(f"{name}={value_words(value)}" for name, value in settings.items())


def changed_settings(settings: Mapping[str, Any], baseline: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that the baseline lacks or has otherwise.

    One that the baseline alone has is dead under ``settings``: it says nothing about them.
    """
    return {
        name: value
        for name, value in settings.items()
        if name not in baseline or baseline[name] != value
    }
