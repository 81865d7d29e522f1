"""Tokens, tree and parser of the expression grammar (see :mod:`autotune.space.expression`)."""

from __future__ import annotations

import dataclasses
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Set
from fractions import Fraction
from typing import Any, Final

from autotune.space import numbers

MAX_LENGTH: Final = 2_000
"""Characters of an expression."""
MAX_DEPTH: Final = 50
"""Nested brackets, ``not`` and signs."""

_TOKEN = re.compile(
    r"""(?P<blank>\s+)
      | (?P<number>[0-9.][0-9A-Za-z_.]*(?:(?<=[0-9_.][eE])[+-][0-9_]+)?)
      | (?P<name>[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*)
      | (?P<text>'[^']*'|"[^"]*")
      | (?P<symbol>==|!=|<=|>=|\*\*|//|&&|\|\||[-+*/<>()=!%&|^])
    """,
    re.VERBOSE,
)
_COMPARISONS: Final = ("==", "!=", "<", "<=", ">", ">=")
_INSTEAD: Final[dict[str, str]] = {
    "=": "write == to compare",
    "&&": "write and",
    "&": "write and",
    "||": "write or",
    "|": "write or",
    "!": "write not",
    "in": "write a == 1 or a == 2",
    "is": "write == to compare",
}
_LITERALS: Final[dict[str, Any]] = {"true": True, "false": False, "none": None, "null": None}


def _divide(left: Any, right: Any) -> Any:
    """Whole numbers divide exactly: rounding must not decide whether a constraint holds."""
    if isinstance(left, float) or isinstance(right, float):
        return left / right
    return Fraction(left) / Fraction(right)


ARITHMETIC: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": _divide,
}


