"""A study under this coordinator's lock, with all that launches its trials."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from autotune.contract import jsonfile
from autotune.contract.folder import StudyFolder
from autotune.contract.plan import CommandWorkload
from autotune.errors import EnvironmentFault, InputError
from autotune.launchers.base import Launcher, Order
from autotune.search.device_memory import DeviceMemory
from autotune.search.events import EventSink
from autotune.search.extensions import with_built_extensions
from autotune.search.finetuning import imported_once
from autotune.search.interrupts import Interrupts
from autotune.search.kernel_checks import with_right_kernels
from autotune.search.launching import Runner
from autotune.search.loop import Loop, LoopSettings
from autotune.search.mfu import flops_of
from autotune.search.preflight import Prepared
from autotune.search.projection import Projection
from autotune.search.request import SearchRequest
from autotune.space.model import CommandSpec
from autotune.store.database import Store, default_url
from autotune.store.lock import Held, hold
from autotune.store.recorder import StudyRecorder


@dataclasses.dataclass(frozen=True, kw_only=True)
class OpenStudy:
    """What works on one study."""

    prepared: Prepared
    """With the study's own copy of the data."""
    recorder: StudyRecorder
    runner: Runner
    loop: Loop


@contextlib.contextmanager
def open_study(
    request: SearchRequest,
    prepared: Prepared,
    store: Store,
    projection: Projection,
    events: EventSink,
    interrupts: Interrupts,
) -> Iterator[OpenStudy]:
    """Hold the study; at the end nothing of its launcher runs any more.

    Raises:
        EnvironmentFault: Another coordinator holds it, or its folder cannot be written.
        SpaceError: A kernel that is fixed, or the only one that is left, is wrong here, or an
            extension that such a value needs cannot be built.
        KeyboardInterrupt: The user asked to stop before anything was launched.
    """
    folder = prepared.folder
    with _study_lock(folder) as held:
        recorder = StudyRecorder(folder, store, held)
        prepared = _with_own_data(prepared)
        runner = Runner(
            launcher=_launcher(request, prepared),
            recorder=recorder,
            planner=prepared.planner,
            interrupts=interrupts,
            events=events,
            flops=flops_of(prepared.workload, prepared.topology, prepared.devices),
            devices=_devices(prepared, interrupts),
        )
        try:
            prepared = with_right_kernels(prepared, runner, events)
            prepared = with_built_extensions(prepared, runner, events)
            loop = Loop(
                settings=LoopSettings(
                    trials=prepared.trials, anchors=prepared.anchors, early_stop=request.early_stop
                ),
                planner=prepared.planner,
                recorder=recorder,
                runner=runner,
                projection=projection,
                interrupts=interrupts,
                events=events,
            )
            yield OpenStudy(prepared=prepared, recorder=recorder, runner=runner, loop=loop)
        finally:
            runner.close()


def open_store(request: SearchRequest) -> Store:
    """Open the database; one that is named and cannot be used leaves no runs folder behind."""
    if request.storage is not None:
        return Store(request.storage)
    url = default_url(request.runs)
    try:
        request.runs.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise jsonfile.unwritable(request.runs, error) from error
    return Store(url)


@contextlib.contextmanager
def _study_lock(folder: StudyFolder) -> Iterator[Held]:
    """Hold the study; a folder in which no study came to be is removed again.

    Verdicts on kernels stay: the same command then goes on with what was not compared yet. An error
    keeps the folder where something that was launched has written a log, which it may name.
    """
    logs = False
    with hold(folder) as held:
        try:
            yield held
        except (EnvironmentFault, InputError):
            logs = any(log.stat().st_size > 0 for log in folder.path.rglob("*.log"))
            raise
        finally:
            begun = folder.study_file.exists() or folder.has_kernel_verdicts()
            if not begun and not held.is_replaced and not logs:
                shutil.rmtree(folder.path, ignore_errors=True)


def _with_own_data(prepared: Prepared) -> Prepared:
    """Copy the tokens of a data set from the staging folder into the study's own."""
    if isinstance(prepared.workload, CommandWorkload):
        return prepared
    staged = prepared.workload.samples.token_file
    if staged is None:
        return prepared
    data = prepared.folder.data
    try:
        data.mkdir(parents=True, exist_ok=True)
        for source in Path(staged).parent.iterdir():
            target = data / source.name
            if not target.exists():
                part = target.with_name(f".{source.name}.part")
                shutil.copy2(source, part)
                part.replace(target)
    except OSError as error:
        raise jsonfile.unwritable(data, error) from error
    token_file = str(data / Path(staged).name)
    samples = dataclasses.replace(prepared.workload.samples, token_file=token_file)
    workload = dataclasses.replace(prepared.workload, samples=samples)
    planner = dataclasses.replace(prepared.planner, workload=workload)
    return dataclasses.replace(prepared, workload=workload, planner=planner)


def _launcher(request: SearchRequest, prepared: Prepared) -> Launcher:
    folder, topology, space = prepared.folder, prepared.topology, prepared.space
    if request.make_launcher is not None:
        return request.make_launcher(folder, topology, space)
    return prepared.where.kind.launcher(
        Order(
            study=folder,
            topology=topology,
            backends=space.backends,
            is_command=isinstance(space.workload, CommandSpec),
            modules=() if space.is_command else imported_once(space.training.finetune),
            seed=space.search.seed,
        )
    )


def _devices(prepared: Prepared, interrupts: Interrupts) -> Callable[[], DeviceMemory] | None:
    """How to watch the memory of the devices that trials use; ``None`` where none is here."""
    if prepared.topology.device != "cuda" or not prepared.where.is_here:
        return None
    uuids = [device.uuid for device in prepared.devices.found]
    return lambda: DeviceMemory(uuids, wait=interrupts.wait)
