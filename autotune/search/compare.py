"""Two configurations of a study in alternating launches, by the code of the confirmation.

Both do the study's work on its topology and pass the same gates as any trial. A configuration
from a file becomes a trial that does not count. The launches are recorded as re-measurements, so
they also make the times of those configurations more exact in the report.
"""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
import time
from pathlib import Path
from typing import Any, Final, Literal

from autotune.analysis.launches import LaunchTime, summarise
from autotune.analysis.paired import Comparison, Turn, compare_turns
from autotune.contract.folder import StudyFolder
from autotune.errors import InputError, InterruptedSearch, NothingFeasibleError
from autotune.search import deepspeed_file, extensions, history, resume, ties
from autotune.search.events import EventSink, Message
from autotune.search.interrupts import Interrupts
from autotune.search.open_study import OpenStudy, open_store, open_study
from autotune.search.preflight import Prepared, prepare
from autotune.search.projection import Projection
from autotune.search.request import MakeLauncher, SearchRequest
from autotune.search.rounds import launches_by_number
from autotune.store import comparisons
from autotune.store.comparisons import ComparisonHeader, ComparisonResult
from autotune.store.records import COMPARED, StudyContents, StudyRecord, TrialRecord

ROUNDS: Final = 5
MIN_ROUNDS: Final = 2
"""Fewer rounds have no interval."""
MAX_ROUNDS: Final = 1000

