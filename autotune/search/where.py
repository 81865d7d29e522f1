"""Where trials run: this machine, or where the launcher says."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Final, cast

from autotune import registry
from autotune.contract import codec, jsonfile
from autotune.contract.folder import StudyFolder
from autotune.contract.plan import CommandWorkload, Topology, Workload
from autotune.errors import AutotuneError
from autotune.knobs.words import settings_words
from autotune.launchers.base import LauncherKind
from autotune.search.devices import Device, Devices, find_topology, visible_devices
from autotune.search.distributions import dimension
from autotune.search.planning import Planner
from autotune.search.proposals import MAX_LISTED, list_assignments, space_size
from autotune.search.request import SearchRequest
from autotune.space import domains
from autotune.space.search_space import SearchSpace
from autotune.store.provenance import environment
from autotune.store.records import StudyRecord

DEFAULT: Final = "local"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Where:
    """The place of a study's trials."""

    launcher: str
    """``NAME`` or ``NAME=ARGUMENT``; the same from whatever folder it is read again."""
    kind: LauncherKind
    devices: Devices
    topology: Topology
    environment: dict[str, Any]

    @property
    def is_here(self) -> bool:
        """Whether trials run on this machine."""
        return self.kind.site is None


def find_launcher(request: SearchRequest, folder: StudyFolder) -> tuple[str, LauncherKind]:
    """Return the launcher that was asked for, else the study's own, else this machine.

    Raises:
        InputError: There is no such launcher, or what it was given is wrong.
        EnvironmentFault: It cannot be loaded.
    """
    text = request.launcher or _recorded(folder) or DEFAULT
    name, given, argument = text.partition("=")
    kind = cast("LauncherKind", registry.load("launchers", name)(argument if given else None))
    return name if kind.argument is None else f"{name}={kind.argument}", kind


def _recorded(folder: StudyFolder) -> str | None:
    """The launcher that the study had; a record that cannot be read is complained of later."""
    try:
        data = jsonfile.read_json(folder.study_file)
        return codec.from_json(StudyRecord, data, where=str(folder.study_file)).launcher
    except (AutotuneError, OSError):
        return None


def look(launcher: str, kind: LauncherKind, space: SearchSpace) -> Where:
    """Return the place where the trials of ``space`` run.

    Raises:
        SpaceError: It has not the processes that the space wants.
    """
    site = kind.site
    if site is None:
        devices = visible_devices()
        with space.place("topology.processes").blamed():
            topology = find_topology(devices, space.processes)
        facts = environment(topology)
    else:
        found = tuple(Device(name=one.name, memory_bytes=one.memory_bytes) for one in site.devices)
        devices = Devices(found=found, host_memory_bytes=site.host_memory_bytes)
        topology, facts = site.topology, site.environment
        if space.processes not in (None, topology.processes):
            raise space.place("topology.processes").error(
                f"topology.processes is {space.processes}, and the launcher has trials of "
                f"{topology.processes}",
                hint="write topology: {processes: auto}",
            )
    return Where(
        launcher=launcher, kind=kind, devices=devices, topology=topology, environment=facts
    )


def launchable(space: SearchSpace, where: Where) -> SearchSpace:
    """Return ``space`` without values that no configuration of the launcher has, and say why.

    Raises:
        SpaceError: No value of a parameter is left.
    """
    for param in space.params:
        size = dimension(param.domain).size
        if size is None or size > MAX_LISTED:
            continue  # check_configs refuses it
        refused = where.kind.refused_values(param.knob, domains.values(param.domain))
        if refused:
            space = space.without_values(param.knob, refused)
    return space


def check_work(where: Where, space: SearchSpace, workload: CommandWorkload | Workload) -> None:
    """Refuse work that the launcher cannot do.

    Raises:
        SpaceError: It cannot; says why.
    """
    reason = where.kind.refused_work(workload)
    if reason is not None:
        raise space.place("workload").error(
            f"the launcher {where.launcher} cannot run this: {reason}"
        )


def check_configs(where: Where, planner: Planner) -> None:
    """Refuse a space of which the launcher cannot launch every configuration.

    Raises:
        SpaceError: The baseline or some other configuration is not known to it.
    """
    if where.is_here:
        return
    space = planner.space
    baseline = space.baseline_config()
    stated = planner.verified(baseline)
    reason = where.kind.refused_config(baseline.key, baseline.backend, baseline.values, stated)
    if reason is not None:
        raise space.place("baseline").error(
            f"the launcher {where.launcher} cannot run the baseline: {reason}",
            hint="state a baseline that it has",
        )
    size = space_size(space)
    if size is None or size > MAX_LISTED:
        raise space.place("params").error(
            f"the launcher {where.launcher} has single configurations, and this space has ranges",
            hint="list the recorded levels as choices",
        )
    missing = [one for one in list_assignments(space) if _is_missing(one, where, planner)]
    if missing:
        raise space.place("params").error(
            f"the launcher {where.launcher} lacks {len(missing)} configurations of this space, "
            f"such as {settings_words(missing[0])}",
            hint="list only recorded levels",
        )


def _is_missing(assignment: Mapping[str, Any], where: Where, planner: Planner) -> bool:
    space = planner.space
    config = space.resolve(assignment)
    if space.violated(config) is not None or planner.refusal(config) is not None:
        return False  # it is never launched
    stated = planner.verified(config)
    return where.kind.refused_config(config.key, config.backend, config.values, stated) is not None
