"""Numbers as people write them: ``5e8``, ``5.0e+8``, ``500_000_000``, ``1e-5``, exact.

YAML's own resolver reads ``5e8`` as text, ``010`` as 8 and ``1:30`` as 90; here the first is a
number and the others are errors that name the clear form.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import Final

MAX_DIGITS: Final = 500
"""Longer texts are no number that a setting could have."""
MAX_EXPONENT: Final = 308
"""Largest power of ten of a double."""
_SHOWN: Final = 60
"""Characters of a number that a message repeats."""

_DECIMAL = re.compile(
    r"[+-]?(?:[0-9](?:_?[0-9])*(?:\.(?:[0-9](?:_?[0-9])*)?)?|\.[0-9](?:_?[0-9])*)"
    r"(?:[eE][+-]?[0-9]{1,4})?"
)
_LEADING_ZERO = re.compile(r"[+-]?0_?[0-9][0-9_]*")
_PREFIXED = re.compile(r"[+-]?0[xXoObB][0-9a-fA-F_]*")
_SEXAGESIMAL = re.compile(r"[+-]?[0-9][0-9_]*(?::[0-9]+)+(?:\.[0-9]*)?")
_GROUPED = re.compile(r"[+-]?[0-9]{1,3}(?:[, '’][0-9]{3})+(?:\.[0-9]+)?")
_SUFFIXED = re.compile(r"([+-]?[0-9][0-9_]*(?:\.[0-9]+)?)\s*([kKmMgGbB])(?:[iI]?[bB])?")
_SUFFIX_EXPONENT: Final = {"k": "e3", "m": "e6", "g": "e9", "b": "e9"}


class NumberError(ValueError):
    """A text is no number, or could be read as several."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


def is_number(text: str) -> bool:
    """Whether ``text`` is written as a plain decimal number."""
    return _DECIMAL.fullmatch(text) is not None and not _LEADING_ZERO.fullmatch(text)


def parse_decimal(text: str) -> Decimal:
    """Return the exact value of ``text``.

    Raises:
        NumberError: It is ambiguous, no number, or too large or small for a double.
    """
    refuse_ambiguous(text)
    if not _DECIMAL.fullmatch(text):
        raise NumberError(f"{cut(text)!r} is not a number", hint=_suffix_hint(text))
    if len(text) > MAX_DIGITS:
        raise NumberError(f"a number has at most {MAX_DIGITS} characters")
    value = Decimal(text.replace("_", ""))
    if value and abs(value.adjusted()) > MAX_EXPONENT - 1:
        raise NumberError(f"{cut(text)} is too large or too small: |exponent| is at most 307")
    return value


def parse_number(text: str) -> int | float:
    """Return an exact ``int`` where the value is whole, else the nearest ``float``.

    Raises:
        NumberError: As :func:`parse_decimal`.
    """
    value = parse_decimal(text)
    return int(value) if value == value.to_integral_value() else float(value)


def parse_int(text: str) -> int:
    """Return a whole number, exactly.

    Raises:
        NumberError: Also when the value is not whole.
    """
    value = parse_decimal(text)
    whole = value.to_integral_value()
    if value != whole:
        raise NumberError(f"{cut(text)} is not a whole number", hint=f"write {cut(str(whole))}")
    return int(whole)


def parse_float(text: str) -> float:
    """Return the nearest double.

    Raises:
        NumberError: Also when it is not finite.
    """
    value = float(parse_decimal(text))
    if not math.isfinite(value):
        raise NumberError(f"{text} is not a finite number")
    return value


def refuse_ambiguous(text: str) -> None:
    """Refuse forms that YAML, people and other tools read in different ways.

    Raises:
        NumberError: With the clear form as hint.
    """
    if len(text) > MAX_DIGITS:
        return
    if _PREFIXED.fullmatch(text):
        clear = _prefixed_value(text)
        raise NumberError(
            f"{text} is a hexadecimal, octal or binary form",
            hint=f"write the decimal number{clear}",
        )
    if _LEADING_ZERO.fullmatch(text):
        sign = "-" if text.startswith("-") else ""
        digits = text.lstrip("+-").replace("_", "").lstrip("0") or "0"
        octal = f", or {sign}{int(digits, 8)} if octal was meant" if _is_octal(digits) else ""
        raise NumberError(
            f"{text} is ambiguous: YAML reads a leading zero as octal",
            hint=f"write {sign}{digits}{octal}",
        )
    if _SEXAGESIMAL.fullmatch(text):
        raise NumberError(
            f"{text} is ambiguous: YAML reads it in base 60",
            hint="write a plain number, or a duration such as 90s or 1m30s",
        )
    if _GROUPED.fullmatch(text):
        clear = re.sub(r"[, '’]", "_", text)
        raise NumberError(f"{text} is ambiguous: is that a thousands mark?", hint=f"write {clear}")


def _is_octal(digits: str) -> bool:
    return digits != "0" and all(digit in "01234567" for digit in digits)


def _prefixed_value(text: str) -> str:
    try:
        return f" {int(text.replace('_', ''), 0)}"
    except ValueError:
        return ""


def _suffix_hint(text: str) -> str | None:
    match = _SUFFIXED.fullmatch(text) if len(text) <= MAX_DIGITS else None
    if match is None:
        return None
    return f"write it without a suffix, for example {match[1]}{_SUFFIX_EXPONENT[match[2].lower()]}"


def cut(text: str) -> str:
    """A text for a message, of bounded length."""
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."
