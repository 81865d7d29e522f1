"""One entry of ``params:`` as a typed domain."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

from autotune.knobs.knob import Knob
from autotune.space import reading
from autotune.space.canonical import label
from autotune.space.domains import MAX_EXACT_INT, exact, grid
from autotune.space.model import Choices, Domain, FloatRange, IntRange
from autotune.space.nodes import Items, Node, Scalar, Table
from autotune.space.place import Place

KEYS: Final = ("type", "low", "high", "log", "step", "also", "choices", "when")
_RANGE_KEYS: Final = ("low", "high", "log", "step", "also")
_MEANT: Final = {
    "min": "low",
    "max": "high",
    "lower": "low",
    "upper": "high",
    "values": "choices",
    "options": "choices",
    "categorical": "choices",
    "range": "low and high",
    "q": "step",
    "if": "when",
    "condition": "when",
    "extra": "also",
    "scale": "log: true",
    "distribution": "log: true",
    "default": "a value under baseline",
    "value": "a value under fixed",
}
_TYPES: Final = ("int", "float", "bool", "text")
MAX_CHOICES: Final = 1_000
MAX_STEPS: Final = 1_000_000
_SHOWN_VALUES: Final = 4


def read_domain(node: Node, knob: Knob, name: str) -> Domain:
    """Return the domain that the file gives to ``knob``.

    Raises:
        SpaceError: Unknown keys, another type, an empty or impossible range, ….
    """
    if not isinstance(node, Table):
        hint = f"write {name}: {{choices: [a, b]}}, or {{type: int, low: 1, high: 9}}"
        if isinstance(node, Items):
            hint = f"write {name}: {{choices: [...]}}"
        elif isinstance(node, Scalar) and node.text:
            hint = f"a single value belongs under fixed: write fixed: {{{name}: {node.text}}}"
        raise node.place.error(f"{name} needs a mapping, found {reading.describe(node)}", hint=hint)
    for key, entry in node.entries.items():
        if key in KEYS or key.startswith("x-"):
            continue
        meant = _MEANT.get(key)
        hint = f"did you mean {meant}?" if meant else reading.suggestion(key, KEYS)
        raise entry.place.error(f"unknown key {reading.shown(key)} in {name}", hint=hint)
    _check_type(node, knob, name)
    choices = node.get("choices")
    given = [key for key in _RANGE_KEYS if key in node.entries]
    if choices is not None:
        if given:
            raise node.entries[given[0]].place.error(
                f"{name} has choices and {given[0]}: a list or a range, not both"
            )
        return _choices(choices, knob, name)
    if knob.type not in ("int", "float"):
        if given:
            raise node.entries[given[0]].place.error(
                f"{name} is {_type_words(knob)} and has no range",
                hint=f"write choices: {_example(knob)}",
            )
        raise node.place.error(f"{name} has no choices", hint=f"write choices: {_example(knob)}")
    for key in ("low", "high"):
        if key not in node.entries:
            raise node.place.error(
                f"{name} has no {key}",
                hint=None if given else "write low and high, or choices",
            )
    return _int_range(node, knob, name) if knob.type == "int" else _float_range(node, knob, name)


def _check_type(node: Table, knob: Knob, name: str) -> None:
    declared = node.get("type")
    if declared is None:
        return
    word = reading.text(declared, f"type of {name}", _TYPES)
    if word != knob.type and not (knob.type == "float" and word == "int"):
        raise declared.place.error(
            f"{name} is {_type_words(knob)}, not {word}",
            hint=f"write type: {knob.type}, or leave type out",
        )


def _type_words(knob: Knob) -> str:
    words = {"int": "a whole number", "float": "a number", "bool": "true or false"}
    return words.get(knob.type, "a text" if knob.type == "text" else "a structure")


def _example(knob: Knob) -> str:
    values = knob.choices or ((True, False) if knob.type == "bool" else ("a", "b"))
    return f"[{', '.join(label(value) for value in values)}]"


def _choices(node: Node, knob: Knob, name: str) -> Choices:
    items = reading.sequence(node, f"choices of {name}")
    if not items:
        raise node.place.error(f"{name} has no choices")
    if len(items) > MAX_CHOICES:
        raise node.place.error(f"{name} has more than {MAX_CHOICES:,} choices")
    values = [reading.knob_value(item, knob) for item in items]
    reading.unique(values, items, name)
    return Choices(values=tuple(values), labels=tuple(label(value) for value in values))


def _int_range(node: Table, knob: Knob, name: str) -> IntRange:
    def read(key: str) -> int:
        entry = node.entries[key]
        value = reading.integer(entry.value, f"{key} of {name}", low=knob.low, high=knob.high)
        _check_exact(value, entry.value.place, f"{key} of {name}")
        return value

    low, high = read("low"), read("high")
    _check_order(node, low, high, name)
    log = _log(node, name)
    step = 1
    if "step" in node.entries:
        step = reading.integer(node.entries["step"].value, f"step of {name}", low=1)
        _check_step(node, log, name)
        if (high - low) % step != 0:
            top = high - (high - low) % step
            raise _uneven(node, name, [low + k * step for k in range(_SHOWN_VALUES)], high, top)
    if log and low < 1:
        raise node.entries["low"].value.place.error(
            f"{name}: log needs low of at least 1",
            hint=f"write low: 1 with also: [{low}]" if low == 0 else "write low: 1",
        )

    def also(item: Node) -> int:
        value = reading.integer(item, f"also of {name}", low=knob.low, high=knob.high)
        _check_exact(value, item.place, f"also of {name}")
        return value

    values = _also(node, also, low, high, name)
    return IntRange(low=low, high=high, log=log, step=step, also=values)


def _check_exact(value: int, place: Place, what: str) -> None:
    if abs(value) > MAX_EXACT_INT:
        raise place.error(
            f"{what} is above 2**53 = {MAX_EXACT_INT}: samplers compute with doubles, "
            "which are not exact there",
            hint="choose a smaller bound; a fixed value may be of any size",
        )


def _float_range(node: Table, knob: Knob, name: str) -> FloatRange:
    def read(key: str) -> float:
        value = node.entries[key].value
        return reading.real(value, f"{key} of {name}", low=knob.low, high=knob.high)

    low, high = read("low"), read("high")
    _check_order(node, low, high, name)
    log = _log(node, name)
    if log and low <= 0:
        raise node.entries["low"].value.place.error(
            f"{name}: log needs low above 0",
            hint="write a small low with also: [0]" if low == 0 else None,
        )
    step: float | None = None
    if "step" in node.entries:
        step = _read_step(node, name)
        _check_step(node, log, name)
        count = (exact(high) - exact(low)) / exact(step)
        if count > MAX_STEPS:
            raise node.entries["step"].value.place.error(
                f"{name} has more than {MAX_STEPS:,} steps", hint="leave step out"
            )
        if count != count.to_integral_value():
            whole = int(count)
            top = float(exact(low) + whole * exact(step))
            usable = list(grid(low, step, min(whole, _SHOWN_VALUES - 1)))
            raise _uneven(node, name, usable, high, top)

    def also(item: Node) -> float:
        return reading.real(item, f"also of {name}", low=knob.low, high=knob.high)

    values = _also(node, also, low, high, name)
    return FloatRange(low=low, high=high, log=log, step=step, also=values)


def _read_step(node: Table, name: str) -> float:
    """Return a step above zero."""
    entry = node.entries["step"].value
    step = reading.real(entry, f"step of {name}", low=0)
    if step == 0:
        raise entry.place.error(f"step of {name} must be above 0")
    return step


def _check_order(node: Table, low: float, high: float, name: str) -> None:
    if low > high:
        raise node.entries["low"].value.place.error(
            f"{name} has an empty range: low {low} is above high {high}", hint="swap them"
        )


def _log(node: Table, name: str) -> bool:
    entry = node.entries.get("log")
    return False if entry is None else reading.boolean(entry.value, f"log of {name}")


def _check_step(node: Table, log: bool, name: str) -> None:
    if log:
        raise node.entries["step"].place.error(
            f"{name} has log and step: equal steps are not equal ratios",
            hint="list the values, as in choices: [1, 2, 4, 8], or leave step out",
        )


def _uneven(
    node: Table, name: str, usable: list[Any], high: float | Decimal, top: float
) -> Exception:
    values = [value for value in usable if value < top]
    dots = ["…"] if len(values) == _SHOWN_VALUES else []
    listed = ", ".join(str(value) for value in (*values, *dots, top))
    return node.entries["step"].value.place.error(
        f"{name}: step does not divide the range: usable are {listed}; {high} cannot occur",
        hint=f"write high: {top}",
    )


def _also(
    node: Table, read: Callable[[Node], Any], low: float, high: float, name: str
) -> tuple[Any, ...]:
    entry = node.entries.get("also")
    if entry is None:
        return ()
    items = reading.sequence(entry.value, f"also of {name}")
    if len(items) > MAX_CHOICES:
        raise entry.value.place.error(f"also of {name} has more than {MAX_CHOICES:,} values")
    values = [read(item) for item in items]
    reading.unique(values, items, f"also of {name}")
    for value, item in zip(values, items, strict=True):
        if low <= value <= high:
            raise item.place.error(
                f"also of {name}: {value} lies in the range {low} … {high}", hint="remove it"
            )
    return tuple(values)
