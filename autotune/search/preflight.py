"""All checks before the first launch. Nothing is written: a refused search leaves no trace."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import os
import re
import shutil
from collections.abc import Sequence
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
from autotune.search.devices import Devices, find_topology, visible_devices
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
from autotune.search.workload import command_workload, context_of, make_workload
from autotune.space.loader import find_space, load_space, parse_space
from autotune.space.model import CommandSpec, Config
from autotune.space.search_space import SearchSpace
from autotune.space.settings import MAX_TRIALS
from autotune.store.provenance import environment, environment_fingerprint

SHOWN_REASONS: Final = 3
"""Reasons that one error lists."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prepared:
    """A search that may start."""

    folder: StudyFolder
    space: SearchSpace
    """Bound to the topology."""
    devices: Devices
    topology: Topology
    workload: CommandWorkload | Workload
    environment: dict[str, Any]
    context: str
    sampler: str
    trials: int
    planner: Planner
    anchors: tuple[Anchor, ...]
    notes: tuple[str, ...]
    """What the user should know before it starts."""


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
    loaded, of_site = with_site_values(_load(request), os.environ)
    folder = StudyFolder.of(request.runs, study_name(request))
    trials = loaded.search.trials if request.trials is None else request.trials
    if not 1 <= trials <= MAX_TRIALS:
        raise InputError(
            f"--trials is {trials}",
            hint=f"give at least 1, the baseline, and at most {MAX_TRIALS:,}",
        )
    disk.check_writable(request.runs)
    disk.check_room(request.runs)
    sampler = sampler_name(loaded)
    if isinstance(loaded.workload, CommandSpec):
        _check_program(loaded, loaded.workload.command[0])
    else:
        _check_packages(loaded)
    devices = visible_devices()
    with loaded.place("topology.processes").blamed():
        topology = find_topology(devices, loaded.processes)
    automatic: tuple[str, ...] = ()
    if isinstance(loaded.workload, CommandSpec):
        workload: CommandWorkload | Workload = command_workload(loaded.workload)
        space = available(loaded.on(topology), topology)
    else:
        _take_earlier_tokens(folder, staging)
        workload, space, automatic = _training(loaded, topology, devices, staging)
    facts = environment(topology)
    planner = Planner(study=folder.name, space=space, workload=workload, topology=topology)
    _check_baseline(space, planner)
    few = _check_rest(space, planner)
    earlier = earlier_bests(request.runs, but=folder.name, workload=workload, topology=topology)
    return Prepared(
        folder=folder,
        space=space,
        devices=devices,
        topology=topology,
        workload=workload,
        environment=facts,
        context=context_of(workload, topology, environment_fingerprint(facts)),
        sampler=sampler,
        trials=trials,
        planner=planner,
        anchors=find_anchors(space, workload, earlier) if request.anchors else (),
        notes=(*_notes(space, workload, devices, topology), *automatic, *of_site, *few),
    )


def narrowed(prepared: Prepared, space: SearchSpace, notes: Sequence[str]) -> Prepared:
    """Return ``prepared`` for a space that has lost some of its choices since.

    Raises:
        InputError: No configuration of it may run.
    """
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
    loaded: SearchSpace, topology: Topology, devices: Devices, staging: Path
) -> tuple[Workload, SearchSpace, tuple[str, ...]]:
    """The workload of autotune's own step, the space without what it cannot do, and notes."""
    space = loaded.on(topology)
    check_finetuning(space.training.finetune, topology)
    workload = make_workload(space, data_folder=staging)
    space = loaded.on(topology, limits_of(loaded, workload, topology, devices))
    space = fitting(available(space, topology), workload, topology, devices)
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
    space: SearchSpace,
    workload: CommandWorkload | Workload,
    devices: Devices,
    topology: Topology,
) -> tuple[str, ...]:
    notes = [
        f"{d.param} is not tuned: {d.reason}"
        if d.value is None
        else f"{d.param}: {d.value!r} is left out: {d.reason}"
        for d in space.dropped
    ]
    model = workload.model if isinstance(workload, Workload) else None
    if model is not None and model.hidden_size_from != "hidden_size":
        size = model.config["hidden_size"]
        notes.append(f"the model's hidden size {size} is {model.hidden_size_from} of its config")
    experts = unknown_experts(space, workload) if isinstance(workload, Workload) else None
    if experts is not None:
        notes.append(experts)
    if devices.note:
        notes.append(f"GPUs are not used: {devices.note}")
    if topology.device == "cpu":
        notes.append(
            f"no GPU is used: {topology.processes} CPU processes show how it works; "
            "the times say nothing about a GPU"
        )
    return tuple(notes)
