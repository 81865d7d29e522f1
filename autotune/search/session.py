"""A whole search: checks, study, loop, confirmation. The one function that the command calls."""

from __future__ import annotations

import contextlib
import dataclasses
import shlex
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

from autotune import registry
from autotune.contract import jsonfile
from autotune.contract.duration import seconds_text
from autotune.contract.folder import StudyFolder
from autotune.contract.plan import CommandWorkload, Topology
from autotune.errors import InterruptedSearch
from autotune.launchers.base import Launcher
from autotune.search import history
from autotune.search.confirm import confirm
from autotune.search.device_memory import DeviceMemory
from autotune.search.events import EventSink, Message, SearchStarted
from autotune.search.interrupts import Interrupts
from autotune.search.launching import Runner
from autotune.search.loop import Loop, LoopSettings
from autotune.search.mfu import flops_of
from autotune.search.preflight import Prepared, prepare
from autotune.search.projection import Projection
from autotune.search.request import SearchRequest, SearchResult
from autotune.search.resume import begin, go_on
from autotune.space.model import CommandSpec
from autotune.space.search_space import SearchSpace
from autotune.store.database import Store, default_url
from autotune.store.lock import hold
from autotune.store.recorder import StudyRecorder


def run_search(
    request: SearchRequest, events: EventSink, *, interrupts: Interrupts | None = None
) -> SearchResult:
    """Search until the study has its trials, confirm the best, and return the verdict.

    Args:
        request: What is asked for.
        events: Hears what happens.
        interrupts: Signals; ``None`` makes one that listens to the process's own.

    Raises:
        InputError: The input is wrong; no study was made.
        EnvironmentFault: The machine is at fault; what was measured is kept.
        NothingFeasibleError: The baseline failed, or trials crash alike.
        InterruptedSearch: It was stopped; the hint has the command that resumes.
    """
    own = Interrupts() if interrupts is None else contextlib.nullcontext(interrupts)
    staging = tempfile.TemporaryDirectory(prefix="autotune-")
    with own as signals, staging:
        try:
            with signals.at_once():
                prepared = prepare(request, staging=Path(staging.name))
                store = _open_store(request)
        except KeyboardInterrupt:
            raise InterruptedSearch(
                "interrupted before anything was started", hint=_resume_hint(request)
            ) from None
        with contextlib.closing(store):
            return _search(request, prepared, store, events, signals, staging.cleanup)


def dry_run(request: SearchRequest) -> Prepared:
    """Check everything as a search would, and start and write nothing."""
    with tempfile.TemporaryDirectory(prefix="autotune-") as staging:
        return prepare(request, staging=Path(staging))


def _search(
    request: SearchRequest,
    prepared: Prepared,
    store: Store,
    events: EventSink,
    interrupts: Interrupts,
    end_staging: Callable[[], None],
) -> SearchResult:
    folder = prepared.folder
    projection = Projection(store, folder.name, prepared.space, events)
    projection.check()
    with _study_lock(folder):
        recorder = StudyRecorder(folder, store)
        make = request.make_launcher or _local
        prepared = _with_own_data(prepared)
        end_staging()  # not at the end: a killed coordinator should leave nothing outside
        runner = Runner(
            launcher=make(folder, prepared.topology, prepared.space),
            recorder=recorder,
            planner=prepared.planner,
            interrupts=interrupts,
            events=events,
            flops=flops_of(prepared.workload, prepared.topology, prepared.devices),
            devices=_devices(prepared, interrupts),
        )
        try:
            _enter(prepared, recorder, runner, store, projection, events)
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
            loop.run()
            verdict = confirm(loop, recorder, events)
        except (InterruptedSearch, KeyboardInterrupt):
            raise InterruptedSearch(
                _so_far(recorder, prepared.trials), hint=_resume_hint(request)
            ) from None
        finally:
            runner.close()
        return SearchResult(contents=recorder.contents(), verdict=verdict)


def _enter(
    prepared: Prepared,
    recorder: StudyRecorder,
    runner: Runner,
    store: Store,
    projection: Projection,
    events: EventSink,
) -> None:
    """Create the study or go on with it, and say which."""
    resumed = recorder.study() is not None
    for note in prepared.notes:
        events(Message(text=note))
    if resumed:
        opening = go_on(recorder.contents(), prepared)
        if opening.messages:
            events(Message(text="\n".join(opening.messages), level="warning"))
        recorder.save_study(opening.record)
    else:
        # A study exists only once its trials can be launched.
        runner.start()
        stale = store.study(prepared.folder.name) is not None
        recorder.save_study(begin(prepared))
        if stale:
            store.replace(recorder.contents())
            text = "an earlier study of this name, whose folder is gone, was replaced"
            events(Message(text=text, level="warning"))
    for problem in recorder.problems:
        events(Message(text=problem, level="warning"))
    projection.open(recorder.contents(), anew=not resumed)
    contents = recorder.contents()
    events(
        SearchStarted(
            study=prepared.folder.name,
            trials=prepared.trials,
            counted=history.counted(contents),
            sampler=prepared.sampler,
            observations=len(history.observations(contents, prepared.space)),
            resumed=resumed,
            max_trial_time_s=prepared.space.search.max_trial_time_s,
        )
    )


def _open_store(request: SearchRequest) -> Store:
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
def _study_lock(folder: StudyFolder) -> Iterator[None]:
    """Hold the study; a folder in which no study came to be is removed again."""
    with hold(folder):
        try:
            yield
        finally:
            if not folder.study_file.exists():
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


def _local(folder: StudyFolder, topology: Topology, space: SearchSpace) -> Launcher:
    local = registry.load("launchers", "local")
    warm = not isinstance(space.workload, CommandSpec)  # a command imports its libraries itself
    return cast(
        "Launcher",
        local(folder, topology.processes, topology.device, warm, backends=space.backends),
    )


def _devices(prepared: Prepared, interrupts: Interrupts) -> Callable[[], DeviceMemory] | None:
    """How to watch the memory of the devices that trials use; ``None`` on a machine without."""
    if prepared.topology.device != "cuda":
        return None
    uuids = [device.uuid for device in prepared.devices.found]
    return lambda: DeviceMemory(uuids, wait=interrupts.wait)


def _so_far(recorder: StudyRecorder, trials: int) -> str:
    """One line: how far it came, and the best so far."""
    if recorder.study() is None:
        return "interrupted before the first trial"
    contents = recorder.contents()
    text = f"interrupted after {history.counted(contents)} of {trials} trials"
    ranked, baseline = history.ranking(contents), contents.baseline()
    if not ranked or baseline is None:
        return text
    best = history.s_per_it(contents, ranked[0].number)
    base = history.s_per_it(contents, baseline.number)
    if best is None or base is None:
        return text
    speed = f"{seconds_text(best)} s/it ({base / best:.2f}×)"
    return f"{text}; best so far: trial {ranked[0].number}, {speed}"


def _resume_hint(request: SearchRequest) -> str:
    return f"go on with: {shlex.join(request.command)}"
