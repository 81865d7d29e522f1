"""The meaning of a space: its fingerprint, and what changed between two, in words."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from autotune.contract import codec, jsonfile
from autotune.space.canonical import domain_meaning, domain_words, label
from autotune.space.model import AUTO

if TYPE_CHECKING:
    from autotune.space.model import Param
    from autotune.space.search_space import SearchSpace


def of(space: SearchSpace) -> dict[str, Any]:
    """Return all that decides which configurations are legal and what they are measured on."""
    return {
        "backends": sorted(space.declared_backends),
        "baseline_backend": space.baseline_backend,
        "workload": _workload(space),
        "processes": "auto" if space.processes is None else space.processes,
        "params": {p.knob: _param_meaning(p) for p in space.declared},
        "fixed": _as_written(space, space.fixed),
        "baseline": _as_written(space, space.baseline),
        "constraints": sorted(c.expression.canonical for c in space.constraints),
        "unverified": space.unverified,
        "memory_margin_share": space.search.memory_margin_share,
        "allow": sorted(space.search.allow),
    }


def _workload(space: SearchSpace) -> dict[str, Any]:
    """The workload as the file has it: the adapters' settings stand under ``finetune``."""
    found: dict[str, Any] = codec.to_json(space.workload)
    adapters = found.pop("lora", None)
    if adapters is not None:
        found["finetune"] = {found["finetune"]: adapters}
    return found


def _as_written(space: SearchSpace, values: Mapping[str, Any]) -> dict[str, Any]:
    """``auto`` stays ``auto``: the model that resolves it is part of the meaning anyway."""
    return {name: AUTO if name in space.resolved else value for name, value in values.items()}


def fingerprint(space: SearchSpace) -> str:
    """Return the digest of :func:`of`."""
    return jsonfile.digest(codec.to_json(of(space)))


def _param_meaning(param: Param) -> dict[str, Any]:
    when = None if param.when is None else param.when.canonical
    return {"domain": domain_meaning(param.domain), "when": when}


def differences(old: SearchSpace, new: SearchSpace) -> tuple[str, ...]:
    """Return one sentence for each thing that changes from ``old`` to ``new``."""
    before, after = of(old), of(new)
    lines: list[str] = []
    for key, title in (
        ("backends", "backend"),
        ("baseline_backend", "backend of the baseline"),
        ("processes", "topology.processes"),
    ):
        lines += _changed(title, _shown(before[key]), _shown(after[key]))
    lines += _mapping("workload.", _flat(before["workload"]), _flat(after["workload"]))
    lines += _params(old, new)
    lines += _mapping("fixed ", before["fixed"], after["fixed"])
    lines += _mapping("baseline ", before["baseline"], after["baseline"])
    lines += _constraints(old, new)
    lines += _mapping("unverified ", _flat(old.unverified), _flat(new.unverified))
    for field in ("memory_margin_share", "allow"):
        lines += _changed(f"search.{field}", _shown(before[field]), _shown(after[field]))
    return tuple(lines)


def _params(old: SearchSpace, new: SearchSpace) -> list[str]:
    before = {param.knob: param for param in old.declared}
    after = {param.knob: param for param in new.declared}
    lines: list[str] = []
    for knob in dict.fromkeys((*before, *after)):
        first, second = before.get(knob), after.get(knob)
        if first is None and second is not None:
            lines.append(f"{second.name}: tuned now, {domain_words(second.domain)}")
        elif second is None and first is not None:
            lines.append(f"{first.name}: no longer tuned")
        elif first is not None and second is not None:
            lines += _param(first, second)
    return lines


def _param(first: Param, second: Param) -> list[str]:
    lines: list[str] = []
    if domain_meaning(first.domain) != domain_meaning(second.domain):
        lines += _changed(second.name, domain_words(first.domain), domain_words(second.domain))
    conditions = [None if p.when is None else p.when.canonical for p in (first, second)]
    if conditions[0] != conditions[1]:
        texts = ["always" if p.when is None else p.when.text for p in (first, second)]
        lines += _changed(f"{second.name}: when", texts[0], texts[1])
    return lines


def _constraints(old: SearchSpace, new: SearchSpace) -> list[str]:
    before = {c.expression.canonical: c.text for c in old.constraints}
    after = {c.expression.canonical: c.text for c in new.constraints}
    gone = [f"constraint removed: {text}" for key, text in before.items() if key not in after]
    return gone + [f"constraint added: {text}" for key, text in after.items() if key not in before]


def _mapping(title: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    lines: list[str] = []
    for name in dict.fromkeys((*before, *after)):
        first = _shown(before[name]) if name in before else "not set"
        second = _shown(after[name]) if name in after else "not set"
        lines += _changed(f"{title}{name}", first, second)
    return lines


def _changed(title: str, before: str, after: str) -> list[str]:
    return [] if before == after else [f"{title}: {before} -> {after}"]


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    if dataclasses.is_dataclass(value) or not isinstance(value, Mapping):
        return {prefix: value}
    flat: dict[str, Any] = {}
    for key, item in value.items():
        flat |= _flat(item, f"{prefix}.{key}" if prefix else str(key))
    return flat


def _shown(value: Any) -> str:
    return label(codec.to_json(value))
