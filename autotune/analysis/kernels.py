"""Do two launches compute with the same kernels?"""

from __future__ import annotations

from collections.abc import Mapping


def difference(bound: Mapping[str, str], reference: Mapping[str, str]) -> str | None:
    """Return in words the first layer type that is bound to something else, or ``None``.

    Args:
        bound: Layer type to implementation, of one launch.
        reference: The same of the baseline; empty where there is none yet.
    """
    for kind, wanted in reference.items():
        found = bound.get(kind, "nothing")
        if found != wanted:
            return f"{kind} is bound to {found}, and to {wanted} in the baseline"
    return None
