"""Is the best configuration really faster? It and the baseline are launched again, in turns."""

from __future__ import annotations

import dataclasses
import statistics
import time
from typing import Final

from autotune.analysis.paired import Comparison, Launch, compare_launches
from autotune.contract.outcome import Measurement
from autotune.search import history
from autotune.search.events import ConfirmationStarted, EventSink, Finished, Message
from autotune.search.loop import Loop
from autotune.store.recorder import StudyRecorder
from autotune.store.records import (
    RemeasurementRecord,
    StudyContents,
    TrialRecord,
    Verdict,
    VerdictWord,
)

ROUNDS: Final = 5
"""Rounds of one launch of the baseline and one of the finalist."""
MIN_ROUNDS: Final = 3
"""Fewest whole rounds from which a gain is claimed."""
MAX_FINALISTS: Final = 3
"""Finalists tried one after the other when the first fail on their second launch."""
SAME_MEMORY: Final = 0.02
"""Share by which peaks must differ before the smaller one decides a tie."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Round:
    """One finished pair of launches."""

    index: int
    baseline: Launch
    finalist: Launch


def confirm(loop: Loop, recorder: StudyRecorder, events: EventSink) -> Verdict:
    """Return and record the verdict, launching the rounds that are missing.

    A verdict that no later trial has put in question stands as it is.
    """
    standing = standing_verdict(recorder.contents())
    if standing is not None:
        events(Finished(verdict=standing))
        return standing
    verdict = _settle(loop, recorder, events)
    recorder.record_verdict(verdict)
    events(Finished(verdict=verdict))
    return verdict


def standing_verdict(contents: StudyContents) -> Verdict | None:
    """The recorded verdict, if it is of the present space and context and nothing came after."""
    verdict = contents.verdict
    study = contents.study
    if verdict is None or verdict.verdict == "none_feasible":
        return None
    if (verdict.context, verdict.space_fingerprint) != (study.context, study.space_fingerprint):
        return None
    later = any(trial.header.created_at > verdict.at for trial in history.comparable(contents))
    return None if later else verdict


def rounds_of(contents: StudyContents, finalist: int) -> tuple[Round, ...]:
    """Finished rounds of a finalist: each launch of it with the baseline's launch before it."""
    found: dict[int, Round] = {}
    partner: RemeasurementRecord | None = None
    for again in contents.remeasurements:
        header = again.header
        if header.context != contents.study.context or header.round is None:
            continue
        if header.role == "baseline":
            partner = again
            continue
        if header.trial != finalist or partner is None:
            continue
        mine, theirs = again.measurement, partner.measurement
        if partner.header.round == header.round and mine is not None and theirs is not None:
            found[header.round] = Round(
                index=header.round, baseline=_launch(theirs), finalist=_launch(mine)
            )
        partner = None
    return tuple(found[index] for index in sorted(found))


def _launch(measurement: Measurement) -> Launch:
    return Launch(
        mean_s=measurement.s_per_it, typical_s=statistics.fmean(measurement.batch_median_s)
    )


def _settle(loop: Loop, recorder: StudyRecorder, events: EventSink) -> Verdict:
    for _ in range(MAX_FINALISTS):
        contents = recorder.contents()
        ranked = history.ranking(contents)
        if not ranked or ranked[0].number == loop.baseline.number:
            reason = "no configuration was faster than the baseline"
            return _verdict(contents, "keep_baseline", loop.baseline.number, reason=reason)
        finalist = ranked[0]
        done = len(rounds_of(contents, finalist.number))
        events(ConfirmationStarted(finalist=finalist.number, rounds=ROUNDS, done=done))
        if _run_rounds(loop, recorder, finalist.number):
            return _judge(recorder.contents(), loop.baseline, finalist)
        text = f"trial {finalist.number} failed when it was launched again and is out"
        events(Message(text=text, level="warning"))
    reason = f"{MAX_FINALISTS} configurations failed when they were launched again"
    return _verdict(recorder.contents(), "keep_baseline", loop.baseline.number, reason=reason)


def _run_rounds(loop: Loop, recorder: StudyRecorder, finalist: int) -> bool:
    """Launch the missing rounds; false when the finalist failed."""
    finished = {one.index for one in rounds_of(recorder.contents(), finalist)}
    for index in range(ROUNDS):
        if index in finished:
            continue
        name = f"round {index + 1} of {ROUNDS}"
        loop.remeasure("baseline", loop.baseline.number, index, f"{name}: baseline")
        loop.remeasure("finalist", finalist, index, f"{name}: finalist (trial {finalist})")
        if finalist in recorder.contents().disqualified():
            return False
    return True


def _judge(contents: StudyContents, baseline: TrialRecord, finalist: TrialRecord) -> Verdict:
    rounds = rounds_of(contents, finalist.number)
    if len(rounds) < MIN_ROUNDS:
        reason = f"the baseline failed when it was launched again: {len(rounds)} whole rounds"
        return _verdict(
            contents, "keep_baseline", baseline.number, finalist=finalist.number, reason=reason
        )
    found = compare_launches([one.baseline for one in rounds], [one.finalist for one in rounds])
    if found.verdict_hint == "faster":
        return _verdict(contents, "faster", finalist.number, found=found, finalist=finalist.number)
    if found.verdict_hint == "tie" and _needs_less_memory(finalist, baseline):
        return _verdict(
            contents,
            "tie",
            finalist.number,
            found=found,
            finalist=finalist.number,
            reason="as fast as the baseline within the noise, with less memory",
        )
    return _verdict(
        contents,
        "keep_baseline",
        baseline.number,
        found=found,
        finalist=finalist.number,
        reason=f"trial {finalist.number} showed no gain beyond the noise between launches",
    )


def _needs_less_memory(finalist: TrialRecord, baseline: TrialRecord) -> bool:
    assert finalist.measurement is not None
    assert baseline.measurement is not None
    mine, theirs = finalist.measurement.peak_memory, baseline.measurement.peak_memory
    return max(mine.timed, mine.worst_case) < (1.0 - SAME_MEMORY) * max(
        theirs.timed, theirs.worst_case
    )


def _verdict(
    contents: StudyContents,
    word: VerdictWord,
    best: int,
    *,
    found: Comparison | None = None,
    finalist: int | None = None,
    reason: str = "",
) -> Verdict:
    return Verdict(
        verdict=word,
        best_trial=best,
        ratio=found.ratio if found else None,
        low=found.low if found else None,
        high=found.high if found else None,
        finalist=finalist,
        reason=reason,
        context=contents.study.context,
        space_fingerprint=contents.study.space_fingerprint,
        at=time.time(),
    )