Winner = Literal["a_faster", "b_faster", "tie"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompareRequest:
    """``autotune compare``, option by option."""

    names: tuple[str, str]
    """A trial's number, ``baseline``, ``best``, or the path of a DeepSpeed JSON."""
    best: int | None
    """The trial that ``best`` is; ``None`` where there is none yet."""
    study: StudyRecord
    runs: Path
    storage: str | None = None
    rounds: int = ROUNDS
    make_launcher: MakeLauncher | None = None
    """Makes a launcher in place of the study's own."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Side:
    """One of the two, after the last launch."""

    name: str
    trial: TrialRecord
    launches: tuple[float, ...]
    """s/it of its launches in this comparison, in order."""
    time: LaunchTime | None
    """Over all its launches in the study."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Compared:
    """What a comparison found."""

    study: str
    a: Side
    b: Side
    result: ComparisonResult
    contents: StudyContents
    notes: tuple[str, ...]


def run_compare(
    request: CompareRequest, events: EventSink, *, interrupts: Interrupts | None = None
) -> Compared:
    """Launch the two in turns and say which is faster; go on with one that was interrupted.

    Raises:
        InputError: One of the names means no configuration that can be compared here.
        NothingFeasibleError: The study's baseline has no valid time.
        EnvironmentFault: The machine is at fault; what was measured is kept.
        InterruptedSearch: It was stopped; the same call goes on.
    """
    if not MIN_ROUNDS <= request.rounds <= MAX_ROUNDS:
        raise InputError(
            f"--rounds is {request.rounds}",
            hint=f"give at least {MIN_ROUNDS}: one round shows no spread between launches",
        )
    if not StudyFolder.of(request.runs, request.study.name).study_file.exists():
        raise InputError(
            f"the folder of study {request.study.name!r} is not in {request.runs}",
            hint="give the folder that holds it with --runs",
        )
    own = Interrupts() if interrupts is None else contextlib.nullcontext(interrupts)
    with own as signals, tempfile.TemporaryDirectory(prefix="autotune-") as staging:
        search = _search_request(request)
        with signals.at_once():
            prepared = prepare(search, staging=Path(staging))
            store = open_store(search)
        with contextlib.closing(store):
            projection = Projection(store, prepared.folder.name, prepared.space, events)
            projection.check()
            try:
                with open_study(search, prepared, store, projection, events, signals) as study:
                    _check_context(study.recorder.contents(), prepared)
                    projection.open(study.recorder.contents(), anew=False)
                    return _compare(request, study, events)
            except (InterruptedSearch, KeyboardInterrupt):
                raise InterruptedSearch(
                    "the comparison was interrupted", hint="the same command goes on"
                ) from None


def _search_request(request: CompareRequest) -> SearchRequest:
    return SearchRequest(
        space=request.study.space_file,
        text=request.study.space_text,
        overrides=request.study.overrides,
        study=request.study.name,
        runs=request.runs,
        storage=request.storage,
        anchors=False,
        launcher=request.study.launcher,
        make_launcher=request.make_launcher,
    )


def _check_context(contents: StudyContents, prepared: Prepared) -> None:
    """Two sides could be launched in any context, but the baseline's numbers are of one.

    Raises:
        InputError: Workload, topology or environment are not those of the study.
        NothingFeasibleError: The baseline was not measured.
    """
    if contents.study.context != prepared.context:
        changed = "; ".join(resume.context_changes(contents.study, resume.begin(prepared)))
        raise InputError(
            f"study {contents.study.name!r} was measured under other conditions: {changed}",
            hint="let 'autotune search' go on with it first: it measures the baseline anew",
        )
    baseline = contents.baseline()
    if baseline is None or baseline.measurement is None:
        raise NothingFeasibleError(
            f"the baseline of study {contents.study.name!r} has no valid time, "
            "and every configuration's numbers are checked against it",
            hint="let 'autotune search' measure it first",
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Named:
    """What one of the two names means."""

    name: str
    trial: TrialRecord


def _compare(request: CompareRequest, study: OpenStudy, events: EventSink) -> Compared:
    notes: list[str] = []
    a, b = (_find(name, request, study, notes, events) for name in request.names)
    if a.trial.number == b.trial.number:
        raise InputError(
            f"{a.name} and {b.name} are the same configuration (trial {a.trial.number})"
        )
    header = _header(request, study, (a, b))
    result = take_turns(study, header, (a, b))
    comparisons.end(study.recorder.folder, result)
    contents = study.recorder.contents()
    return Compared(
        study=contents.study.name,
        a=_side(contents, header, a),
        b=_side(contents, header, b),
        result=result,
        contents=contents,
        notes=tuple(notes),
    )


def _find(
    name: str, request: CompareRequest, study: OpenStudy, notes: list[str], events: EventSink
) -> Named:
    contents = study.recorder.contents()
    if name == "baseline":
        baseline = contents.baseline()
        assert baseline is not None
        return Named(name=name, trial=baseline)
    if name == "best":
        if request.best is None:
            raise InputError(f"study {contents.study.name!r} has no best configuration yet")
        return Named(name=name, trial=_trial(contents, request.best))
    if name.isdecimal():
        return Named(name=f"trial {int(name)}", trial=_trial(contents, int(name)))
    path = Path(name)
    if not path.is_file():
        raise InputError(
            f"{name!r} is no trial, not 'baseline' or 'best', and there is no such file",
            hint="give a trial's number, baseline, best, or the path of a DeepSpeed JSON",
        )
    found = deepspeed_file.read(path, study.prepared.planner)
    for text in found.notes:
        notes.append(f"{path.name}: {text}")
        events(Message(text=notes[-1]))
    extensions.build_beside(study.prepared, found.config, study.runner, events)
    record = study.loop.bring_in(f"{COMPARED}{path.name}", found.config)
    failure = history.failure_of(record)
    if failure is not None:
        raise NothingFeasibleError(
            f"{path} (trial {record.number}) failed with {failure.kind}: {failure.reason}"
        )
    return Named(name=path.name, trial=record)


def _trial(contents: StudyContents, number: int) -> TrialRecord:
    trial = contents.trial(number)
    if trial is None:
        known = f"0 to {contents.trials[-1].number}" if contents.trials else "none"
        raise InputError(
            f"study {contents.study.name!r} has no trial {number}", hint=f"its trials: {known}"
        )
    if not contents.comparable(trial):
        raise InputError(
            f"trial {number} was measured with another workload, topology or environment",
            hint="only trials of the present one can be launched again",
        )
    failure = history.failure_of(trial)
    if failure is not None or trial.measurement is None:
        why = "has no outcome" if failure is None else f"failed ({failure.kind}): {failure.reason}"
        raise InputError(f"trial {number} {why}", hint="compare trials that have a time")
    return trial


def _header(
    request: CompareRequest, study: OpenStudy, sides: tuple[Named, Named]
) -> ComparisonHeader:
    folder, context = study.recorder.folder, study.recorder.contents().study.context
    trials = tuple(side.trial.number for side in sides)
    begun = comparisons.unfinished(folder, trials, request.rounds, context)
    if begun is not None:
        return begun
    header = ComparisonHeader(
        number=comparisons.next_number(folder),
        names=request.names,
        trials=trials,
        rounds=request.rounds,
        context=context,
        created_at=time.time(),
    )
    comparisons.begin(folder, header)
    return header


def take_turns(
    study: OpenStudy, header: ComparisonHeader, sides: tuple[Named, Named]
) -> ComparisonResult:
    """Launch the rounds that are missing and judge."""
    for index in range(header.rounds):
        if index in _rounds(study.recorder.contents(), header):
            continue
        for side in sides:
            outcome = study.loop.remeasure(
                "compared",
                side.trial.number,
                index,
                f"round {index + 1} of {header.rounds}: {side.name}",
                comparison=header.number,
            )
            if outcome.failure is not None:
                failure = outcome.failure
                return ComparisonResult(
                    number=header.number,
                    verdict="failed",
                    rounds=len(_rounds(study.recorder.contents(), header)),
                    reason=f"{side.name} failed when it was launched again "
                    f"({failure.kind}): {failure.reason}",
                    at=time.time(),
                )
    return _judge(study.recorder.contents(), header, sides)


def _judge(
    contents: StudyContents, header: ComparisonHeader, sides: tuple[Named, Named]
) -> ComparisonResult:
    rounds = _rounds(contents, header)
    turns = [turn for one in rounds.values() for turn in one]
    a, b = sides[0].trial, sides[1].trial
    found: Comparison = compare_turns(turns, a.number, b.number)
    verdict: Winner = "tie"
    reason, winner = "", b if found.ratio > 1 else a
    if found.verdict_hint == "tie":
        baseline = contents.baseline()
        assert baseline is not None
        unstable = {one.number for one in (a, b) if contents.unstable(one.number)}
        winner = ties.winner((a, b), baseline, unstable=unstable)
        other = b if winner is a else a
        less = ties.needs_less_memory(winner, other)
        why = "needs less memory" if less else "is nearer to the baseline"
        if other.number in unstable and winner.number not in unstable:
            why = "kept its allocator's room"
        reason = f"launches cannot tell them apart; trial {winner.number} {why}"
    else:
        verdict = "b_faster" if found.verdict_hint == "faster" else "a_faster"
    return ComparisonResult(
        number=header.number,
        verdict=verdict,
        ratio=found.ratio,
        low=found.low,
        high=found.high,
        rounds=len(rounds),
        winner=winner.number,
        reason=reason,
        at=time.time(),
    )


def _rounds(contents: StudyContents, header: ComparisonHeader) -> dict[int, tuple[Turn, ...]]:
    """Whole rounds by index: a launch of A, and the launch of B after it."""
    found: dict[int, tuple[Turn, ...]] = {}
    first: Turn | None = None
    first_round: int | None = None
    mine = [a for a in contents.remeasurements if a.header.comparison == header.number]
    launches = launches_by_number(mine)
    for again in mine:
        if again.number not in launches:
            continue
        turn = Turn(side=again.header.trial, position=again.number, launch=launches[again.number])
        index = again.header.round
        if turn.side == header.trials[0]:
            first, first_round = turn, index
        elif first is not None and index is not None and first_round == index:
            found[index], first = (first, turn), None
    return dict(sorted(found.items()))


def _side(contents: StudyContents, header: ComparisonHeader, named: Named) -> Side:
    number = named.trial.number
    turns = [turn for one in _rounds(contents, header).values() for turn in one]
    trial = contents.trial(number)
    assert trial is not None
    return Side(
        name=named.name,
        trial=trial,
        launches=tuple(turn.launch.mean_s for turn in turns if turn.side == number),
        time=summarise(contents.launches(number)),
    )


def document(compared: Compared) -> dict[str, Any]:
    """The result for programs."""
    result = compared.result
    interval = {"ratio": result.ratio, "low": result.low, "high": result.high}
    return {
        "schema_version": 1,
        "study": compared.study,
        "comparison": result.number,
        "a": _shown(compared.a),
        "b": _shown(compared.b),
        "speedup": None if result.ratio is None else interval,
        "verdict": result.verdict,
        "winner": result.winner,
        "rounds": result.rounds,
        "reason": result.reason or None,
        "notes": list(compared.notes),
    }


def _shown(side: Side) -> dict[str, Any]:
    header = side.trial.header
    peaks = side.trial.measurement.peak_memory if side.trial.measurement else None
    return {
        "name": side.name,
        "trial": side.trial.number,
        "backend": header.backend,
        "params": header.params,
        "config": header.config,
        "launches_s_per_it": list(side.launches),
        "s_per_it": None if side.time is None else dataclasses.asdict(side.time),
        "peak_memory_bytes": None
        if peaks is None
        else {
            "timed": peaks.timed,
            "worst_case": peaks.worst_case,
            "worst_case_is_bound": peaks.is_bound,
        },
    }
