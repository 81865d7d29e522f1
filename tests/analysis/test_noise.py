import math
import random
import statistics

import pytest

from autotune.analysis import noise


def test_one_launch_tells_no_spread():
    assert noise.launch_spread([0.7]) is None


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
