"""Expressions of ``constraints:`` and ``when:``: parsed by hand, never evaluated as Python.

Grammar (lowest precedence first)::

    or       = and { "or" and }
    and      = not { "and" not }
    not      = "not" not | compare
    compare  = sum { ("==" | "!=" | "<" | "<=" | ">" | ">=") sum }
    sum      = product { ("+" | "-") product }
    product  = unary { ("*" | "/") unary }
    unary    = "-" unary | atom
    atom     = number | text | name | "true" | "false" | "none" | "null" | "(" or ")"

Three values: whatever involves a knob that has no value (``none``, or a knob of another backend)
in an ordering or in arithmetic, or a division by zero, is *unknown*. A condition holds only when
it is true; a constraint is violated only when it is false.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Set
from fractions import Fraction
from typing import Any, Final

from autotune.space import syntax
from autotune.space.syntax import ExpressionError, Node

__all__ = ["Expression", "ExpressionError"]

_UNKNOWN: Final = object()
"""The value of a name without one, and of an operation without a result."""

_ORDERINGS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "<": lambda a, b: bool(a < b),
    "<=": lambda a, b: bool(a <= b),
    ">": lambda a, b: bool(a > b),
    ">=": lambda a, b: bool(a >= b),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Expression:
    """A parsed condition or constraint."""

    text: str
    """As the user wrote it."""
    node: Node = dataclasses.field(repr=False)

    @classmethod
    def parse(cls, text: str, *, words: Set[str] = frozenset()) -> Expression:
        """Parse ``text``.

        Args:
            text: The expression.
            words: Bare words that are text values, not names (``padded``, ``full``).

        Raises:
            ExpressionError: With the offset in ``text`` (from 0) of what is wrong.
        """
        return cls(text=text, node=syntax.parse(text, words))

    @functools.cached_property
    def names(self) -> tuple[str, ...]:
        """Names in order of first use, as written or as given to :meth:`renamed`."""
        return tuple(dict.fromkeys(name.value for name in self.node.walk() if name.kind == "name"))

    @functools.cached_property
    def name_offsets(self) -> dict[str, int]:
        """Where in ``text`` each name is first used."""
        offsets: dict[str, int] = {}
        for node in self.node.walk():
            if node.kind == "name":
                offsets.setdefault(node.value, node.offset)
        return offsets

    @functools.cached_property
    def canonical(self) -> str:
        """A text that is equal for expressions that differ in blanks and brackets only."""
        return self.node.render()

    def renamed(self, full_names: Mapping[str, str]) -> Expression:
        """Return the same expression over full names."""
        return Expression(text=self.text, node=self.node.renamed(full_names))

    def check(self, kinds: Mapping[str, Set[str]]) -> None:
        """Check that the types fit and that the whole is true or false.

        Args:
            kinds: For each name, what its values may be: ``number``, ``bool``, ``text``, ``none``.

        Raises:
            ExpressionError: Text is compared with a number, a number is used as a condition, ….
        """
        found = _kinds(self.node, kinds)
        if "bool" not in found:
            raise ExpressionError(
                f"{self.text!r} is neither true nor false",
                self.node.offset,
                hint="compare it with something, as in micro_batch <= 4",
            )

    def value(self, values: Mapping[str, Any]) -> bool | None:
        """Return true, false, or ``None`` for unknown."""
        result = _evaluate(self.node, values)
        return result if isinstance(result, bool) else None

    def evaluate(self, values: Mapping[str, Any]) -> bool:
        """Return whether the expression is true for these values (unknown counts as not true)."""
        return self.value(values) is True


def _evaluate(node: Node, values: Mapping[str, Any]) -> Any:
    match node.kind:
        case "literal":
            return node.value
        case "name":
            return values.get(node.value, _UNKNOWN)
        case "or" | "and":
            return _connect(node, values)
        case "not":
            inner = _evaluate(node.children[0], values)
            return not inner if isinstance(inner, bool) else _UNKNOWN
        case "compare":
            return _compare(node, values)
        case _:
            return _calculate(node, values)


def _connect(node: Node, values: Mapping[str, Any]) -> bool | None:
    decisive: bool = node.kind == "or"
    known = True
    for child in node.children:
        inner = _evaluate(child, values)
        if inner is decisive:
            return bool(decisive)
        known = known and isinstance(inner, bool)
    return (not decisive) if known else None


def _compare(node: Node, values: Mapping[str, Any]) -> bool | None:
    operands = [_evaluate(child, values) for child in node.children]
    result: bool | None = True
    for index, operator in enumerate(node.operators):
        left, right = operands[index], operands[index + 1]
        one = _relation(operator, left, right)
        if one is False:
            return False
        if one is None:
            result = None
    return result


def _relation(operator: str, left: Any, right: Any) -> bool | None:
    if operator in ("==", "!="):
        if left is _UNKNOWN or right is _UNKNOWN:
            return None
        return _same(left, right) is (operator == "==")
    if not _is_number(left) or not _is_number(right):
        return None
    return _ORDERINGS[operator](left, right)


def _same(left: Any, right: Any) -> bool:
    if left is None or right is None:
        # The word none is also the name of a choice (activation_checkpointing: none).
        return left == right or "none" in (left, right)
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    return bool(left == right)


def _calculate(node: Node, values: Mapping[str, Any]) -> Any:
    operands = [_evaluate(child, values) for child in node.children]
    if not all(_is_number(operand) for operand in operands):
        return _UNKNOWN
    if node.kind == "negate":
        return -operands[0]
    total = operands[0]
    try:
        for operator, operand in zip(node.operators, operands[1:], strict=True):
            total = syntax.ARITHMETIC[operator](total, operand)
    except (ZeroDivisionError, OverflowError):
        return _UNKNOWN
    return total


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | Fraction) and not isinstance(value, bool)


_NUMBER = frozenset({"number"})
_BOOL = frozenset({"bool"})


def _kinds(node: Node, kinds: Mapping[str, Set[str]]) -> frozenset[str]:
    """Return what ``node`` may be; raise where its parts do not fit together."""
    if node.kind == "literal":
        return frozenset({_literal_kind(node.value)})
    if node.kind == "name":
        return frozenset(kinds.get(node.value, ("number", "bool", "text", "none")))
    parts = [_kinds(child, kinds) for child in node.children]
    if node.kind in ("and", "or", "not"):
        _require(node, parts, "bool", f"{node.kind!r} joins conditions")
        return _BOOL
    if node.kind != "compare":
        _require(node, parts, "number", "arithmetic needs numbers")
        for operator, child in zip(node.operators, node.children[1:], strict=False):
            if operator == "/" and child.kind == "literal" and child.value == 0:
                raise ExpressionError("a division by 0 has no result", child.offset)
        return _NUMBER
    for index, operator in enumerate(node.operators):
        left, right = parts[index], parts[index + 1]
        if operator not in ("==", "!="):
            _require(node, [left, right], "number", f"{operator} needs numbers")
        elif not left & right and not {"none"} & (left | right):
            raise ExpressionError(
                f"{_words(left)} is compared with {_words(right)}, which is never equal",
                node.children[index + 1].offset,
            )
    return _BOOL


def _require(node: Node, parts: list[frozenset[str]], kind: str, rule: str) -> None:
    for child, found in zip(node.children, parts, strict=False):
        if kind not in found:
            raise ExpressionError(f"{rule}, not {_words(found)}", child.offset)


def _words(kinds: Set[str]) -> str:
    names = {"number": "a number", "bool": "true or false", "text": "text", "none": "none"}
    return " or ".join(names[kind] for kind in sorted(kinds))


def _literal_kind(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "bool"
    return "text" if isinstance(value, str) else "number"
