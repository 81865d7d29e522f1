"""Frozen dataclasses to plain JSON and back, checked against their type hints.

Nothing is pickled: a record is read only if every field has the declared type, so a foreign
or damaged file is refused with the place of the fault, and no code in it can run.

Supported field types: ``bool``, ``int``, ``float``, ``str``, ``None``, ``Any`` (any JSON value),
``Literal``, unions, ``tuple[X, ...]``, ``dict[str, X]``, ``Mapping[str, X]`` and dataclasses.
An ``int`` is accepted where ``float`` is declared, and written as the float that a reader will
have, so that a record and its copy read back have one digest; a ``bool`` is never a number.
Non-finite floats are refused in both directions.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Mapping
from functools import cache
from typing import Any, TypeVar

from autotune.errors import RecordError

T = TypeVar("T")


@cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def to_json(value: Any) -> Any:
    """Return ``value`` (a dataclass, mapping, sequence or scalar) as plain JSON data."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        hints = _hints(type(value))
        return {
            f.name: _as_declared(hints[f.name], to_json(getattr(value, f.name)))
            for f in dataclasses.fields(value)
        }
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        raise RecordError(f"a number that is not finite ({value}) cannot be recorded")
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise RecordError(f"a {type(value).__name__} cannot be recorded as JSON")


def _as_declared(hint: Any, data: Any) -> Any:
    """Return JSON ``data`` with integers made floats where ``hint`` declares only floats."""
    if hint is float:
        is_int = isinstance(data, int) and not isinstance(data, bool)
        return _as_float(data, "record") if is_int else data
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple and isinstance(data, list):
        return [_as_declared(arguments[0], item) for item in data]
    if isinstance(origin, type) and issubclass(origin, Mapping) and isinstance(data, dict):
        return {key: _as_declared(arguments[1], item) for key, item in data.items()}
    if origin in (typing.Union, types.UnionType) and float in arguments and int not in arguments:
        return _as_declared(float, data)
    return data


def _as_float(number: int | float, where: str) -> float:
    try:
        return float(number)
    except OverflowError as error:
        raise RecordError(f"{where}: expected a finite number, found a larger one") from error


def from_json(cls: type[T], data: Any, *, where: str = "record") -> T:
    """Build a ``cls`` from plain JSON data.

    Args:
        cls: A dataclass whose fields have the supported types.
        data: What the JSON parser returned.
        where: Prefix for error messages, usually the file.

    Raises:
        RecordError: A key is missing or unknown, or a value has another type.
    """
    try:
        return typing.cast("T", _decode(cls, data, where))
    except RecursionError as error:
        raise RecordError(f"{where}: nested too deeply for a record") from error


def _decode(hint: Any, data: Any, where: str) -> Any:
    if hint is Any:
        to_json(data)
        return data
    if hint is None or hint is types.NoneType:
        return _expect(data is None, None, data, "null", where)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return _decode_dataclass(hint, data, where)
    origin = typing.get_origin(hint)
    if origin is None:
        return _decode_scalar(hint, data, where)
    return _decode_generic(hint, origin, data, where)


def _decode_scalar(hint: Any, data: Any, where: str) -> Any:
    if hint is bool:
        return _expect(isinstance(data, bool), data, data, "true or false", where)
    if hint is int:
        is_int = isinstance(data, int) and not isinstance(data, bool)
        return _expect(is_int, data, data, "an integer", where)
    if hint is float:
        is_number = isinstance(data, int | float) and not isinstance(data, bool)
        _expect(is_number, data, data, "a finite number", where)
        number = _as_float(data, where)
        return _expect(math.isfinite(number), number, data, "a finite number", where)
    if hint is str:
        return _expect(isinstance(data, str), data, data, "text", where)
    raise TypeError(f"{where}: the codec does not support fields of type {hint!r}")


def _decode_generic(hint: Any, origin: Any, data: Any, where: str) -> Any:
    arguments = typing.get_args(hint)
    if origin is typing.Literal:
        allowed = ", ".join(repr(item) for item in arguments)
        known = any(type(data) is type(item) and data == item for item in arguments)
        return _expect(known, data, data, f"one of {allowed}", where)
    if origin in (typing.Union, types.UnionType):
        return _decode_union(arguments, data, where)
    if origin is tuple and arguments[1:] == (...,):
        _expect(isinstance(data, list | tuple), None, data, "a list", where)
        return tuple(_decode(arguments[0], item, f"{where}[{i}]") for i, item in enumerate(data))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        _expect(isinstance(data, Mapping), None, data, "an object", where)
        return {
            str(key): _decode(arguments[1], item, f"{where}.{key}") for key, item in data.items()
        }
    raise TypeError(f"{where}: the codec does not support fields of type {hint!r}")


def _decode_union(arguments: tuple[Any, ...], data: Any, where: str) -> Any:
    problem: RecordError | None = None
    for option in arguments:
        try:
            return _decode(option, data, where)
        except RecordError as error:
            # The most telling complaint comes from the option of the same shape.
            if problem is None or dataclasses.is_dataclass(option):
                problem = error
    assert problem is not None
    raise problem


def _decode_dataclass(cls: type, data: Any, where: str) -> Any:
    if not isinstance(data, Mapping):
        raise RecordError(f"{where}: expected an object, found {_name(data)}")
    fields = {f.name: f for f in dataclasses.fields(cls) if f.init}
    unknown = sorted(set(data) - set(fields))
    if unknown:
        raise RecordError(f"{where}: unknown key {unknown[0]!r}")
    hints = _hints(cls)
    values: dict[str, Any] = {}
    for name, field in fields.items():
        if name in data:
            values[name] = _decode(hints[name], data[name], f"{where}.{name}")
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise RecordError(f"{where}: key {name!r} is missing")
    try:
        return cls(**values)
    except ValueError as error:
        raise RecordError(f"{where}: {error}") from error


def _expect(condition: bool, value: Any, data: Any, expected: str, where: str) -> Any:
    if not condition:
        raise RecordError(f"{where}: expected {expected}, found {_name(data)}")
    return value


def _name(data: Any) -> str:
    if data is None or isinstance(data, bool | int | float | str):
        text = repr(data)
        return text if len(text) <= 60 else text[:57] + "..."
    if isinstance(data, list):
        return "a list"
    return "an object" if isinstance(data, dict) else type(data).__name__
