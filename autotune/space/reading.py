"""Typed values from scalars: the type comes from the schema or the knob, never from a guess."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from typing import Any, Final, TypeVar

from autotune.knobs.knob import Knob
from autotune.space import numbers
from autotune.space.canonical import label
from autotune.space.model import AUTO
from autotune.space.nodes import Items, Node, Scalar, Table

T = TypeVar("T")

MAX_INT: Final = 2**63 - 1
"""Engines count in 64 bits."""
TRUE: Final = ("true", "on", "yes")
FALSE: Final = ("false", "off", "no")
NULL: Final = ("null", "~", "none")


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that ``name`` was most likely meant to be."""
    candidates = list(known)
    lowered = {candidate.lower(): candidate for candidate in reversed(candidates)}
    found = get_close_matches(name.lower()[:200], lowered, n=1, cutoff=0.6)
    return lowered[found[0]] if found else None


def suggestion(name: str, known: Sequence[str]) -> str:
    """``did you mean X?``, or the list of what is known."""
    close = nearest(name, known)
    return f"did you mean {close}?" if close is not None else f"known: {', '.join(known)}"


def shown(text: str) -> str:
    """A text of the file for a message: quoted, printable, of bounded length."""
    return repr(numbers.cut(text))


def describe(node: Node) -> str:
    """What the file has here, in words."""
    if isinstance(node, Items):
        return "a list"
    if isinstance(node, Table):
        return "a mapping"
    return shown(node.text) if node.text or node.quoted else "nothing"


def scalar(node: Node, what: str, wanted: str) -> Scalar:
    """Return ``node`` if it is a scalar that is not empty.

    Raises:
        SpaceError: It is not.
    """
    if not isinstance(node, Scalar) or (node.text == "" and not node.quoted):
        raise node.place.error(f"{what} needs {wanted}, found {describe(node)}")
    return node


def is_null(node: Node) -> bool:
    """Whether the file says that there is no value."""
    return isinstance(node, Scalar) and not node.quoted and node.text.lower() in ("", *NULL)


def text(node: Node, what: str, choices: Sequence[str] = ()) -> str:
    """Return a text, word for word: ``no`` and ``off`` stay what they are."""
    wanted = f"one of {', '.join(choices)}" if choices else "a text"
    found = scalar(node, what, wanted)
    if choices and found.text not in choices:
        raise found.place.error(
            f"{what} needs {wanted}, found {describe(found)}",
            hint=suggestion(found.text, choices) if nearest(found.text, choices) else None,
        )
    if not found.text.strip():
        raise found.place.error(f"{what} is an empty text")
    return found.text


def boolean(node: Node, what: str) -> bool:
    """Return a switch: true, false, on, off, yes or no."""
    found = scalar(node, what, "true or false")
    word = found.text.lower()
    if word in TRUE:
        return True
    if word in FALSE:
        return False
    raise found.place.error(
        f"{what} needs true or false (or on, off, yes, no), found {describe(found)}"
    )


def integer(
    node: Node, what: str, *, low: int | float | None = None, high: int | float | None = None
) -> int:
    """Return a whole number, exactly."""
    return _number(node, what, "a whole number", numbers.parse_int, low, high)


def real(
    node: Node, what: str, *, low: int | float | None = None, high: int | float | None = None
) -> float:
    """Return a number."""
    return _number(node, what, "a number", numbers.parse_float, low, high)


def _number(
    node: Node,
    what: str,
    wanted: str,
    parse: Callable[[str], T],
    low: int | float | None,
    high: int | float | None,
) -> T:
    found = scalar(node, what, wanted)
    try:
        value: Any = parse(found.text)
    except numbers.NumberError as error:
        raise found.place.error(f"{what} needs {wanted}: {error}", hint=error.hint) from None
    if low is not None and value < low:
        raise found.place.error(f"{what} must be at least {low}, found {numbers.cut(found.text)}")
    if high is not None and value > high:
        raise found.place.error(f"{what} must be at most {high}, found {numbers.cut(found.text)}")
    return value  # type: ignore[no-any-return]  # checked


def stated_value(node: Node, knob: Knob) -> Any:
    """Return what ``fixed`` or ``baseline`` says: a value of ``knob``, or :data:`AUTO`.

    Raises:
        SpaceError: As :func:`knob_value`; or ``auto`` means nothing here.
    """
    is_word = isinstance(node, Scalar) and not node.quoted and node.text.lower() == AUTO
    if not is_word or knob.type in ("text", "structure"):
        return knob_value(node, knob)
    if not knob.auto:
        raise node.place.error(
            f"{knob.name}: auto has no rule by which it could be resolved",
            hint=f"write a value; the engine's own default is {label(knob.default)}",
        )
    return AUTO


