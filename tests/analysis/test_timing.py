import math
import random
import statistics

import pytest
from scipy import stats

from autotune.analysis import timing


def test_interval_is_students_t_over_cycle_means():
    values = [1.00, 1.02, 0.99, 1.01, 1.03]
    interval = timing.mean_interval(values)
    low, high = stats.t.interval(0.95, 4, loc=statistics.fmean(values), scale=stats.sem(values))
    assert interval.mean == pytest.approx(1.01)
    assert (interval.low, interval.high) == pytest.approx((float(low), float(high)), rel=1e-12)
    assert interval.share == pytest.approx((float(high) - 1.01) / 1.01)


def test_one_cycle_has_no_spread_and_never_satisfies_a_stopping_rule():
    interval = timing.mean_interval([0.5])
    assert (interval.mean, interval.low, interval.high) == (0.5, 0.5, 0.5)
    assert interval.share == math.inf


def test_interval_of_two_wild_cycles_stays_positive():
    interval = timing.mean_interval([0.1, 0.9])
    assert interval.low == pytest.approx(0.05)
    assert interval.high > 0.9


@pytest.mark.parametrize("values", [[], [0.0], [-1.0, 1.0], [math.nan], [math.inf, 1.0]])
def test_times_that_are_no_times_are_refused(values):
    with pytest.raises(ValueError):
        timing.mean_interval(values)


def test_cycles_are_averaged_whole():
    assert timing.cycle_means([1, 3, 2, 4, 3, 5], 2) == (2, 3, 4)
    with pytest.raises(ValueError, match="5 iterations are not whole cycles of 2"):
        timing.cycle_means([1, 3, 2, 4, 3], 2)


def test_batch_medians_follow_the_cycle():
    assert timing.batch_medians([1, 10, 2, 20, 9, 30], 2) == (2, 20)


@pytest.mark.parametrize(
    ("previous", "last", "tolerance", "agree"),
    [
        ([1.0, 2.0, 3.0], [1.0, 2.02, 9.0], 0.02, True),
        ([1.0, 2.0, 3.0], [1.0, 2.06, 3.0], 0.02, False),
        ([2.06], [2.0], 0.02, False),
        ([2.06], [2.0], 0.10, True),
        ([1.0], [1.0], 0.0, True),
    ],
)
def test_cycles_agree_by_their_medians(previous, last, tolerance, agree):
    assert timing.cycles_agree(previous, last, tolerance) is agree
    assert timing.cycles_agree(last, previous, tolerance) is agree


def test_quantile_interpolates():
    assert timing.quantile([4, 1, 3, 2], 0.5) == 2.5
    assert timing.quantile(list(range(101)), 0.95) == 95
    assert timing.quantile([1, 2], 0.95) == pytest.approx(1.95)
    assert timing.quantile([7], 0.95) == 7
    with pytest.raises(ValueError):
        timing.quantile([], 0.5)


def test_batches_of_unequal_length_are_not_unsteady():
    """Mean and median of the raw times differ by 40 % here, yet every cycle is the same."""
    assert not timing.is_unsteady([1.0, 1.0, 1.0, 3.0] * 5, 4)


def test_a_spike_is_unsteady_even_with_two_cycles():
    assert timing.is_unsteady([1.0, 1.0, 1.0, 3.0, 1.5, 1.0, 1.0, 3.0], 4)
    assert not timing.is_unsteady([1.0, 1.0, 1.0, 3.0, 1.1, 1.0, 1.0, 3.0], 4)


def test_plain_noise_of_one_percent_is_steady():
    draw = random.Random(0)
    for _ in range(200):
        times = [length * draw.gauss(1, 0.01) for length in (1.0, 1.3, 0.8, 2.0) * 10]
        assert not timing.is_unsteady(times, 4)


def test_a_tenth_of_the_iterations_at_double_time_is_unsteady():
    assert timing.is_unsteady(([1.0] * 9 + [2.0]) * 4, 1)


def test_seconds_must_add_up_to_the_clock_of_the_window():
    """BUG-039: a thousand-fold slip of units shows against the wall clock."""
    assert timing.agrees_with_clock([0.35] * 10, 3.6)
    assert not timing.agrees_with_clock([0.35] * 10, 4.0)
    assert not timing.agrees_with_clock([350.0] * 10, 3.5)
