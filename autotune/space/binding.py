"""Which values can hold on a topology, and why the others cannot, in words."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from autotune.contract.plan import Topology
from autotune.space import domains
from autotune.space.canonical import domain_words, label
from autotune.space.model import (
    Choices,
    Domain,
    Dropped,
    FloatRange,
    IntRange,
    Limits,
    Param,
)

if TYPE_CHECKING:
    from autotune.space.place import Place
    from autotune.space.search_space import SearchSpace

SHOWN: Final = 5
"""Reasons that one error lists."""

_ROWS: Final = "workload.micro_batch"
_TOKENS: Final = "workload.max_tokens"
_BATCHING: Final = "workload.batching"
_PACKED: Final = "packed"
_NO_LIMIT: Final = (
    "it is cut by max_tokens, the length of its rows, and nothing here sets or tunes that"
)
_RESHARD: Final = "fsdp2.reshard_after_forward"
_DIVIDING: Final = (
    "fsdp2.replicate",
    "zero3.zero_hpz_partition_size",
    "deepspeed.zero_hpz_partition_size",
)
"""Knobs whose value must divide the processes."""


def bind(space: SearchSpace, topology: Topology, limits: Limits) -> SearchSpace:
    """See :meth:`autotune.space.search_space.SearchSpace.on`."""
    space = dataclasses.replace(space, limits=limits)
    params: list[Param] = []
    dropped: list[Dropped] = []
    for param in space.declared:
        if param.name not in {kept.name for kept in space.params}:
            continue
        domain, gone = _restrict(space, topology, param)
        dropped.extend(gone)
        if domain is None:
            reasons = "; ".join(f"{label(item.value)}: {item.reason}" for item in gone[:SHOWN])
            raise space.places[f"params.{param.name}"].error(
                f"no choice of {param.name} is left ({reasons})",
                hint=_hint(space, topology, param.knob),
            )
        params.append(dataclasses.replace(param, domain=domain))
    for section, given in (("fixed", space.fixed), ("baseline", space.baseline)):
        for name, value in given.items():
            _refuse(space, topology, name, value, space.place(f"{section}.{name}"))
    _check_default_cut(space, topology)
    kept = [item for item in space.dropped if item.topology is None]
    return dataclasses.replace(
        space, params=tuple(params), dropped=(*kept, *dropped), topology=topology
    )


def drop_values(space: SearchSpace, knob: str, reasons: Mapping[Any, str]) -> SearchSpace:
    """See :meth:`autotune.space.search_space.SearchSpace.without_values`."""
    params: list[Param] = []
    dropped = list(space.dropped)
    for param in space.params:
        values = domains.values(param.domain) if param.knob == knob else ()
        gone = [value for value in values if value in reasons]
        if not gone:
            params.append(param)
            continue
        left = tuple(value for value in values if value not in reasons)
        if not left:
            texts = "; ".join(f"{label(value)}: {reasons[value]}" for value in gone[:SHOWN])
            raise space.places[f"params.{param.name}"].error(
                f"no choice of {param.name} is left ({texts})"
            )
        domain = Choices(values=left, labels=tuple(label(value) for value in left))
        params.append(dataclasses.replace(param, domain=domain))
        dropped += [
            Dropped(param=param.name, value=value, reason=reasons[value], topology=space.topology)
            for value in gone
        ]
    return dataclasses.replace(space, params=tuple(params), dropped=tuple(dropped))


def _check_default_cut(space: SearchSpace, topology: Topology) -> None:
    """The baseline must be cut somehow; where nothing says how, it is by rows."""
    if _ROWS not in space.knobs:
        return  # a command that is not told how many rows to take
    named = {**space.baseline, **space.fixed}
    if named.get(_BATCHING) == _PACKED and named.get(_TOKENS) is None:
        section = "fixed" if _BATCHING in space.fixed else "baseline"
        raise space.places[f"{section}.{_BATCHING}"].error(
            f"batching packed cannot be: {_NO_LIMIT}", hint=f"add max_tokens to {section}"
        )
    if all(named.get(name) is None for name in (_ROWS, _TOKENS)):
        hint = None
        if any(param.knob == _TOKENS for param in space.params):
            length = space.training.data.max_length
            hint = f"say how the baseline is cut, as in baseline: {{max_tokens: {length}}}"
        default = space.knobs[_ROWS].default
        _refuse(space, topology, _ROWS, default, space.place("workload.global_batch"), hint)


def _refuse(
    space: SearchSpace,
    topology: Topology,
    name: str,
    value: Any,
    place: Place,
    hint: str | None = None,
) -> None:
    reason = impossible(space, topology, name, value)
    if reason is not None:
        short = name.partition(".")[2]
        raise place.error(
            f"{short} {label(value)} cannot be: {reason}",
            hint=hint or _hint(space, topology, name),
        )


def impossible(space: SearchSpace, topology: Topology, name: str, value: Any) -> str | None:
    """Return why the knob ``name`` cannot have ``value`` here, or ``None``."""
    for refused, reason in space.knobs[name].refused:
        if type(refused) is type(value) and refused == value:
            return reason
    if name in space.limits.values and value in space.limits.values[name]:
        return space.limits.values[name][value]
    if value is None or isinstance(value, bool):
        return None
    if name == _BATCHING and value == _PACKED:
        return space.limits.packing or (None if _has_limit(space) else _NO_LIMIT)
    if name == _ROWS:
        batch, processes = space.workload.global_batch, topology.processes
        if batch % (value * processes) != 0:
            name = "samples_per_iteration" if space.is_command else "global_batch"
            return (
                f"{name} {batch} is not divisible by micro_batch {value} × "
                f"{processes} {_processes(processes)} = {value * processes}"
            )
    if name == _TOKENS and value < space.training.data.max_length:
        return (
            f"a sample can have max_length {space.training.data.max_length} tokens, "
            f"more than max_tokens {value}"
        )
    if name == _RESHARD:
        return _refused_group(value, topology.processes)
    if name in _DIVIDING and topology.processes % value != 0:
        return _not_dividing(topology.processes)
    return None


def _has_limit(space: SearchSpace) -> bool:
    tuned = any(param.knob == _TOKENS for param in space.declared)
    return tuned or any(given.get(_TOKENS) is not None for given in (space.fixed, space.baseline))


def _refused_group(value: int, processes: int) -> str | None:
    """As ``torch/distributed/fsdp/_fully_shard/_fsdp_init.py``, which wants a true divisor."""
    if value == processes:
        return f"on {processes} {_processes(processes)} it is the same as true"
    return _not_dividing(processes) if processes % value != 0 else None


def _not_dividing(processes: int) -> str:
    return f"it does not divide the {processes} {_processes(processes)}"


def _processes(number: int) -> str:
    return "process" if number == 1 else "processes"


def _restrict(
    space: SearchSpace, topology: Topology, param: Param
) -> tuple[Domain | None, list[Dropped]]:
    """Return what is left of a domain, and what was dropped."""
    domain = param.domain
    if isinstance(domain, Choices):
        return _restrict_choices(space, topology, param, domain)
    if isinstance(domain, FloatRange) or param.knob not in (
        _ROWS,
        _TOKENS,
        _RESHARD,
        *_DIVIDING,
    ):
        return domain, []
    if param.knob == _TOKENS:
        return _raise_low(space, topology, param, domain)
    total = topology.processes
    if param.knob == _ROWS:
        total = space.workload.global_batch
    candidates = sorted(v for v in _divisors(total) if domains.contains(domain, v))
    left = [v for v in candidates if impossible(space, topology, param.knob, v) is None]
    if not left:
        first = domain.low
        reason = impossible(space, topology, param.knob, first) or "no value divides"
        return None, [_dropped(param, first, reason, topology)]
    values = tuple(left)
    restricted = Choices(values=values, labels=tuple(label(value) for value in values))
    if len(left) == (domain.high - domain.low) // domain.step + 1 + len(domain.also):
        return restricted, []
    words = f"only {', '.join(restricted.labels)} can hold on {topology.processes} processes"
    return restricted, [_dropped(param, domain_words(domain), words, topology)]


def _restrict_choices(
    space: SearchSpace, topology: Topology, param: Param, domain: Choices
) -> tuple[Domain | None, list[Dropped]]:
    left: list[Any] = []
    gone: list[Dropped] = []
    for value in domain.values:
        reason = impossible(space, topology, param.knob, value)
        if reason is None:
            left.append(value)
        else:
            gone.append(_dropped(param, value, reason, topology))
    if not left:
        return None, gone
    return Choices(values=tuple(left), labels=tuple(label(value) for value in left)), gone


def _raise_low(
    space: SearchSpace, topology: Topology, param: Param, domain: IntRange
) -> tuple[Domain | None, list[Dropped]]:
    """A range of token limits begins where the longest sample fits."""
    bound = space.training.data.max_length
    also = tuple(value for value in domain.also if value >= bound)
    steps = max(0, math.ceil((bound - domain.low) / domain.step))
    low = domain.low + steps * domain.step
    reason = impossible(space, topology, param.knob, domain.low) or ""
    if low == domain.low and also == domain.also:
        return domain, []
    gone = [_dropped(param, f"below {bound}", reason, topology)]
    if low > domain.high:
        if not also:
            return None, gone
        return Choices(values=also, labels=tuple(label(value) for value in also)), gone
    return dataclasses.replace(domain, low=low, also=also), gone


def _dropped(param: Param, value: Any, reason: str, topology: Topology) -> Dropped:
    return Dropped(param=param.name, value=value, reason=reason, topology=topology)


def _divisors(number: int) -> Iterable[int]:
    for low in range(1, math.isqrt(number) + 1):
        if number % low == 0:
            yield from {low, number // low}


def _hint(space: SearchSpace, topology: Topology, name: str) -> str | None:
    if name == _ROWS:
        share = space.workload.global_batch // topology.processes
        if share * topology.processes != space.workload.global_batch:
            return (
                f"choose a global_batch that the {topology.processes} "
                f"{_processes(topology.processes)} divide, or cut by max_tokens"
            )
        return f"micro_batch must divide {share}, the samples of each process"
    if name == _BATCHING:
        return "use padded or sorted" if space.limits.packing else "tune or set max_tokens"
    if name == _TOKENS:
        return f"max_tokens must be at least {space.training.data.max_length}"
    return None
