"""All checks before the first launch. Nothing is written: a refused search leaves no trace."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import os
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from autotune.backends.base import backend_of
from autotune.contract.folder import StudyFolder, check_study_name
from autotune.contract.plan import CommandWorkload, Topology, Workload
from autotune.errors import EnvironmentFault, InputError
from autotune.search import disk
from autotune.search.anchors import Anchor, find_anchors
from autotune.search.automatic import resolve_auto
from autotune.search.available import available
from autotune.search.devices import Devices
from autotune.search.earlier import earlier_bests
from autotune.search.experts import unknown_experts
from autotune.search.finetuning import check_finetuning
from autotune.search.fitting import fitting
from autotune.search.kernels import limits_of
from autotune.search.packages import known_bad
from autotune.search.planning import Planner
from autotune.search.proposals import Exhausted, look_around, sampler_name
from autotune.search.request import SearchRequest
from autotune.search.site import with_site_values
from autotune.search.where import (
    Where,
    check_configs,
    check_work,
    find_launcher,
    launchable,
    look,
)
from autotune.search.workload import command_workload, context_of, make_workload
from autotune.space.canonical import label
from autotune.space.loader import find_space, load_space, parse_space
from autotune.space.model import CommandSpec, Config, Limits
from autotune.space.search_space import SearchSpace
from autotune.space.settings import MAX_TRIALS
from autotune.store.database import default_url
from autotune.store.provenance import environment_fingerprint

SHOWN_REASONS: Final = 3
"""Reasons that one error lists."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prepared:
    """A search that may start."""

    folder: StudyFolder
    space: SearchSpace
    """Bound to the topology."""
    where: Where
    workload: CommandWorkload | Workload
    context: str
    sampler: str
    trials: int
    planner: Planner
    anchors: tuple[Anchor, ...]
    notes: tuple[str, ...]
    """What the user should know before it starts."""

    @property
    def devices(self) -> Devices:
        """The devices that trials may use."""
        return self.where.devices

    @property
    def topology(self) -> Topology:
        """Where the ranks of a trial run."""
        return self.where.topology

    @property
    def environment(self) -> dict[str, Any]:
        """What the study records of the machine."""
        return self.where.environment


def prepare(request: SearchRequest, *, staging: Path) -> Prepared:
    """Check everything that can be checked without a launch.

    Args:
        request: What is asked for.
        staging: Empty folder outside the runs folder, for the tokens of a data set.

    Raises:
        InputError: The space file, an option, the model or the data are wrong.
        EnvironmentFault: The machine lacks something.
        NothingFeasibleError: The baseline can be seen not to run.
    """
    loaded = _load(request)
    folder = StudyFolder.of(request.runs, study_name(request))
    trials = loaded.search.trials if request.trials is None else request.trials
    if not 1 <= trials <= MAX_TRIALS:
        raise InputError(
            f"--trials is {trials}",
            hint=f"give at least 1, the baseline, and at most {MAX_TRIALS:,}",
        )
    disk.check_writable(request.runs)
    disk.check_room(request.runs)
    if request.storage is None:
        default_url(request.runs)  # a path that no database can have is refused in a dry run, too
    sampler = sampler_name(loaded)
    where = look(*find_launcher(request, folder), loaded)
    loaded, of_site = _as_it_is_here(loaded, where)
    topology = where.topology
    automatic: tuple[str, ...] = ()
    if isinstance(loaded.workload, CommandSpec):
        workload: CommandWorkload | Workload = command_workload(loaded.workload)
        space = _possible(loaded.on(topology), where)
    else:
        _take_earlier_tokens(folder, staging)
        workload, space, automatic = _training(loaded, where, staging)
    check_work(where, space, workload)
    planner = Planner(study=folder.name, space=space, workload=workload, topology=topology)
    _check_baseline(space, planner)
    few = _check_rest(space, planner)
    check_configs(where, planner)
    earlier = earlier_bests(request.runs, but=folder.name, workload=workload, topology=topology)
    return Prepared(
        folder=folder,
        space=space,
        where=where,
        workload=workload,
        context=context_of(workload, topology, environment_fingerprint(where.environment)),
        sampler=sampler,
        trials=trials,
        planner=planner,
        anchors=find_anchors(space, workload, earlier) if request.anchors else (),
        notes=(*_notes(space, workload, where), *automatic, *of_site, *few),
    )


