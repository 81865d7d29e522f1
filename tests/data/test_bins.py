"""Packing: every sample once, no row too full, and as few micro-steps as can be."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.data.bins import pack
from autotune.data.lengths import draw_lengths


def fewest_rows(lengths, limit):
    """By trying everything: the smallest number of rows that hold all samples."""

    def fits(rest, rooms):
        if not rest:
            return True
        first, *others = rest
        tried = set()
        for place, room in enumerate(rooms):
            if room >= first and room not in tried:
                tried.add(room)
                if fits(others, [*rooms[:place], room - first, *rooms[place + 1 :]]):
                    return True
        return False

    falling = sorted(lengths, reverse=True)
    return next(n for n in itertools.count(1) if fits(falling, [limit] * n))


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(2, 30), min_size=1, max_size=9), st.integers(30, 60), st.integers(1, 3))
def test_every_sample_is_in_one_row_and_rows_are_nearly_the_fewest(lengths, limit, processes):
    rows = pack(lengths, range(len(lengths)), limit, processes)
    assert sorted(index for row in rows for index in row) == list(range(len(lengths)))
    assert all(row == sorted(row) for row in rows)
    assert all(sum(lengths[index] for index in row) <= limit for row in rows)
    squares = [sum(lengths[index] ** 2 for index in row) for row in rows]
    assert squares == sorted(squares, reverse=True)
    assert len(rows) <= 11 / 9 * fewest_rows(lengths, limit) + 6 / 9


def test_a_micro_step_is_saved_where_first_fit_wastes_one():
    """First-fit decreasing leaves the last 6 alone in a fourth row."""
    lengths = [44, 24, 24, 22, 21, 17, 8, 8, 6, 6]
    rows = [[lengths[index] for index in row] for row in pack(lengths, range(10), 61, 1)]
    assert rows == [[44, 17], [24, 21, 8, 8], [24, 22, 6, 6]]
    # On two ranks four rows take no more micro-steps than three: the quick packing stands.
    assert len(pack(lengths, range(10), 61, 2)) == 4


@pytest.mark.parametrize("processes", [1, 2, 8])
@pytest.mark.parametrize(("batch", "limit"), [(64, 8192), (128, 8192), (64, 16384), (16, 8192)])
def test_chat_lengths_are_packed_into_the_fewest_micro_steps(batch, limit, processes):
    """The mean of the lengths is 1,258: no packing has fewer rows than the tokens fill."""
    lengths = draw_lengths("ultrachat-like", num_samples=batch * 20, max_length=8192, seed=1)
    for first in range(0, len(lengths), batch):
        part = range(first, first + batch)
        rows = pack(lengths, part, limit, processes)
        least = -(-sum(lengths[index] for index in part) // limit)
        assert -(-len(rows) // processes) == -(-least // processes)
