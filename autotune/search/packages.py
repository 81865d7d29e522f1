"""Installed packages, from their metadata: nothing is imported."""

from __future__ import annotations

from importlib import metadata

from autotune.knobs.known_bad import KNOWN_BAD, KnownBad


def public_version(package: str) -> str | None:
    """The installed version without its local label; ``None`` if it is not installed."""
    try:
        return metadata.version(package).partition("+")[0]
    except metadata.PackageNotFoundError:
        return None


def known_bad(backend: str) -> tuple[KnownBad, ...]:
    """What is installed and must not be used with ``backend``."""
    return tuple(
        bad
        for bad in KNOWN_BAD
        if bad.backend == backend and public_version(bad.package) == bad.version
    )
