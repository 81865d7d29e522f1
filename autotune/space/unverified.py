"""``unverified:``: engine keys that the knob tables do not know, passed through as they are."""

from __future__ import annotations

from typing import Any

from autotune.knobs import reasons
from autotune.space import keys, reading
from autotune.space.catalogue import Catalogue
from autotune.space.model import AUTO
from autotune.space.nodes import Scalar, Table


def read_unverified(root: Table, catalogue: Catalogue) -> dict[str, dict[str, Any]]:
    """Read ``unverified:``: engine name to keys.

    Raises:
        SpaceError: Another engine, one that takes no keys, or a key that the knob tables or the
            workload know.
    """
    table = reading.table(root.get("unverified"), "unverified")
    found: dict[str, dict[str, Any]] = {}
    known = {backend for of in reasons.ENGINES.values() for backend in of}
    engines = {**reasons.ENGINES, **{b: (b,) for b in catalogue.backends if b not in known}}
    for entry in keys.entries(table):
        if entry.key not in engines:
            live = set(catalogue.backends) - reasons.WITHOUT_KEYS.keys()
            names = [name for name, of in engines.items() if live & set(of)]
            raise entry.place.error(
                f"unverified has keys of engines, not {reading.shown(entry.key)}",
                hint=f"write unverified: {{{names[0]}: {{{entry.key}: …}}}}" if names else None,
            )
        owner = next((one for one in engines[entry.key] if one in catalogue.backends), None)
        if owner is None:
            raise entry.place.error(
                f"unverified.{entry.key} does nothing: the backend is "
                f"{', '.join(catalogue.backends)}"
            )
        if owner in reasons.WITHOUT_KEYS:
            raise entry.place.error(
                f"unverified.{entry.key} cannot be passed on: {reasons.WITHOUT_KEYS[owner]}"
            )
        inner = reading.table(entry.value, f"unverified.{entry.key}")
        if inner is not None:
            _check_unverified(inner, entry.key, owner, catalogue, top=True)
            found[entry.key] = reading.plain(inner, f"unverified.{entry.key}")
    return found


def _check_unverified(
    table: Table, engine: str, owner: str, catalogue: Catalogue, *, top: bool
) -> None:
    """Refuse keys that the tables know: there they are typed, read back and compared."""
    known = {
        k.name.removeprefix("stage3_"): k for k in catalogue.knobs.values() if k.owner == owner
    }
    for entry in table.entries.values():
        key = entry.key.removeprefix("stage3_")
        if top and entry.key in reasons.RESERVED_KEYS.get(engine, {}):
            reason = reasons.RESERVED_KEYS[engine][entry.key]
            raise entry.place.error(f"unverified may not set {entry.key}: {reason}")
        if key in known:
            raise entry.place.error(
                f"{entry.key} is a known knob and is not passed through",
                hint=f"put {known[key].name} under fixed, baseline or params",
            )
        if entry.key in reasons.REFUSED.get(owner, {}):
            reason = reasons.REFUSED[owner][entry.key]
            raise entry.place.error(f"unverified may not set {entry.key}: {reason}")
        if isinstance(entry.value, Scalar) and entry.value.text.lower() == AUTO:
            raise entry.value.place.error(
                f"{entry.key}: auto has no rule by which it could be resolved",
                hint="write the value that the engine shall get",
            )
        if isinstance(entry.value, Table):
            _check_unverified(entry.value, engine, owner, catalogue, top=False)
