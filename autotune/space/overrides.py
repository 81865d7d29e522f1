"""``--set KEY=VALUE``: replace, add or remove one key of a space file's tree before it is read."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Final

from autotune import registry
from autotune.contract.command import OWNER
from autotune.space import nodes
from autotune.space.nodes import Entry, Node, Scalar, Table
from autotune.space.place import Place
from autotune.space.sections import KNOB_SECTIONS

_OWNERS: Final = ("workload", "kernel", "env", OWNER)


def apply(root: Table, overrides: Sequence[str], file: str) -> Table:
    """Return the tree with all overrides applied, in order.

    The value is YAML (a scalar or the flow form of a list or mapping) and replaces what stood at
    the key; ``null`` removes the key.

    Raises:
        SpaceError: An override has no value, or its key leads through something else.
    """
    for override in overrides:
        key, equals, text = override.partition("=")
        key = key.strip()
        place = Place(file=file, override=key or override)
        segments = key.split(".")
        if not equals:
            raise place.error("there is no =", hint=f"write --set {key or 'KEY'}=VALUE")
        if not all(segments):
            raise place.error("the key has an empty part", hint="write it as section.key")
        if key.startswith("x-"):
            raise place.error("names that start with x- are notes and set nothing")
        value = nodes.compose(text, file, override=key)
        if value is None or (isinstance(value, Scalar) and not value.quoted and not value.text):
            raise place.error("there is no value", hint=f"write {key}=null to remove the key")
        root = _set(root, _path(segments, root), value, place)
    return root


def _path(segments: list[str], root: Table) -> list[str]:
    """Join the two parts of a full knob name, and use the spelling that the file has."""
    if segments[0] not in KNOB_SECTIONS or len(segments) < 2:
        return segments
    section, name, *rest = segments
    if rest and name in (*registry.names("backends"), *_OWNERS):
        name, rest = f"{name}.{rest[0]}", rest[1:]
    return [section, _spelling(root.get(section), name), *rest]


def _spelling(section: Node | None, name: str) -> str:
    if not isinstance(section, Table) or name in section.entries:
        return name
    same = [key for key in section.entries if key.endswith(f".{name}") or name.endswith(f".{key}")]
    return same[0] if len(same) == 1 else name


def _set(table: Table, path: list[str], value: Node, place: Place) -> Table:
    key, *rest = path
    entries = dict(table.entries)
    old = entries.get(key)
    if not rest:
        if isinstance(value, Scalar) and not value.quoted and value.text in ("null", "~"):
            if old is None:
                raise place.error("there is no such key to remove")
            del entries[key]
        else:
            entries[key] = Entry(key=key, place=place, value=value)
        return dataclasses.replace(table, entries=entries)
    child = Table(place=place, entries={}, size=1) if old is None else old.value
    if isinstance(child, Scalar) and child.text == "" and not child.quoted:
        child = Table(place=place, entries={}, size=1)
    if not isinstance(child, Table):
        kind = "a list" if isinstance(child, nodes.Items) else "a single value"
        raise place.error(f"{key} is {kind}, which has no key {rest[0]}", hint=f"set {key} whole")
    changed = _set(child, rest, value, place)
    entries[key] = Entry(key=key, place=place if old is None else old.place, value=changed)
    return dataclasses.replace(table, entries=entries)
