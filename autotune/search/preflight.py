"""All checks before the first launch. Nothing is written: a refused search leaves no trace."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from autotune.backends.base import backend_of
from autotune.contract import hostmemory
from autotune.contract.folder import StudyFolder, check_study_name
from autotune.contract.plan import Topology, Workload
from autotune.errors import EnvironmentFault, InputError, NothingFeasibleError
from autotune.search import disk
from autotune.search.anchors import Anchor, find_anchors
from autotune.search.devices import Devices, find_topology, visible_devices
from autotune.search.earlier import earlier_bests
from autotune.search.packages import known_bad
from autotune.search.planning import Planner
from autotune.search.proposals import sampler_name
from autotune.search.request import SearchRequest
from autotune.search.workload import context_of, make_workload
from autotune.space.loader import find_space, load_space
from autotune.space.search_space import SearchSpace
from autotune.store.provenance import environment, environment_fingerprint

_BYTES: Final = {"fp32": 4, "bf16": 2}
_ADAM_BYTES: Final = 8
"""Two float32 moments a parameter."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prepared:
    """A search that may start."""

    folder: StudyFolder
    space: SearchSpace
    """Bound to the topology."""
    devices: Devices
    topology: Topology
    workload: Workload
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
    loaded = load_space(request.space, request.overrides)
    folder = StudyFolder.of(request.runs, study_name(request))
    trials = loaded.search.trials if request.trials is None else request.trials
    if trials < 1:
        raise InputError(f"--trials is {trials}", hint="give at least 1: the baseline")
    disk.check_writable(request.runs)
    disk.check_room(request.runs)
    sampler = sampler_name(loaded)
    _check_packages(loaded)
    devices = visible_devices()
    topology = find_topology(devices, loaded.processes)
    space = loaded.on(topology)
    _take_earlier_tokens(folder, staging)
    workload = make_workload(space, data_folder=staging)
    facts = environment(topology)
    planner = Planner(study=folder.name, space=space, workload=workload, topology=topology)
    baseline = space.baseline_config()
    refusal = planner.refusal(baseline)
    if refusal is not None:
        raise InputError(
            f"{space.file}: the baseline cannot run here: {refusal}",
            hint="change baseline, fixed or workload in the space file",
        )
    _check_memory(workload, topology, devices)
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
        notes=_notes(space, devices, topology),
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


def _take_earlier_tokens(folder: StudyFolder, staging: Path) -> None:
    """Spare a resumed study the tokenising: tokens of the same request are found by name."""
    for path in folder.data.glob("tokens-*.json"):
        with contextlib.suppress(OSError):
            shutil.copy2(path, staging / path.name)


def least_memory_bytes(workload: Workload) -> int:
    """Bytes of weights, gradients and Adam's moments of one copy of the model.

    However finely it is sharded, all ranks together hold at least this.
    """
    precision = workload.precision
    each = _BYTES[precision.master] + _BYTES[precision.accumulate] + _ADAM_BYTES
    return workload.model.num_parameters * each


def _check_memory(workload: Workload, topology: Topology, devices: Devices) -> None:
    need = least_memory_bytes(workload)
    if topology.device == "cuda":
        have = sum(one.memory_bytes for one in devices.found[: topology.processes])
    else:
        have = hostmemory.total_bytes()
    if need > have:
        gib = 1024**3
        raise NothingFeasibleError(
            f"{workload.model.name} cannot be trained here: weights, gradients and Adam's moments "
            f"take {need / gib:.1f} GiB over all processes, and {have / gib:.1f} GiB are there",
            hint="take a smaller model, bf16, or more devices",
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


def _notes(space: SearchSpace, devices: Devices, topology: Topology) -> tuple[str, ...]:
    notes = [
        f"{d.param} is not tuned: {d.reason}"
        if d.value is None
        else f"{d.param}: {d.value!r} is left out: {d.reason}"
        for d in space.dropped
    ]
    if devices.note:
        notes.append(f"GPUs are not used: {devices.note}")
    if topology.device == "cpu":
        notes.append(
            f"no GPU is used: {topology.processes} CPU processes show how it works; "
            "the times say nothing about a GPU"
        )
    return tuple(notes)


def plain_params(params: Mapping[str, Any]) -> str:
    """Parameters on one line, as a space file would write them."""
    return ", ".join(f"{name}={_shown(value)}" for name, value in params.items()) or "(none)"


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "null"
    if isinstance(value, int):
        return f"{value:_}"
    return f"{value:g}" if isinstance(value, float) else str(value)