def knob_value(node: Node, knob: Knob) -> Any:
    """Return a value of ``knob``, by its type and within its bounds.

    Raises:
        SpaceError: Another type, or outside what the knob's owner allows.
    """
    if knob.type == "structure":
        return plain(node, knob.name)
    if knob.default is None and knob.type != "text" and is_null(node):
        return None
    if knob.type == "text":
        return _text_value(node, knob)
    if knob.type == "bool":
        return boolean(node, knob.name)
    if any(isinstance(choice, bool) for choice in knob.choices) and isinstance(node, Scalar):
        word = node.text.lower()
        if word in TRUE or word in FALSE:
            return word in TRUE
    if knob.type == "int":
        high = MAX_INT if knob.high is None else knob.high
        return integer(node, knob.name, low=knob.low, high=high)
    return real(node, knob.name, low=knob.low, high=knob.high)


def _text_value(node: Node, knob: Knob) -> str | None:
    if knob.pattern and is_null(node):
        return None
    for value, reason in knob.refused:
        if isinstance(node, Scalar) and node.text == value:
            raise node.place.error(f"{knob.name} cannot be {value}: {reason}")
    found = text(node, knob.name, [choice for choice in knob.choices if choice is not None])
    if knob.pattern and re.fullmatch(knob.pattern, found) is None:
        raise node.place.error(
            f"{knob.name} cannot be {shown(found)}", hint=f"write {knob.form}, or null"
        )
    return found


def plain(node: Node, what: str) -> Any:
    """Return plain data of any shape, where no type is declared.

    Words that YAML versions read in different ways are errors that name the clear form.
    """
    if isinstance(node, Items):
        return [plain(item, what) for item in node.items]
    if isinstance(node, Table):
        return {key: plain(entry.value, what) for key, entry in node.entries.items()}
    if node.quoted:
        return node.text
    word = node.text
    if word.lower() in ("", "null", "~"):
        return None
    if word.lower() in ("true", "false"):
        return word.lower() == "true"
    if word.lower() in ("on", "off", "yes", "no", "y", "n"):
        raise node.place.error(
            f"{what}: {word} is ambiguous, a switch or a text",
            hint=f"write {str(word.lower() in ('on', 'yes', 'y')).lower()}, or {word!r} in quotes",
        )
    if word.lower().lstrip("+-") in (".inf", ".nan"):
        raise node.place.error(
            f"{what}: {word} is no number that a configuration can hold",
            hint="write a finite number, or a text in quotes",
        )
    try:
        return numbers.parse_number(word)
    except numbers.NumberError as error:
        if numbers.is_number(word) or (error.hint is not None and "ambiguous" in str(error)):
            hint = error.hint or "write a number of usual size, or a text in quotes"
            raise node.place.error(f"{what}: {error}", hint=hint) from None
    return word


def table(node: Node | None, what: str) -> Table | None:
    """Return a section: a mapping, or ``None`` if it is absent or empty."""
    if node is None or (isinstance(node, Scalar) and not node.quoted and is_null(node)):
        return None
    if not isinstance(node, Table):
        raise node.place.error(f"{what} needs a mapping, found {describe(node)}")
    return node


def sequence(node: Node | None, what: str) -> tuple[Node, ...]:
    """Return the items of a list; nothing is an empty list."""
    if node is None or (isinstance(node, Scalar) and not node.quoted and is_null(node)):
        return ()
    if not isinstance(node, Items):
        raise node.place.error(
            f"{what} needs a list, found {describe(node)}", hint="write it as [a, b]"
        )
    return node.items


def unique(values: Sequence[Any], nodes: Sequence[Node], what: str) -> None:
    """Refuse choices that are equal, or that differ in type only (1 and true, 8 and '8').

    Raises:
        SpaceError: At the second of the two.
    """
    seen: dict[str, int] = {}
    for index, value in enumerate(values):
        keys = {label(value)}
        if isinstance(value, bool | int | float):
            keys.add(f"number {float(value) if abs(value) < 2**53 else value}")
        for key in keys:
            if key in seen:
                first = values[seen[key]]
                same = type(first) is type(value)
                raise nodes[index].place.error(
                    f"{what} has {label(value)} twice"
                    if same
                    else f"{what} has {label(first)} and {label(value)}, which compare as equal",
                    hint="keep one of them",
                )
        seen |= dict.fromkeys(keys, index)
