"""Reading the fields of a ``config.json`` with checks.

A fault stops the search before anything starts, instead of a trial on every rank.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Final, NoReturn

from autotune.errors import InputError

MAX_SIZE: Final = 2**31 - 1
"""No dimension of a model is larger; libraries count it in 32 bits."""


@dataclasses.dataclass(frozen=True)
class Fields:
    """The fields of one configuration."""

    data: Mapping[str, Any]
    where: str
    """File or preset, for messages."""

    def integer(self, name: str, default: int, *, low: int = 1, high: int = MAX_SIZE) -> int:
        """Return a whole number from ``low`` to ``high``."""
        value = self.data.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < low:
            self.refuse(name, value, f"a whole number, {low} or more")
        if value > high:
            self.refuse(name, value, f"at most {high}")
        return value

    def number(self, name: str, default: float) -> float:
        """Return a positive finite number."""
        value = self.data.get(name, default)
        if not is_number(value) or value <= 0:
            self.refuse(name, value, "a positive number")
        return float(value)

    def switch(self, name: str, default: bool) -> bool:
        """Return a truth value."""
        value = self.data.get(name, default)
        if not isinstance(value, bool):
            self.refuse(name, value, "true or false")
        return value

    def text(self, name: str, default: str, choices: tuple[str, ...]) -> str:
        """Return one of ``choices``."""
        value = self.data.get(name, default)
        if not isinstance(value, str) or value not in choices:
            self.refuse(name, value, f"one of {', '.join(choices)}")
        return value

    def mapping(self, name: str) -> dict[str, Any]:
        """Return a copy of an object; an absent or null one is empty."""
        value = self.data.get(name)
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            self.refuse(name, value, "an object or null")
        return dict(value)

    def refuse(self, name: str, value: Any, expected: str) -> NoReturn:
        """Raise the error that says what ``name`` should be."""
        shown = repr(value)
        shown = shown if len(shown) <= 60 else shown[:57] + "..."
        found = f"found {shown}" if name in self.data else f"it is missing and counts as {shown}"
        raise InputError(f"{self.where}: {name} must be {expected}; {found}")

    def fail(self, message: str, hint: str | None = None) -> NoReturn:
        """Raise an error about more than one field."""
        raise InputError(f"{self.where}: {message}", hint=hint)


def is_number(value: Any) -> bool:
    """Whether ``value`` is a finite number and no truth value."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return math.isfinite(value)
