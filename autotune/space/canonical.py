"""What makes two configurations, domains or spaces the same: keys, labels and fingerprints."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Any

from autotune.contract import jsonfile
from autotune.knobs.knob import Knob
from autotune.knobs.words import value_words
from autotune.space.expression import Expression
from autotune.space.model import Choices, CommandSpec, Domain, IntRange, WorkloadSpec


def label(value: Any) -> str:
    """Return the stable text of a choice: ``8``, ``true``, ``none``, ``full``, ``[0.9,0.95]``."""
    if isinstance(value, str):
        return value
    if value is None:
        return "none"
    return jsonfile.canonical(value)


def dead_knobs(
    values: Mapping[str, Any], knobs: Iterable[Knob], facts: Mapping[str, Any]
) -> tuple[str, ...]:
    """Return the full names in ``values`` whose value changes nothing.

    Args:
        values: Full knob name to value.
        knobs: The tables of the backend and the workload.
        facts: ``processes``, ``device``, ``compute`` and ``accumulate``.
    """
    return tuple(
        knob.full_name
        for knob in knobs
        if knob.full_name in values
        and knob.dead_when is not None
        and _parsed(knob.dead_when).evaluate(_known(knob, values, facts))
    )


def with_defaults(
    values: Mapping[str, Any], knobs: Iterable[Knob], facts: Mapping[str, Any]
) -> dict[str, Any]:
    """Return ``values`` with the defaults that depend on other knobs in place of ``None``."""
    found = dict(values)
    for knob in knobs:
        if knob.default_where and found.get(knob.full_name, knob) is None:
            found[knob.full_name] = default_of(knob, found, facts)
    return found


def default_of(knob: Knob, values: Mapping[str, Any], facts: Mapping[str, Any]) -> Any:
    """Return the owner's default beside ``values``; ``None`` where it has none."""
    for condition, default in knob.default_where:
        if _parsed(condition).evaluate(_known(knob, values, facts)):
            return default
    return knob.default


def _known(knob: Knob, values: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
    """What the conditions of ``knob`` may name: full names, bare names of its owner, facts."""
    return {**facts, **values, **siblings(knob, values)}


def siblings(knob: Knob, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return what ``values`` says of the knobs of the same owner, by bare name."""
    prefix = f"{knob.owner}."
    return {
        name.removeprefix(prefix): value
        for name, value in values.items()
        if name.startswith(prefix)
    }


def facts(workload: CommandSpec | WorkloadSpec) -> dict[str, Any]:
    """Return what the conditions of knobs may name of the workload."""
    if isinstance(workload, CommandSpec):
        return {}
    precision = workload.precision
    return {"compute": precision.compute, "accumulate": precision.accumulate}


@functools.cache
def _parsed(text: str) -> Expression:
    return Expression.parse(text)


def at_later_defaults(
    values: Mapping[str, Any], knobs: Iterable[Knob], facts: Mapping[str, Any]
) -> tuple[str, ...]:
    """Return the full names in ``values`` of later knobs that are at their default."""
    found = []
    for knob in knobs:
        if knob.later and knob.full_name in values:
            default = default_of(knob, values, facts)
            value = values[knob.full_name]
            if type(value) is type(default) and value == default:
                found.append(knob.full_name)
    return tuple(found)


def config_key(backend: str, values: Mapping[str, Any], dead: Iterable[str]) -> str:
    """Return the canonical key: a digest of what is live."""
    skipped = set(dead)
    live = {name: value for name, value in values.items() if name not in skipped}
    return jsonfile.digest({"backend": backend, "values": live})


def domain_meaning(domain: Domain) -> dict[str, Any]:
    """Return a domain as plain data; the order of choices has no meaning."""
    if isinstance(domain, Choices):
        pairs = sorted(zip(domain.labels, domain.values, strict=True), key=lambda pair: pair[0])
        return {"choices": [value for _, value in pairs]}
    meaning: dict[str, Any] = {
        "type": "int" if isinstance(domain, IntRange) else "float",
        "low": domain.low,
        "high": domain.high,
        "log": domain.log,
        "step": domain.step,
        "also": sorted(domain.also),
    }
    return meaning


def domain_words(domain: Domain) -> str:
    """Return a domain in words: ``choices [1, 2]``, ``1_000 … 500_000 log, also 0``."""
    if isinstance(domain, Choices):
        return f"choices [{', '.join(domain.labels)}]"
    words = f"{value_words(domain.low)} … {value_words(domain.high)}"
    if domain.log:
        words += " log"
    if domain.step not in (None, 1):
        words += f" step {value_words(domain.step)}"
    if domain.also:
        words += f", also {', '.join(map(value_words, domain.also))}"
    return words
