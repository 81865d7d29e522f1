"""The alternating launches of a confirmation, as the records hold them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from autotune.analysis.paired import Turn, launch_of
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
    for block in _blocks(contents, baseline):
        wanted = (baseline, *sides)
        turns = {
            again.header.trial: Turn(
                side=again.header.trial,
                position=again.number,
                launch=launch_of(again.measurement),
            )
            for again in block
            if again.measurement is not None
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
