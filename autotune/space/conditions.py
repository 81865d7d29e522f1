"""``when:`` and ``constraints:``: parsed, their names resolved, their types checked."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence, Set
from typing import Any, Final

from autotune.knobs.knob import Knob
from autotune.space import reading
from autotune.space.catalogue import Catalogue
from autotune.space.expression import Expression, ExpressionError
from autotune.space.nodes import Node, Scalar
from autotune.space.place import Place

BACKEND = "backend"
"""The chosen backend's name may stand in expressions of a space with several."""
MAX_COMBINATIONS: Final = 10_000
"""Values of a condition's names that are tried together."""


def read(node: Node, what: str, catalogue: Catalogue) -> tuple[Expression, Scalar]:
    """Return an expression over full names, checked, and the scalar it was read from.

    Raises:
        SpaceError: At the character that is wrong.
    """
    source = reading.scalar(node, what, "an expression such as micro_batch <= 4")
    words = _words(catalogue)
    try:
        parsed = Expression.parse(source.text, words=words)
        full: dict[str, str] = {}
        kinds: dict[str, Set[str]] = {}
        for name, offset in parsed.name_offsets.items():
            place = source.place_of(offset)
            if name == BACKEND and len(catalogue.backends) > 1:
                full[name], kinds[BACKEND] = BACKEND, {"text"}
                continue
            if name == BACKEND:
                raise place.error(
                    f"{what}: the backend is always {catalogue.backends[0]} here",
                    hint="backend may be named where it is a list, as in backend: [zero3, fsdp2]",
                )
            knob = _find(name, catalogue, place, words)
            full[name] = knob.full_name
            kinds[knob.full_name] = _kinds_of(knob)
        renamed = parsed.renamed(full)
        renamed.check(kinds)
        _check_texts(renamed, catalogue)
    except ExpressionError as error:
        place = source.place_of(min(error.offset, len(source.text)))
        raise place.error(f"{what}: {error}", hint=error.hint) from None
    return renamed, source


def _words(catalogue: Catalogue) -> frozenset[str]:
    """Bare words that are values of text knobs and no names."""
    words = {
        choice
        for knob in catalogue.knobs.values()
        if knob.type == "text"
        for choice in knob.choices
        if isinstance(choice, str)
    }
    if len(catalogue.backends) > 1:
        words |= set(catalogue.backends)
    return frozenset(word for word in words if catalogue.get(word) is None)


def _find(name: str, catalogue: Catalogue, place: Place, words: Set[str]) -> Knob:
    if catalogue.get(name) is None:
        close = reading.nearest(name, (*catalogue.names, *words))
        if close in words:
            raise place.error(f"unknown name {reading.shown(name)}", hint=f"did you mean {close}?")
    return catalogue.find(name, place)


def _kinds_of(knob: Knob) -> Set[str]:
    kinds = {{"int": "number", "float": "number", "bool": "bool"}.get(knob.type, "text")}
    if knob.type == "structure":
        kinds = {"number", "bool", "text", "none"}
    if any(isinstance(choice, bool) for choice in knob.choices):
        kinds.add("bool")
    if knob.default is None:
        kinds.add("none")
    return kinds


def _check_texts(expression: Expression, catalogue: Catalogue) -> None:
    """Refuse a comparison with a text that the knob cannot have."""
    for node in expression.node.walk():
        if node.kind != "compare":
            continue
        knobs = [catalogue.get(c.value) for c in node.children if c.kind == "name"]
        texts = [c for c in node.children if c.kind == "literal" and isinstance(c.value, str)]
        for knob in knobs:
            if knob is None or knob.type != "text" or not knob.choices:
                continue
            for text in texts:
                if text.value not in knob.choices:
                    known = [str(choice) for choice in knob.choices]
                    raise ExpressionError(
                        f"{knob.name} is never {text.value!r}",
                        text.offset,
                        hint=reading.suggestion(text.value, known),
                    )


def check_before(
    expression: Expression, source: Scalar, owner: str, known: Set[str], later: Set[str]
) -> None:
    """Check that a condition looks only at what stands before it.

    Args:
        expression: The condition of ``owner``, over full names.
        source: Where it stands.
        owner: Full name of the conditional knob.
        known: Full names that are fixed or tuned before it.
        later: Full names that are tuned after it.

    Raises:
        SpaceError: It names its own parameter, a later one, or one that has no value of its own.
    """
    for name, offset in expression.name_offsets.items():
        place = source.place_of(offset)
        short = name.rpartition(".")[2]
        if name == owner:
            raise place.error(f"when of {short} names {short} itself")
        if name in known or name == BACKEND:
            continue
        if name in later:
            raise place.error(
                f"when names {short}, which stands later in params",
                hint=f"move {short} before it",
            )
        raise place.error(
            f"when names {short}, which is neither tuned nor fixed",
            hint=f"put {short} under fixed, or tune it before this parameter",
        )


def never_true(expression: Expression, possible: Mapping[str, Sequence[Any]]) -> bool:
    """Whether a condition holds for no combination of values.

    Args:
        expression: The condition, over full names.
        possible: Full names to all values that they can have. With a name that is not here, or
            with very many combinations, nothing is claimed.
    """
    names = expression.names
    if not all(name in possible for name in names):
        return False
    if math.prod(len(possible[name]) for name in names) > MAX_COMBINATIONS:
        return False
    combinations = itertools.product(*(possible[name] for name in names))
    return not any(
        expression.evaluate(dict(zip(names, values, strict=True))) for values in combinations
    )


def always_true(expression: Expression, possible: Mapping[str, Sequence[Any]]) -> bool:
    """Whether a condition holds for every combination of values.

    Args:
        expression: The condition.
        possible: Names to all values that they can have; one that is not here is unknown, so
            the condition must hold without it.
    """
    names = [name for name in expression.names if name in possible]
    if math.prod(len(possible[name]) for name in names) > MAX_COMBINATIONS:
        return False
    combinations = itertools.product(*(possible[name] for name in names))
    return all(
        expression.value(dict(zip(names, values, strict=True))) is True for values in combinations
    )
