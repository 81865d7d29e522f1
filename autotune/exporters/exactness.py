"""Numbers keep their type on the way into a file: sizes are integers, nothing is quoted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from autotune.errors import NothingToExportError
from autotune.knobs.knob import Knob


def exact(rendered: Mapping[str, Any], knobs: tuple[Knob, ...]) -> dict[str, Any]:
    """Return ``rendered`` with every whole-number setting as an integer.

    A float with no fraction becomes the equal integer (``2e8`` → 200000000); nothing is rounded.

    Raises:
        NothingToExportError: A setting has a fraction, is text where its knob is a number, or is
            still ``auto``.
    """
    types = {knob.name: knob for knob in knobs}
    found = {key: _exact(key, value, types) for key, value in rendered.items()}
    assert isinstance(found, dict)
    return found


def _exact(key: str, value: Any, knobs: Mapping[str, Knob]) -> Any:
    if isinstance(value, Mapping):
        return {name: _exact(name, item, knobs) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_exact(key, item, knobs) for item in value]
    if value == "auto":
        raise NothingToExportError(f"{key} is 'auto', which is no value that was measured")
    knob = knobs.get(key)
    if knob is None or knob.type != "int" or value in knob.choices:
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
        raise NothingToExportError(f"{key} must be a whole number and is {value!r}")
    return value


def json_text(data: Mapping[str, Any]) -> str:
    """Return the JSON text of ``data``, proved to read back equal in values and types."""
    text = json.dumps(data, indent=2, allow_nan=False) + "\n"
    assert same(json.loads(text), data), "a value changed on its way into JSON"
    return text


def same(left: Any, right: Any) -> bool:
    """Whether two JSON values are equal in value and type."""
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    return type(left) is type(right) and bool(left == right)
