"""Samples into as few rows as can be: packing, a pure function of lengths."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

WORTH: Final = 2**26
"""Samples × tokens of a row up to which a better packing is looked for where the quick one is not
known to be the best; it takes at most a few seconds."""


def pack(
    lengths: Sequence[int], order: Sequence[int], max_tokens: int, processes: int
) -> list[list[int]]:
    """Put the samples of ``order`` into rows of at most ``max_tokens``.

    What counts is micro-steps: rows over processes, rounded up. First-fit decreasing, the packing
    that trainers use, needs at most 11/9 of the fewest rows. Where it needs a micro-step more than
    the tokens alone do, rows are also filled one after the other as full as they can be, and the
    result with fewer rows is taken. Rows with the longest samples stand first, so that rows which
    run at the same time cost attention about as much; inside a row samples stand in stream order.
    """
    falling = sorted(order, key=lambda index: (-lengths[index], index))
    rows = _first_fit(lengths, falling, max_tokens)
    least = -(-sum(lengths[index] for index in order) // max_tokens)
    may_improve = _micro_steps(len(rows), processes) > _micro_steps(least, processes)
    if may_improve and len(order) * max_tokens <= WORTH:
        rows = min(rows, _fullest_first(lengths, falling, max_tokens), key=len)
    rows = [sorted(row) for row in rows]
    return sorted(rows, key=lambda row: (-sum(lengths[i] ** 2 for i in row), row))


def _micro_steps(rows: int, processes: int) -> int:
    return -(-rows // processes)


def _first_fit(lengths: Sequence[int], falling: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Put each sample, the longest first, into the first row that has room for it."""
    rows: list[list[int]] = []
    room: list[int] = []
    for index in falling:
        place = next((n for n, left in enumerate(room) if left >= lengths[index]), None)
        if place is None:
            place = len(rows)
            rows.append([])
            room.append(max_tokens)
        rows[place].append(index)
        room[place] -= lengths[index]
    return rows


def _fullest_first(
    lengths: Sequence[int], falling: Sequence[int], max_tokens: int
) -> list[list[int]]:
    """Fill one row after the other: the longest sample left, and what best fills the rest."""
    left = list(falling)
    rows: list[list[int]] = []
    while left:
        row = [left[0]]
        row += _best_fill(lengths, left[1:], max_tokens - lengths[left[0]])
        rows.append(row)
        taken = set(row)
        left = [index for index in left if index not in taken]
    return rows


def _best_fill(lengths: Sequence[int], falling: Sequence[int], room: int) -> list[int]:
    """Return samples whose lengths sum to the most that fits into ``room``; long ones rather.

    Bit ``n`` of ``reached[k]`` says whether some of the first ``k`` samples sum to ``n``.
    """
    within = (1 << (room + 1)) - 1
    reached = [1]
    for index in falling:
        reached.append(reached[-1] | (reached[-1] << lengths[index]) & within)
    total = reached[-1].bit_length() - 1
    chosen = []
    for number in range(len(falling), 0, -1):
        if not reached[number - 1] >> total & 1:
            chosen.append(falling[number - 1])
            total -= lengths[falling[number - 1]]
    return chosen
