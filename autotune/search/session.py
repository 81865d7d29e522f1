"""A whole search: checks, study, loop, confirmation. The one function that the command calls."""

from __future__ import annotations

import contextlib
import shlex
import tempfile
from collections.abc import Callable
from pathlib import Path

from autotune.contract.duration import seconds_text
from autotune.errors import InterruptedSearch
from autotune.search import history
from autotune.search.confirm import confirm
from autotune.search.events import EventSink, Message, SearchStarted
from autotune.search.interrupts import Interrupts
from autotune.search.launching import Runner
from autotune.search.open_study import open_store, open_study
from autotune.search.preflight import Prepared, prepare
from autotune.search.projection import Projection
from autotune.search.request import SearchRequest, SearchResult
from autotune.search.resume import begin, go_on
from autotune.store.database import Store
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
                store = open_store(request)
        except KeyboardInterrupt:
            raise InterruptedSearch(
                "interrupted before anything was started", hint=_resume_hint(request)
            ) from None
        with contextlib.closing(store):
            try:
                return _search(request, prepared, store, events, signals, staging.cleanup)
            except KeyboardInterrupt:
                raise InterruptedSearch(
                    "interrupted before the first trial", hint=_resume_hint(request)
                ) from None


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
    projection = Projection(store, prepared.folder.name, prepared.space, events)
    projection.check()
    with open_study(request, prepared, store, projection, events, interrupts) as study:
        end_staging()  # not at the end: a killed coordinator should leave nothing outside
        recorder = study.recorder
        try:
            _enter(study.prepared, recorder, study.runner, store, projection, events)
            study.loop.run()
            verdict = confirm(study.loop, recorder, events)
        except (InterruptedSearch, KeyboardInterrupt):
            raise InterruptedSearch(
                _so_far(recorder, prepared.trials), hint=_resume_hint(request)
            ) from None
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
