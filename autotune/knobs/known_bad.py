"""Versions of packages with which results would be wrong or worthless: refused before a launch."""

from __future__ import annotations

import dataclasses
from typing import Final


@dataclasses.dataclass(frozen=True, kw_only=True)
class KnownBad:
    """One release that a backend must not run on."""

    backend: str
    package: str
    version: str
    """Exact public version; local labels such as ``+cu128`` do not matter."""
    reason: str


KNOWN_BAD: Final[tuple[KnownBad, ...]] = tuple(
    KnownBad(
        backend=backend,
        package="deepspeed",
        version="0.17.2",
        reason="it shrinks the reduce bucket to one parameter, whatever reduce_bucket_size says",
    )
    for backend in ("zero3", "deepspeed")
)
