"""The alternating launches of a confirmation, as the records hold them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from autotune.analysis.paired import Launch, Turn, launches_of
from autotune.store.records import RemeasurementRecord, StudyContents, TrialRecord


def whole_rounds(
    contents: StudyContents, sides: Sequence[int], baseline: int
) -> dict[int, tuple[Turn, ...]]:
    """Finished rounds of the present context by index: a launch of the baseline, then each side.

    A round that was cut off and begun again counts once, by its last whole set of launches.

    Args:
        contents: The records.
        sides: The finalists that a round must hold to be whole; others in it are left out.
        baseline: Number of the baseline's trial.
    """
    found: dict[int, tuple[Turn, ...]] = {}
    blocks = _blocks(contents, baseline)
    launches = launches_by_number([again for block in blocks for again in block])
    for block in blocks:
        wanted = (baseline, *sides)
        turns = {
            again.header.trial: Turn(
                side=again.header.trial,
                position=again.number,
                launch=launches[again.number],
            )
            for again in block
            if again.number in launches
        }
        index = block[0].header.round
        if index is not None and all(side in turns for side in wanted):
            found[index] = tuple(turns[side] for side in wanted)
    return dict(sorted(found.items()))


def finalists(contents: StudyContents) -> tuple[TrialRecord, ...]:
    """Trials that were launched as finalists in the present context and may still be best."""
    numbers = {
        again.header.trial
        for again in contents.remeasurements
        if again.header.role == "finalist" and again.header.context == contents.study.context
    }
    return tuple(
        trial
        for trial in contents.trials
        if trial.number in numbers and contents.may_be_best(trial)
    )


def launches_by_number(again: Iterable[RemeasurementRecord]) -> dict[int, Launch]:
    """Return the summaries of those launches that have a time, by the re-measurement's number."""
    measured = [(one.number, one.header.trial, one.measurement) for one in again]
    timed = [(number, trial, m) for number, trial, m in measured if m is not None]
    launches = launches_of([(trial, m) for _, trial, m in timed])
    return {number: one for (number, _, _), one in zip(timed, launches, strict=True)}


def turns_of(rounds: Iterable[tuple[Turn, ...]]) -> tuple[Turn, ...]:
    """All launches of the rounds in the order in which they ran."""
    turns = [turn for one in rounds for turn in one]
    return tuple(sorted(turns, key=lambda turn: turn.position))


def _blocks(contents: StudyContents, baseline: int) -> list[list[RemeasurementRecord]]:
    """Launches of confirmations in order, cut before each launch of the baseline."""
    blocks: list[list[RemeasurementRecord]] = []
    for again in contents.remeasurements:
        header = again.header
        if header.context != contents.study.context or header.round is None:
            continue
        if header.role == "baseline" and header.trial == baseline:
            blocks.append([again])
        elif header.role == "finalist" and _round_of(blocks) == header.round:
            blocks[-1].append(again)
    return blocks


def _round_of(blocks: Sequence[Sequence[RemeasurementRecord]]) -> int | None:
    return blocks[-1][0].header.round if blocks else None
