import math
import random
import statistics

import pytest
from scipy import stats

from autotune.analysis import noise


def test_one_launch_tells_no_spread():
    assert noise.launch_spread([0.7]) is None
    assert noise.summarise([0.7]) is None


@pytest.mark.parametrize("launches", [2, 3, 4, 6, 12])
def test_spread_estimates_the_relative_standard_deviation(launches):
    draw = random.Random(1)
    found = [
        noise.launch_spread([0.8 * draw.gauss(1, 0.02) for _ in range(launches)])
        for _ in range(3000)
    ]
    assert statistics.fmean(found) == pytest.approx(0.02, rel=0.15)


def test_the_unit_of_time_does_not_matter():
    times = [0.77, 0.78, 0.75, 0.80]
    assert noise.launch_spread(times) == pytest.approx(
        noise.launch_spread([1000 * t for t in times])
    )


def test_one_odd_launch_of_five_does_not_move_the_spread_much():
    quiet = [1.00, 1.01, 0.99, 1.005, 0.995]
    odd = [*quiet[:4], 3.0]
    assert noise.launch_spread(odd) < 2.5 * noise.launch_spread(quiet)
    assert statistics.stdev(odd) > 50 * statistics.stdev(quiet)


def test_equal_launches_have_no_spread():
    assert noise.launch_spread([0.5, 0.5, 0.5]) == 0.0


@pytest.mark.parametrize("times", [[], [1.0, 0.0], [1.0, math.nan], [-1.0, 1.0]])
def test_times_that_are_no_times_are_refused(times):
    with pytest.raises(ValueError):
        noise.launch_spread(times)


def test_summary_over_launches():
    times = [0.77, 0.78, 0.76, 0.79, 0.775]
    summary = noise.summarise(times)
    logs = [math.log(t) for t in times]
    low, high = stats.t.interval(0.95, 4, loc=statistics.fmean(logs), scale=stats.sem(logs))
    assert summary.median == 0.775
    assert summary.mean == pytest.approx(statistics.fmean(times))
    assert (summary.low, summary.high) == pytest.approx((math.exp(low), math.exp(high)))


def test_summary_always_holds_its_median():
    summary = noise.summarise([1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 30.0])
    assert summary.low <= summary.median <= summary.high
