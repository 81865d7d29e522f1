"""Is a configuration really faster? Finalists and baseline are launched again, in turns.

What the launches of the search say is used only to choose the finalists, never as evidence: the
best of many noisy launches looks better than it is. A finalist need not look faster than the
baseline, only close enough for the noise to leave it open, for a lucky launch of the baseline is
no evidence either.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Final, Literal

from autotune.analysis.paired import CONFIDENCE, Comparison, Turn, compare_turns
from autotune.analysis.ranking import weighed
from autotune.search import history, noise, ties
from autotune.search.events import ConfirmationStarted, EventSink, Finished, Message
from autotune.search.loop import Loop
from autotune.search.rounds import finalists, turns_of, whole_rounds
from autotune.store.recorder import StudyRecorder
from autotune.store.records import Compared, StudyContents, TrialRecord, Verdict, VerdictWord

ROUNDS: Final = 5
"""Rounds of one launch of the baseline and one of each finalist."""
MIN_ROUNDS: Final = 3
"""Fewest whole rounds from which a gain is claimed."""
MAX_CHOICES: Final = 3
"""How often finalists are chosen when all of the last ones failed on their second launch."""
NOT_CLOSE: Final = "no configuration came close enough to the baseline to be launched again"
ALL_FAILED: Final = "the finalists failed when they were launched again"


def confirm(loop: Loop, recorder: StudyRecorder, events: EventSink) -> Verdict:
    """Return and record the verdict, launching the rounds that are missing.

    A verdict that no later trial has put in question stands as it is.
    """
    standing = standing_verdict(recorder.contents(), loop.space.search.finalists)
    if standing is not None:
        events(Finished(verdict=standing))
        return standing
    verdict = _Confirmation(loop, recorder, events).settle()
    recorder.record_verdict(verdict)
    events(Finished(verdict=verdict))
    return verdict


def standing_verdict(contents: StudyContents, finalists: int) -> Verdict | None:
    """The recorded verdict, if it is of the present space and context and nothing came after.

    Args:
        contents: The records.
        finalists: How many may be compared; a verdict over fewer does not stand.
    """
    verdict = contents.verdict
    study = contents.study
    if verdict is None or verdict.verdict == "none_feasible":
        return None
    if (verdict.context, verdict.space_fingerprint) != (study.context, study.space_fingerprint):
        return None
    if verdict.num_finalists < finalists:
        return None
    return None if contents.later_than(verdict.at) else verdict


def choose_finalists(
    contents: StudyContents, device: Literal["cpu", "cuda"], wanted: int
) -> tuple[TrialRecord, ...]:
    """Return the configurations to be launched again, the most promising first.

    The leading one may be as fast as the baseline for all that is known; the others, up to
    ``wanted`` in all, may also be as fast as the leading one.
    """
    baseline = contents.baseline()
    assert baseline is not None
    found: list[TrialRecord] = []
    for trial in history.ranking(contents):
        if trial.number == baseline.number or len(found) >= wanted:
            continue
        others = (baseline, *found[:1])
        if all(noise.may_be_as_fast(contents, device, trial.number, o.number) for o in others):
            found.append(trial)
    return tuple(found)


def confidence_for(num_finalists: int) -> float:
    """Of each interval, so that all of them hold together with 95 % (Bonferroni)."""
    return 1.0 - (1.0 - CONFIDENCE) / max(1, num_finalists)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Judged:
    """A finalist with its comparison."""

    trial: TrialRecord
    found: Comparison


class _Confirmation:
    def __init__(self, loop: Loop, recorder: StudyRecorder, events: EventSink) -> None:
        self._loop = loop
        self._recorder = recorder
        self._events = events
        self._baseline = loop.baseline
        self._wanted = loop.space.search.finalists
        self._lead: int | None = None

    def settle(self) -> Verdict:
        """Launch the missing rounds and judge."""
        why_none = NOT_CLOSE
        for _ in range(MAX_CHOICES):
            contents = self._recorder.contents()
            chosen = choose_finalists(contents, self._loop.device, self._wanted)
            if not chosen:
                break
            self._lead = chosen[0].number
            if self._run([trial.number for trial in chosen]):
                why_none = ""
                if not self._others_are_better(chosen):
                    break
            else:
                why_none = ALL_FAILED
        return self._judge(why_none)

    def _others_are_better(self, chosen: Sequence[TrialRecord]) -> bool:
        """Whether the leading one proved unstable and a stable one now leads."""
        contents = self._recorder.contents()
        again = choose_finalists(contents, self._loop.device, self._wanted)
        lead = chosen[0].number
        return contents.unstable(lead) and bool(again) and again[0].number != lead

    def _run(self, alive: list[int]) -> bool:
        """Launch the missing rounds; false when all finalists failed."""
        done = len(self._rounds(alive))
        self._events(
            ConfirmationStarted(
                finalist=alive[0], others=tuple(alive[1:]), rounds=ROUNDS, done=done
            )
        )
        for index in range(ROUNDS):
            open_ones = self._still_open(alive)
            if not open_ones:
                break
            if index not in self._rounds(open_ones):
                self._launch_round(index, open_ones)
            alive = self._without_failed(alive)
            if not alive:
                return False
        return True

    def _launch_round(self, index: int, open_ones: Sequence[int]) -> None:
        name = f"round {index + 1} of {ROUNDS}"
        self._loop.remeasure("baseline", self._baseline.number, index, f"{name}: baseline")
        for number in open_ones:
            label = f"{name}: finalist (trial {number})"
            self._loop.remeasure("finalist", number, index, label)

    def _without_failed(self, alive: Sequence[int]) -> list[int]:
        failed = self._recorder.contents().disqualified()
        for number in alive:
            if number in failed:
                text = f"trial {number} failed when it was launched again and is out"
                self._events(Message(text=text, level="warning"))
        return [number for number in alive if number not in failed]

    def _still_open(self, alive: Sequence[int]) -> list[int]:
        """Finalists that the rounds so far do not show to be slower than the baseline."""
        return [
            number
            for number in alive
            if (found := self._compare(number, CONFIDENCE)) is None
            or found.verdict_hint != "slower"
        ]

    def _rounds(self, sides: Sequence[int]) -> dict[int, tuple[Turn, ...]]:
        return whole_rounds(self._recorder.contents(), sides, self._baseline.number)

    def _compare(self, finalist: int, confidence: float) -> Comparison | None:
        rounds = turns_of(self._rounds([finalist]).values())
        if not rounds:
            return None
        return compare_turns(rounds, self._baseline.number, finalist, confidence=confidence)

    def _judge(self, why_none: str) -> Verdict:
        """Judge all finalists so far: one that an earlier confirmation found is not forgotten."""
        tried = finalists(self._recorder.contents())
        confidence = confidence_for(len(tried))
        judged = [
            _Judged(trial=trial, found=found)
            for trial in tried
            if (found := self._compare(trial.number, confidence)) is not None
        ]
        judged.sort(key=self._weight)
        told = [one for one in judged if one.found.rounds >= MIN_ROUNDS or _is_slower(one)]
        if not told:
            rounds = max((one.found.rounds for one in judged), default=0)
            failed = f"the baseline failed when it was launched again: {rounds} whole rounds"
            return self._verdict("keep_baseline", self._baseline, reason=why_none or failed)
        faster = [
            one
            for one in told
            if one.found.verdict_hint == "faster" and not self._stable_baseline_is_near(one)
        ]
        return self._fastest(faster, told) if faster else self._no_gain(told)

    def _weight(self, one: _Judged) -> float:
        """Its time in baselines, as it counts among others."""
        unstable = self._recorder.contents().unstable(one.trial.number)
        return weighed(1.0 / one.found.ratio, unstable=unstable)

    def _stable_baseline_is_near(self, one: _Judged) -> bool:
        """Whether the baseline is stable, the other is not, and the gain is within the margin."""
        return not self._unstable([self._baseline]) and self._weight(one) >= 1.0

    def _unstable(self, trials: Sequence[TrialRecord]) -> frozenset[int]:
        contents = self._recorder.contents()
        return frozenset(one.number for one in trials if contents.unstable(one.number))

    def _fastest(self, faster: Sequence[_Judged], judged: Sequence[_Judged]) -> Verdict:
        """The fastest; where launches cannot tell it from others, the tie rule decides."""
        lead = faster[0]
        tied = [lead]
        for other in faster[1:]:
            if self._are_tied(lead, other, confidence_for(len(faster) - 1)):
                tied.append(other)
        trials = [one.trial for one in tied]
        best = ties.winner(trials, self._baseline, unstable=self._unstable(trials))
        reason = ""
        if best.number != lead.trial.number:
            less = ties.needs_less_memory(best, lead.trial)
            why = "with less memory" if less else "nearer to the baseline"
            if lead.trial.number in self._unstable(trials):
                why = "and its allocator never ran out of room"
            reason = f"as fast as trial {lead.trial.number} within the noise, {why}"
        found = next(one for one in tied if one.trial.number == best.number)
        return self._verdict("faster", best, shown=found, judged=judged, reason=reason)

    def _are_tied(self, lead: _Judged, other: _Judged, confidence: float) -> bool:
        pair = (lead.trial.number, other.trial.number)
        turns = turns_of(self._rounds(pair).values())
        if turns:
            between = compare_turns(turns, pair[1], pair[0], confidence=confidence)
            return between.verdict_hint == "tie"
        # They never took turns, so each is known by its own rounds with the baseline.
        gap = math.log(lead.found.ratio / other.found.ratio)
        return gap <= math.hypot(_half(lead.found), _half(other.found))

    def _no_gain(self, judged: Sequence[_Judged]) -> Verdict:
        """A tie that less memory wins, or the baseline."""
        lighter = [
            one
            for one in judged
            if one.found.verdict_hint == "tie"
            and ties.needs_less_memory(one.trial, self._baseline)
            and not (self._unstable([one.trial]) and not self._unstable([self._baseline]))
        ]
        if lighter:
            trials = [one.trial for one in lighter]
            best = ties.winner(trials, self._baseline, unstable=self._unstable(trials))
            found = next(one for one in lighter if one.trial.number == best.number)
            reason = "as fast as the baseline within the noise, with less memory"
            return self._verdict("tie", best, shown=found, judged=judged, reason=reason)
        names = ", ".join(str(one.trial.number) for one in judged)
        who = f"trial {names}" if len(judged) == 1 else f"of trials {names} none"
        reason = f"{who} showed a gain beyond the noise between launches"
        if len(judged) == 1 and _is_slower(judged[0]):
            reason = f"{who} is slower"
        elif len(judged) == 1:
            reason = f"{who} showed no gain beyond the noise between launches"
        near = [one for one in judged if one.found.verdict_hint == "faster"]
        if near:
            gain = near[0].found.ratio - 1.0
            reason = (
                f"trial {near[0].trial.number} is {gain:.1%} faster, and its allocator ran out of "
                "room while it was timed: the baseline's did not"
            )
        shown = judged[0]
        return self._verdict(
            "keep_baseline", self._baseline, shown=shown, judged=judged, reason=reason
        )

    def _verdict(
        self,
        word: VerdictWord,
        best: TrialRecord,
        *,
        shown: _Judged | None = None,
        judged: Sequence[_Judged] = (),
        reason: str,
    ) -> Verdict:
        study = self._recorder.contents().study
        found = shown.found if shown else None
        return Verdict(
            verdict=word,
            best_trial=best.number,
            ratio=found.ratio if found else None,
            low=found.low if found else None,
            high=found.high if found else None,
            finalist=shown.trial.number if shown else self._lead,
            compared=tuple(_compared(one) for one in judged),
            num_finalists=self._wanted,
            reason=reason,
            context=study.context,
            space_fingerprint=study.space_fingerprint,
            at=self._recorder.now(),
        )


def _half(found: Comparison) -> float:
    """Half the interval of a log ratio."""
    assert found.low is not None
    assert found.high is not None
    return math.log(found.high / found.low) / 2


def _is_slower(one: _Judged) -> bool:
    return one.found.verdict_hint == "slower"


def _compared(one: _Judged) -> Compared:
    return Compared(
        trial=one.trial.number,
        ratio=one.found.ratio,
        low=one.found.low,
        high=one.found.high,
        rounds=one.found.rounds,
    )