def without(
    prepared: Prepared, gone: Mapping[str, Mapping[Any, str]], hint: Callable[[str], str]
) -> Prepared:
    """Return ``prepared`` without values that proved impossible here since it was made.

    Args:
        prepared: The checked search.
        gone: Full knob name to the values, each with the reason; the notes say them.
        hint: What to do where such a value is fixed or the baseline's, of the full knob name.

    Raises:
        SpaceError: One of them is fixed or the baseline's, or none is left of a parameter.
        InputError: No configuration that is left may run.
    """
    if not gone:
        return prepared
    space = prepared.space
    for knob, reasons in gone.items():
        _refuse_stated(space, knob, reasons, hint)
        space = space.without_values(knob, reasons)
    notes = [
        _left_out(knob, value, reason)
        for knob, reasons in gone.items()
        for value, reason in reasons.items()
    ]
    planner = dataclasses.replace(prepared.planner, space=space)
    _check_baseline(space, planner)
    few = _check_rest(space, planner)
    return dataclasses.replace(
        prepared,
        space=space,
        planner=planner,
        anchors=tuple(one for one in prepared.anchors if space.contains(one.assignment)),
        notes=(*prepared.notes, *notes, *few),
    )


def _refuse_stated(
    space: SearchSpace, knob: str, reasons: Mapping[Any, str], hint: Callable[[str], str]
) -> None:
    """What is fixed, or run today, cannot be left out; unsaid, that is what the library does.

    Where several backends are tuned, one that is not the baseline's may have fixed knobs.
    """
    stated = {**space.baseline_config().values, **space.baseline, **space.fixed}
    if knob in stated and stated[knob] in reasons:
        value, name = stated[knob], knob.partition(".")[2]
        raise space.place_of_value(knob).error(
            f"{name} {label(value)} cannot be: {reasons[value]}", hint=hint(knob)
        )


def _left_out(name: str, value: Any, reason: str) -> str:
    shown = repr(value) if isinstance(value, str) else label(value)
    return f"{name}: {shown} is left out: {reason}"


def _as_it_is_here(space: SearchSpace, where: Where) -> tuple[SearchSpace, tuple[str, ...]]:
    """The space with what this machine has set, if trials run on it and their program is there."""
    if not where.is_here:
        return space, ()
    if isinstance(space.workload, CommandSpec):
        _check_program(space, space.workload.command[0])
    else:
        _check_packages(space)
    return with_site_values(space, os.environ)


def _possible(space: SearchSpace, where: Where) -> SearchSpace:
    """The space without what the place of its trials lacks."""
    return available(space, where.topology) if where.is_here else launchable(space, where)


def _load(request: SearchRequest) -> SearchSpace:
    if request.text is None:
        return load_space(request.space, request.overrides)
    return parse_space(
        request.text,
        file=request.space,
        overrides=request.overrides,
        base=Path(request.space).absolute().parent,
    )


def study_name(request: SearchRequest) -> str:
    """The study's name: as given, else the space file's stem made safe.

    Raises:
        InputError: The given name is not safe.
    """
    if request.study is not None:
        return check_study_name(request.study)
    stem = find_space(request.space).stem
    safe = re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("-._") or "study"
    return check_study_name(safe[:100])


