"""What the installed transformers says of a causal language model's class, without importing it.

Its classes say by switches which attention functions they can run (``modeling_utils.py``,
``PreTrainedModel._supports_flex_attn`` and others), and refuse the others when a model is built.
The switches are read from the text of the family's file (``models/NAME/modeling_NAME.py``): what
cannot be found there is not known, and then nothing is left out because of it.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

_ROOT: Final = "PreTrainedModel"
_CLASS: Final = re.compile(r"^class (\w+)\(([^)]*)\):\n((?:[ \t#].*\n|\n)*)", re.MULTILINE)
_SWITCH: Final = re.compile(r"^    (_supports_\w+)(?:: *[^=\n]+)? *= *([^#\n]*)", re.MULTILINE)
_VALUES: Final = {"True": True, "False": False}
_NAME: Final = re.compile(r"\w+")


@dataclasses.dataclass(frozen=True, kw_only=True)
class LibraryClass:
    """A causal language model of the library."""

    name: str
    switches: Mapping[str, bool]
    """Its ``_supports_…`` attributes, inherited ones too, but for those that are computed."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Declared:
    """A class as a file declares it."""

    bases: tuple[str, ...]
    switches: Mapping[str, bool | None]
    """``None`` where the value is computed."""


@functools.cache
def causal_class(family: str) -> LibraryClass | None:
    """Return the family's ``…ForCausalLM`` in the installed library; ``None`` if it is not known.

    Args:
        family: As its folder in ``transformers/models`` is called.
    """
    spec = importlib.util.find_spec("transformers")
    if spec is None or spec.origin is None:
        return None
    return read_class(Path(spec.origin).parent, family)


def read_class(package: Path, family: str) -> LibraryClass | None:
    """As :func:`causal_class`, of the library whose files lie in ``package``."""
    try:
        common = (package / "modeling_utils.py").read_text("utf-8")
        own = (package / "models" / family / f"modeling_{family}.py").read_text("utf-8")
    except OSError:
        return None
    declared = _declared(own)
    root = _declared(common).get(_ROOT)
    names = [name for name in declared if name.endswith("ForCausalLM")]
    if root is None or len(names) != 1:
        return None
    switches = _inherited(names[0], {**declared, _ROOT: root})
    if switches is None:
        return None
    known = {switch: value for switch, value in switches.items() if value is not None}
    return LibraryClass(name=names[0], switches=known)


def _declared(text: str) -> dict[str, _Declared]:
    return {
        name: _Declared(
            bases=tuple(_NAME.findall(bases)),
            switches={
                switch: _VALUES.get(value.strip()) for switch, value in _SWITCH.findall(body)
            },
        )
        for name, bases, body in _CLASS.findall(text)
    }


def _inherited(name: str, declared: Mapping[str, _Declared]) -> dict[str, bool | None] | None:
    """The switches of a class; ``None`` where no base is known to be the library's root."""
    one = declared.get(name)
    if one is None:
        return None
    if name == _ROOT:
        return dict(one.switches)
    found = [_inherited(base, declared) for base in one.bases]
    known = [switches for switches in found if switches is not None]
    if not known:
        return None
    merged: dict[str, bool | None] = {}
    for switches in reversed(known):  # the first base wins, and the class itself over all
        merged |= switches
    return merged | dict(one.switches)
