"""The ``search:`` section: how long and how to search. No part of what is measured."""

from __future__ import annotations

import dataclasses
from typing import Any, Final

from autotune.contract.duration import parse_duration
from autotune.space import reading
from autotune.space.catalogue import Catalogue
from autotune.space.keys import check_keys
from autotune.space.model import SearchSettings
from autotune.space.nodes import Items, Node, Table
from autotune.space.numbers import NumberError, parse_float
from autotune.space.sections import value

SAMPLERS: Final = ("auto", "tpe", "gp", "random")
MAX_TRIALS: Final = 1_000_000
MAX_FINALISTS: Final = 3
MAX_TRIAL_S: Final = 30 * 86400.0


def read_search(root: Table, catalogue: Catalogue) -> SearchSettings:
    """Read ``search:``."""
    table = reading.table(root.get("search"), "search")
    check_keys(table, "search", catalogue)
    default = SearchSettings()
    settings = dataclasses.replace(
        default,
        trials=value(
            table,
            "trials",
            default.trials,
            lambda n: reading.integer(n, "search.trials", low=1, high=MAX_TRIALS),
        ),
        sampler=value(
            table, "sampler", default.sampler, lambda n: reading.text(n, "search.sampler", SAMPLERS)
        ),
        seed=value(
            table,
            "seed",
            default.seed,
            lambda n: reading.integer(n, "search.seed", low=0, high=2**32 - 1),
        ),
        max_trial_time_s=value(table, "max_trial_time", default.max_trial_time_s, _duration),
        memory_margin_share=value(table, "memory_margin", default.memory_margin_share, _margin),
        finalists=value(
            table,
            "finalists",
            default.finalists,
            lambda n: reading.integer(n, "search.finalists", low=1, high=MAX_FINALISTS),
        ),
    )
    allow = reading.sequence(None if table is None else table.get("allow"), "search.allow")
    return dataclasses.replace(settings, allow=tuple(_allowed(n, catalogue) for n in allow))


def _allowed(node: Node, catalogue: Catalogue) -> str:
    name = reading.text(node, "search.allow")
    knob = catalogue.find(name, node.place)
    if knob.numerics != "rounding":
        raise node.place.error(
            f"{name} needs no permission: it does not change rounding", hint="remove it from allow"
        )
    return knob.full_name


def _duration(node: Node) -> float:
    if isinstance(node, Items):
        raise node.place.error("search.max_trial_time needs a duration, as in 5m")
    if isinstance(node, Table):
        given: Any = {key: entry.value for key, entry in node.entries.items()}
        if set(given) != {"value", "unit"}:
            raise node.place.error("a duration as a mapping has value and unit")
        unit = reading.text(given["unit"], "unit")
        return _parsed_duration(
            node, {"value": reading.real(given["value"], "value"), "unit": unit}
        )
    found = reading.scalar(node, "search.max_trial_time", "a duration such as 5m")
    if ":" in found.text:
        raise found.place.error(
            f"search.max_trial_time {found.text} is ambiguous", hint="write 90s, 5m or 1h30m"
        )
    try:
        number = parse_float(found.text)
    except NumberError:
        return _parsed_duration(node, found.text)
    raise found.place.error(
        f"search.max_trial_time {found.text} has no unit",
        hint=f"write {number:g}s or {number:g}m",
    )


def _parsed_duration(node: Node, given: Any) -> float:
    try:
        seconds = parse_duration(given)
    except (ValueError, OverflowError) as error:
        raise node.place.error(f"search.max_trial_time: {error}") from None
    if seconds > MAX_TRIAL_S:
        raise node.place.error(f"search.max_trial_time must be at most 30d, found {seconds:g}s")
    return seconds


def _margin(node: Node) -> float:
    """``5%``, or the share itself."""
    found = reading.scalar(node, "search.memory_margin", "a share such as 5%")
    digits = found.text.removesuffix("%").rstrip()
    percent = found.text.endswith("%")
    try:
        share = parse_float(digits) / (100 if percent else 1)
    except NumberError as error:
        raise found.place.error(f"search.memory_margin: {error}", hint="write 5%") from None
    if not percent and share >= 1:
        raise found.place.error(
            f"search.memory_margin {digits} is ambiguous", hint=f"write {digits}%"
        )
    if not 0 <= share < 1:
        raise found.place.error(
            f"search.memory_margin must be at least 0% and below 100%, found {found.text}"
        )
    return share