class ExpressionError(ValueError):
    """A fault in an expression, with its offset in the text (from 0)."""

    def __init__(self, message: str, offset: int, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.offset = offset
        self.hint = hint


@dataclasses.dataclass(frozen=True, kw_only=True)
class Node:
    """Part of the tree.

    Kinds: ``literal``, ``name``, ``or``, ``and``, ``not``, ``compare``, ``sum``, ``product``,
    ``negate``. A chain is one node with many children, so depth stays bounded.
    """

    kind: str
    offset: int
    value: Any = None
    children: tuple[Node, ...] = ()
    operators: tuple[str, ...] = ()

    def walk(self) -> Iterator[Node]:
        """This node and all below it, in the order of the text."""
        yield self
        for child in self.children:
            yield from child.walk()

    def renamed(self, names: Mapping[str, str]) -> Node:
        """The same tree with names replaced."""
        if self.kind == "name":
            return dataclasses.replace(self, value=names.get(self.value, self.value))
        children = tuple(child.renamed(names) for child in self.children)
        return dataclasses.replace(self, children=children)

    def render(self) -> str:
        """The tree as text, every operation in brackets."""
        if self.kind in ("literal", "name"):
            return repr(self.value) if self.kind == "literal" else str(self.value)
        parts = [child.render() for child in self.children]
        if self.kind in ("not", "negate"):
            return f"({self.kind} {parts[0]})"
        operators = self.operators or (self.kind,) * (len(parts) - 1)
        joined = "".join(f" {o} {p}" for o, p in zip(operators, parts[1:], strict=True))
        return f"({parts[0]}{joined})"


@dataclasses.dataclass(frozen=True)
class _Token:
    kind: str
    text: str
    offset: int


def parse(text: str, words: Set[str]) -> Node:
    """Return the tree of ``text``.

    Raises:
        ExpressionError: with the offset of what is wrong.
    """
    if len(text) > MAX_LENGTH:
        raise ExpressionError(f"an expression has at most {MAX_LENGTH} characters", MAX_LENGTH)
    parser = _Parser(_tokens(text), words)
    if parser.peek().kind == "end":
        raise ExpressionError("the expression is empty", 0)
    node = parser.chain(("or",))
    rest = parser.peek()
    if rest.kind != "end":
        raise _unexpected(rest)
    return node


def _tokens(text: str) -> list[_Token]:
    tokens: list[_Token] = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            character = text[position]
            what = "a quote is not closed" if character in "'\"" else f"{character!r} is unexpected"
            raise ExpressionError(what, position)
        if match.lastgroup != "blank":
            tokens.append(_Token(str(match.lastgroup), match[0], position))
        position = match.end()
    return [*tokens, _Token("end", "", len(text))]


def _unexpected(token: _Token) -> ExpressionError:
    if token.kind == "end":
        return ExpressionError("the expression ends too early", token.offset)
    hint = _INSTEAD.get(token.text)
    if hint is None:
        hint = "known: == != < <= > >= + - * / and or not ( ), names, numbers, true, false, none"
    return ExpressionError(f"{token.text!r} is unexpected", token.offset, hint=hint)


class _Parser:
    """Recursive descent; ``depth`` bounds the recursion."""

    def __init__(self, tokens: list[_Token], words: Set[str]) -> None:
        self.tokens = tokens
        self.words = words
        self.position = 0
        self.depth = 0

    def peek(self) -> _Token:
        return self.tokens[self.position]

    def take(self) -> _Token:
        token = self.tokens[self.position]
        self.position += 1
        return token

    def deeper(self, token: _Token) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise ExpressionError(
                f"an expression nests at most {MAX_DEPTH} levels deep", token.offset
            )

    def chain(self, level: tuple[str, ...]) -> Node:
        """One level of left-associative operators and all that bind tighter."""
        below: dict[tuple[str, ...], tuple[str, Callable[[], Node]]] = {
            ("or",): ("or", lambda: self.chain(("and",))),
            ("and",): ("and", self.negation),
            _COMPARISONS: ("compare", lambda: self.chain(("+", "-"))),
            ("+", "-"): ("sum", lambda: self.chain(("*", "/"))),
            ("*", "/"): ("product", self.sign),
        }
        kind, operand = below[level]
        children = [operand()]
        operators: list[str] = []
        while self.peek().text in level and self.peek().kind in ("symbol", "name"):
            operators.append(self.take().text)
            children.append(operand())
        if not operators:
            return children[0]
        return Node(
            kind=kind,
            offset=children[0].offset,
            children=tuple(children),
            operators=tuple(operators),
        )

    def negation(self) -> Node:
        return self.prefix("not", "not", self.negation, lambda: self.chain(_COMPARISONS))

    def sign(self) -> Node:
        return self.prefix("-", "negate", self.sign, self.atom)

    def prefix(
        self, symbol: str, kind: str, again: Callable[[], Node], below: Callable[[], Node]
    ) -> Node:
        token = self.peek()
        if token.text != symbol or token.kind == "text":
            return below()
        self.take()
        self.deeper(token)
        inner = again()
        self.depth -= 1
        return Node(kind=kind, offset=token.offset, children=(inner,))

    def atom(self) -> Node:
        token = self.take()
        if token.kind == "number":
            return Node(kind="literal", offset=token.offset, value=_number(token))
        if token.kind == "text":
            return Node(kind="literal", offset=token.offset, value=token.text[1:-1])
        if token.kind == "name":
            return self.word(token)
        if token.text != "(":
            raise _unexpected(token)
        self.deeper(token)
        inner = self.chain(("or",))
        closing = self.take()
        if closing.text != ")" or closing.kind != "symbol":
            if closing.kind != "end":
                raise _unexpected(closing)
            raise ExpressionError("a bracket is not closed", token.offset)
        self.depth -= 1
        return inner

    def word(self, token: _Token) -> Node:
        lowered = token.text.lower()
        if lowered in ("and", "or", "not", "in", "is"):
            raise _unexpected(token)
        if lowered in _LITERALS:
            return Node(kind="literal", offset=token.offset, value=_LITERALS[lowered])
        if token.text in self.words:
            return Node(kind="literal", offset=token.offset, value=token.text)
        return Node(kind="name", offset=token.offset, value=token.text)


def _number(token: _Token) -> int | float:
    try:
        return numbers.parse_number(token.text)
    except numbers.NumberError as error:
        raise ExpressionError(str(error), token.offset, hint=error.hint) from error
