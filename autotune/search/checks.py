"""One finding of ``autotune doctor``."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Literal

from autotune.errors import AutotuneError

State = Literal["ok", "note", "warning", "failed"]
"""``note``: a fact to know; ``warning``: something is not usable; ``failed``: a search fails."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Check:
    """What was looked at and what was found."""

    name: str
    state: State
    text: str
    """One line for a person."""
    hint: str | None = None
    """What to do about it."""
    data: dict[str, Any] = dataclasses.field(default_factory=dict)
    """The facts, for programs."""


def attempt(name: str, check: Callable[[], None], text: str) -> Check:
    """Turn a preflight check that raises into a finding; ``text`` is for success."""
    try:
        check()
    except AutotuneError as error:
        return Check(name=name, state="failed", text=error.message, hint=error.hint)
    return Check(name=name, state="ok", text=text)
