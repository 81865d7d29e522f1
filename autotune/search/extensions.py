"""Before trial 0: what an engine would compile inside a trial, at first use, is built.

Each extension has a launch of its own: one process, in no trial's time limits, which may keep
every core busy, whereas the ranks of a trial would wait for the one that compiles. It is loaded
there in every search: only then is it known to be in the folder that this search's ranks will
look into, which is another one while a second search runs, and where nothing has to be compiled
that takes seconds. What cannot be built is taken out of the space with the compiler's words.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, Final

from autotune.contract.outcome import Failure, RankRecord
from autotune.contract.plan import Deadlines, Plan, Reference, Workload
from autotune.errors import InputError
from autotune.search.events import EventSink, Message
from autotune.search.launching import Runner
from autotune.search.planning import STANDSTILL_S, Planner
from autotune.search.preflight import Prepared, without
from autotune.search.proposals import Exhausted, look_around
from autotune.space.canonical import label
from autotune.space.model import Choices, Config
from autotune.space.search_space import SearchSpace

BUILD_LIMIT_S: Final = 3600.0
"""Far beyond any build: on two cores one file of C++ with torch's headers takes a minute. A
compiler does not move a heartbeat, so there is no limit on standing still meanwhile."""
_BEFORE_BUILD: Final = ("launch", "init")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Use:
    """A value of a knob that needs an extension, in a configuration that may be launched."""

    knob: str
    """Full name."""
    value: Any
    extension: str
    config: Config


def with_built_extensions(prepared: Prepared, runner: Runner, events: EventSink) -> Prepared:
    """Return ``prepared`` without the values whose extension cannot be built here.

    Where trials run elsewhere, as those of a recorded table, there is nothing to build; what a
    command compiles, and with which interpreter, only its program knows.

    Raises:
        SpaceError: One of them is fixed or the baseline's, or none is left of a parameter.
        KeyboardInterrupt: The user asked to stop.
        EnvironmentFault: The launcher or the machine failed, twice.
    """
    if not isinstance(prepared.workload, Workload) or not prepared.where.is_here:
        return prepared
    reasons: dict[tuple[str, str], str] = {}
    gone: dict[str, dict[Any, str]] = {}
    for use in uses(prepared.space, prepared.planner):
        key = (use.config.backend, use.extension)
        if key not in reasons:
            reasons[key] = _build(prepared, use, len(reasons), runner, events)
        if reasons[key]:
            gone.setdefault(use.knob, {})[use.value] = reasons[key]
    return without(prepared, gone, _instead)


def build_beside(prepared: Prepared, config: Config, runner: Runner, events: EventSink) -> None:
    """Build what a configuration needs that the space does not offer, or that lies outside it.

    Raises:
        InputError: It cannot be built.
        KeyboardInterrupt: The user asked to stop.
        EnvironmentFault: The launcher or the machine failed, twice.
    """
    if not prepared.where.is_here:
        return
    offered = {(use.knob, use.value) for use in uses(prepared.space, prepared.planner)}
    for name, value in config.values.items():
        extension = prepared.space.knobs[name].extension(value)
        if extension is None or name in config.dead or (name, value) in offered:
            continue
        use = Use(knob=name, value=value, extension=extension, config=config)
        reason = _build(prepared, use, 0, runner, events)
        if reason:
            raise InputError(f"{name.partition('.')[2]} {label(value)} cannot be: {reason}")


def uses(space: SearchSpace, planner: Planner) -> Iterator[Use]:
    """Every value that the space offers or the baseline has, and that needs an extension.

    One that is dead, or refused, in all configurations needs none.
    """
    compiling = [k for k in space.knobs.values() if any(n.kind == "compiler" for n in k.needs)]
    for knob in compiling:
        for value in _offered(space, knob.full_name):
            extension = knob.extension(value)
            if extension is None:
                continue
            config = _config_with(space, planner, knob.full_name, value)
            if config is not None:
                yield Use(knob=knob.full_name, value=value, extension=extension, config=config)


def _offered(space: SearchSpace, knob: str) -> tuple[Any, ...]:
    """Values of a knob that is tuned or stated; at its default nothing is compiled.

    Extensions belong to switches and choices, as with other needs of single values
    (``search/available.py``); a range may be too long to be listed.
    """
    stated = [section[knob] for section in (space.fixed, space.baseline) if knob in section]
    tuned = [
        value
        for param in space.params
        if param.knob == knob and isinstance(param.domain, Choices)
        for value in param.domain.values
    ]
    return tuple(dict.fromkeys([*stated, *tuned]))


def _config_with(space: SearchSpace, planner: Planner, knob: str, value: Any) -> Config | None:
    """A configuration that may be launched and in which the knob has this value, and it counts."""

    def reject(config: Config) -> str | None:
        if config.values.get(knob) != value or knob in config.dead:
            return "another value"
        refusal = planner.refusal(config)
        return None if refusal is None else refusal.reason

    baseline = space.baseline_config()
    if reject(baseline) is None:
        return baseline
    found = look_around(space, reject)
    return None if isinstance(found, Exhausted) else found.config


def _build(prepared: Prepared, use: Use, number: int, runner: Runner, events: EventSink) -> str:
    """Build the extension; return why it cannot be, or nothing."""
    name = use.knob.partition(".")[2]
    events(Message(text=f"the extension {use.extension}, which {name} needs, is built or found"))
    fault = f"the extension {use.extension} could not be built"
    found, folder = runner.run_alone(_plan(prepared, use, number), fault=fault)
    if isinstance(found, Failure):
        return f"{found.reason} (log: {folder.log_file(0).relative_to(prepared.folder.path)})"
    events(Message(text=_outcome(found)))
    return ""


def _plan(prepared: Prepared, use: Use, number: int) -> Plan:
    plan = prepared.planner.plan(
        use.config,
        number=number,
        attempt=0,
        purpose="extension",
        reference=Reference(),
        racing=None,
    )
    one = dataclasses.replace(plan.topology, processes=1, devices_per_node=1, nodes=1)
    limits = {phase: STANDSTILL_S[phase] for phase in _BEFORE_BUILD}
    deadlines = Deadlines(total_s=BUILD_LIMIT_S, phase_s=limits)
    return dataclasses.replace(plan, topology=one, verify=(use.knob,), deadlines=deadlines)


def _outcome(record: RankRecord) -> str:
    built = record.extension
    assert built is not None, "a rank that builds an extension says what came of it"
    if built.compiled:
        return f"the extension {built.extension} was built in {built.seconds:.0f} s"
    return f"the extension {built.extension} was there, and loaded in {built.seconds:.1f} s"


def _instead(knob: str) -> str:
    del knob
    return "see the log in the study's folder, or take the value out of the file"