def _training(
    loaded: SearchSpace, where: Where, staging: Path
) -> tuple[Workload, SearchSpace, tuple[str, ...]]:
    """The workload of autotune's own step, the space without what it cannot do, and notes."""
    topology, devices = where.topology, where.devices
    if where.is_here:
        check_finetuning(loaded.training.finetune, topology)
    workload = make_workload(loaded.on(topology), data_folder=staging)
    site = where.kind.site
    limits = (
        limits_of(loaded, workload, topology, devices) if site is None else Limits(facts=site.facts)
    )
    space = _possible(loaded.on(topology, limits), where)
    space = fitting(space, workload, topology, devices)
    space, automatic = resolve_auto(space, workload)
    return workload, space, automatic


def _take_earlier_tokens(folder: StudyFolder, staging: Path) -> None:
    """Spare a resumed study the tokenising: tokens of the same request are found by name."""
    for path in folder.data.glob("tokens-*.json"):
        with contextlib.suppress(OSError):
            shutil.copy2(path, staging / path.name)


def _check_baseline(space: SearchSpace, planner: Planner) -> None:
    refusal = planner.refusal(space.baseline_config())
    if refusal is None:
        return
    is_knob = refusal.about in space.knobs
    place = space.place_of_value(refusal.about) if is_knob else space.place(refusal.about)
    raise place.error(
        f"the baseline cannot run here: {refusal.reason}",
        hint="change baseline, fixed or workload in the space file",
    )


def _check_rest(space: SearchSpace, planner: Planner) -> tuple[str, ...]:
    """Refuse a space in which nothing may run; return a note where that is only likely."""

    def reject(config: Config) -> str | None:
        refusal = planner.refusal(config)
        return None if refusal is None else refusal.reason

    found = look_around(space, reject)
    if not isinstance(found, Exhausted):
        return ()
    most = sorted(found.rejected, key=lambda reason: -found.rejected[reason])
    shown = "; ".join(most[:SHOWN_REASONS]) + ("; …" if len(most) > SHOWN_REASONS else "")
    if not found.listed:
        number = sum(found.rejected.values())
        return (f"none of {number:,} configurations drawn at random may run ({shown})",)
    place = space.place(most[0] if len(most) == 1 else "params")
    raise place.error(
        f"no configuration of the space may run: {shown}", hint="widen params, or loosen this"
    )


def _check_program(space: SearchSpace, program: str) -> None:
    if shutil.which(program) is None:
        raise space.place("workload.command").error(
            f"there is no program {program!r} to run",
            hint="give its path, from the present folder or whole, or put its folder on PATH",
        )


def _check_packages(space: SearchSpace) -> None:
    for backend in space.backends:
        wanted = {name.split(".")[0] for name in backend_of(backend).preload}
        for package in sorted({"torch", "transformers", *wanted}):
            if importlib.util.find_spec(package) is None:
                raise EnvironmentFault(
                    f"the package {package}, which {backend} needs, is not installed",
                    hint=f"pip install {package} into the environment that runs autotune",
                )
        for bad in known_bad(backend):
            raise EnvironmentFault(
                f"{bad.package} {bad.version} cannot be used with {backend}: {bad.reason}",
                hint=f"pip install --upgrade {bad.package}",
            )


def _notes(
    space: SearchSpace, workload: CommandWorkload | Workload, where: Where
) -> tuple[str, ...]:
    notes = [
        f"{d.param} is not tuned: {d.reason}"
        if d.value is None
        else _left_out(d.param, d.value, d.reason)
        for d in space.dropped
    ]
    model = workload.model if isinstance(workload, Workload) else None
    if model is not None and model.hidden_size_from != "hidden_size":
        size = model.config["hidden_size"]
        notes.append(f"the model's hidden size {size} is {model.hidden_size_from} of its config")
    if isinstance(workload, Workload) and where.is_here:  # a launch that is played cannot hang
        experts = unknown_experts(space, workload)
        notes += [experts] if experts is not None else []
    if where.devices.note:
        notes.append(f"GPUs are not used: {where.devices.note}")
    if where.topology.device == "cpu" and where.is_here:
        notes.append(
            f"no GPU is used: {where.topology.processes} CPU processes show how it works; "
            "the times say nothing about a GPU"
        )
    return tuple(notes)
