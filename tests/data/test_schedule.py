"""The cut into micro-steps: properties that hold for every cut."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.contract.plan import MicroStep, Samples, Schedule
from autotune.data.lengths import draw_lengths
from autotune.data.schedule import make_schedule, worst_case
from autotune.errors import InputError


def samples_of(lengths, max_length=64):
    return Samples(lengths=tuple(lengths), max_length=max_length, seed=0, source="ultrachat-like")


def cut(lengths, *, rows=None, tokens=None, batching="padded", processes=2, batches=1, longest=64):
    return make_schedule(
        samples_of(lengths, longest),
        global_batch=len(lengths) // batches,
        distinct_batches=batches,
        batching=batching,
        micro_batch=rows,
        max_tokens=tokens,
        processes=processes,
    )


def groups(schedule: Schedule, batch: int = 0) -> list[list[tuple[int, ...]]]:
    return [[step.samples for step in rank.micro_steps] for rank in schedule.batches[batch].ranks]


@st.composite
def cuts(draw):
    processes = draw(st.integers(1, 4))
    batches = draw(st.integers(1, 3))
    batching = draw(st.sampled_from(["padded", "sorted", "packed"]))
    by_rows = batching != "packed" and draw(st.booleans())
    rows = draw(st.integers(1, 4)) if by_rows else None
    unit = (rows or 1) * processes if by_rows else 1
    global_batch = unit * draw(st.integers(1, 6))
    count = global_batch * batches
    lengths = draw(st.lists(st.integers(2, 64), min_size=count, max_size=count))
    tokens = None if by_rows else draw(st.integers(max(lengths), 300))
    return {
        "lengths": lengths,
        "rows": rows,
        "tokens": tokens,
        "batching": batching,
        "processes": processes,
        "batches": batches,
    }


@settings(max_examples=80, deadline=None)
@given(cuts())
def test_every_cut_does_the_same_work_within_its_limit(case):
    """BUG-038: the samples, and so the real tokens, of an iteration do not depend on the cut."""
    schedule = cut(**case)
    assert cut(**case) == schedule
    lengths, size = case["lengths"], len(case["lengths"]) // case["batches"]
    inputs = 0
    shapes = set()
    for number, batch in enumerate(schedule.batches):
        steps = [step for rank in batch.ranks for step in rank.micro_steps]
        seen = Counter(sample for step in steps for sample in step.samples)
        assert seen == Counter(range(number * size, (number + 1) * size))
        assert len(batch.ranks) == case["processes"]
        assert len({len(rank.micro_steps) for rank in batch.ranks}) == 1
        for step in steps:
            inputs += step.rows * step.length
            shapes.add((step.rows, step.length))
            if case["batching"] == "packed":
                assert (step.rows, step.length) == (1, case["tokens"])
                assert sum(lengths[sample] for sample in step.samples) <= case["tokens"]
                continue
            if not step.samples:
                assert (step.rows, step.length) <= (1, 8)
                continue
            assert step.rows == len(step.samples)
            assert step.length == max(lengths[sample] for sample in step.samples)
            if case["rows"]:
                assert step.rows == case["rows"]
            else:
                assert step.rows * step.length <= case["tokens"]
            worst = schedule.worst_case
            assert step.rows * step.length <= worst.rows * worst.length
        # Fillers never make up a whole round: another micro-step would have been too many.
        assert sum(not step.samples for step in steps) < case["processes"]
    assert schedule.padding_share == pytest.approx(1 - sum(lengths) / inputs)
    assert schedule.distinct_shapes == len(shapes)


def test_rows_are_cut_in_stream_order_and_dealt_in_turn():
    schedule = cut([5, 9, 3, 7, 2, 8, 4, 6], rows=2)
    assert groups(schedule) == [[(0, 1), (4, 5)], [(2, 3), (6, 7)]]
    assert [step.length for step in schedule.batches[0].ranks[0].micro_steps] == [9, 8]
    assert schedule.micro_steps == 2


def test_sorted_takes_the_longest_first_within_the_global_batch():
    schedule = cut([5, 9, 3, 7, 20, 21, 22, 23], rows=2, batching="sorted", batches=2, processes=1)
    assert groups(schedule, 0) == [[(1, 3), (0, 2)]]
    assert groups(schedule, 1) == [[(7, 6), (5, 4)]]


def test_sorting_pads_less():
    lengths = draw_lengths("ultrachat-like", num_samples=64, max_length=512, seed=0)
    shares = [
        cut(lengths, rows=2, batching=batching, batches=4, longest=512).padding_share
        for batching in ("padded", "sorted")
    ]
    assert shares[1] < shares[0] / 2


def test_token_bins_are_filled_in_order_and_missing_ones_are_short_rows():
    schedule = cut([5, 9, 3, 20, 2], tokens=20)
    assert groups(schedule) == [[(0, 1), (3,)], [(2,), (4,)]]
    schedule = cut([5, 9, 3, 20], tokens=20)
    filler = schedule.batches[0].ranks[1].micro_steps[1]
    assert groups(schedule) == [[(0, 1), (3,)], [(2,), ()]]
    assert filler == MicroStep(samples=(), rows=1, length=8)


def test_filler_stays_within_a_tiny_limit():
    schedule = cut([3, 3, 3], tokens=3, longest=5)
    assert schedule.batches[0].ranks[1].micro_steps[1].length == 3


def test_more_ranks_than_samples_by_tokens():
    schedule = cut([4, 4], tokens=4, processes=4)
    assert groups(schedule) == [[(0,)], [(1,)], [()], [()]]


@pytest.mark.parametrize(("rows", "processes"), [(3, 2), (8, 2), (1, 3)])
def test_rows_that_do_not_come_out_even_are_refused(rows, processes):
    with pytest.raises(InputError, match="global_batch 8 is not divisible by micro_batch"):
        cut([4] * 8, rows=rows, processes=processes)


def test_sample_longer_than_the_token_limit_is_refused():
    with pytest.raises(InputError, match=r"max_tokens 8 .* longest sample \(9 tokens\)"):
        cut([4, 9], tokens=8)


def test_either_rows_or_tokens():
    for rows, tokens in ((None, None), (1, 8)):
        with pytest.raises(InputError, match="exactly one"):
            cut([4, 4], rows=rows, tokens=tokens)


def test_packing_takes_the_first_bin_with_room_and_keeps_the_stream_order_inside():
    schedule = cut([5, 9, 3, 7, 4], tokens=12, batching="packed")
    assert groups(schedule) == [[(1, 2), (4,)], [(0, 3), ()]]
    filled = [step for rank in schedule.batches[0].ranks for step in rank.micro_steps][:3]
    assert {(step.rows, step.length) for step in filled} == {(1, 12)}
    # A filler has the shape of every other row: the other rank runs a whole one meanwhile.
    assert schedule.batches[0].ranks[1].micro_steps[1] == MicroStep(samples=(), rows=1, length=12)
    assert schedule.distinct_shapes == 1


def test_packing_pads_less_than_rows_of_like_length():
    lengths = draw_lengths("ultrachat-like", num_samples=256, max_length=512, seed=0)
    packed, by_length = (
        cut(lengths, tokens=512, batching=batching, batches=4, longest=512, processes=1)
        for batching in ("packed", "padded")
    )
    assert packed.micro_steps < 0.75 * by_length.micro_steps
    assert packed.padding_share < 0.1
    assert packed.distinct_shapes == 1


def test_rows_cannot_be_packed():
    with pytest.raises(InputError, match="batching packed needs max_tokens"):
        cut([4, 4], rows=1, batching="packed")


def test_unknown_batching_is_refused():
    with pytest.raises(InputError, match="unknown batching"):
        cut([4, 4], tokens=8, batching="random")


def test_stream_of_the_wrong_size_is_refused():
    with pytest.raises(InputError, match="2 batches of 3 samples need 6 samples; there are 5"):
        make_schedule(
            samples_of([4] * 5),
            global_batch=3,
            distinct_batches=2,
            batching="padded",
            micro_batch=1,
            max_tokens=None,
            processes=1,
        )


@pytest.mark.parametrize(
    ("limits", "shape"),
    [
        ({"micro_batch": 4, "max_tokens": None}, (4, 512)),
        ({"micro_batch": None, "max_tokens": 512}, (1, 512)),
        ({"micro_batch": None, "max_tokens": 2048}, (4, 512)),
        ({"micro_batch": None, "max_tokens": 700}, (2, 350)),
        ({"micro_batch": None, "max_tokens": 100}, (1, 100)),
        ({"micro_batch": None, "max_tokens": 1_000_000}, (16, 512)),
    ],
)
def test_worst_case_is_the_largest_shape_that_the_cut_allows(limits, shape):
    step = worst_case(batching="padded", max_length=512, global_batch=16, **limits)
    assert (step.rows, step.length, step.samples) == (*shape, ())


def test_worst_case_of_packing_is_its_only_shape():
    limits = {"max_length": 512, "micro_batch": None, "max_tokens": 700, "global_batch": 16}
    step = worst_case(batching="packed", **limits)
    assert (step.rows, step.length, step.samples) == (1, 700, ())


@pytest.mark.parametrize(
    ("lengths", "how", "met"),
    [
        # Four rows on two ranks, one row a step: each rank's second step has to be a full one.
        ([9, 9, 64, 64], {"rows": 1}, True),
        ([64, 64, 9, 9], {"rows": 1}, False),  # full ones first: no gradients are held meanwhile
        ([9, 9, 9, 64], {"rows": 1}, False),  # one rank of two
        ([9, 9, 9, 64, 9, 9, 64, 9], {"rows": 1, "batches": 2}, True),  # each rank in its own batch
        ([9, 64, 64, 9], {"rows": 2}, True),  # one full row makes the whole step as long
        ([9, 63, 63, 9], {"rows": 2}, False),
        ([64, 64, 64, 64], {"tokens": 128}, True),
        ([40, 40, 40, 40], {"tokens": 128}, False),  # 3 × 40 tokens are less than 2 × 64
        # The second batch needs one step where the first needs two: nothing is held in it.
        ([64, 64, 9, 9, 9, 9, 64, 64], {"tokens": 64, "batches": 2}, False),
    ],
)
def test_whether_the_window_meets_the_worst_case_on_every_rank(lengths, how, met):
    assert cut(lengths, **how).meets_worst_case is met


@pytest.mark.parametrize(
    ("lengths", "how", "growth"),
    [
        # Two ranks, the worst case is 64 long: rows × length² of it over those of a last step.
        ([9, 9, 32, 32], {"rows": 1}, 4.0),
        ([64, 64, 16, 32], {"rows": 1}, 16.0),  # the rank that saw least, its last step alone
        ([9, 9, 16, 16, 9, 9, 32, 16], {"rows": 1, "batches": 2}, 16.0),
        ([32, 9, 32, 9], {"rows": 2}, 4.0),  # 2 × 64² over 2 × 32²
        ([64, 64, 64, 64], {"tokens": 128}, 1.0),
        # The most tokens are in 5 rows of 13: fewer scores than those of a row that was timed.
        ([64, 64, 64, 64], {"tokens": 65}, 1.0),
    ],
)
def test_growth_from_what_was_timed_to_the_worst_case(lengths, how, growth):
    assert cut(lengths, **how).worst_case_growth == growth


@pytest.mark.parametrize("rows", [1, 2, 4, 8, 16])
def test_rare_long_samples_are_the_memorys_worst_case(rows):
    """BUG-045: lengths mostly 500, a few at the limit of 8,192 that no window need meet."""
    schedule = make_schedule(
        Samples(lengths=(500,) * 31 + (8192,), max_length=8192, seed=0, source="x"),
        global_batch=16,
        distinct_batches=2,
        batching="padded",
        micro_batch=rows,
        max_tokens=None,
        processes=1,
    )
    assert (schedule.worst_case.rows, schedule.worst_case.length) == (rows, 8192)
    assert schedule.distinct_shapes == 2
