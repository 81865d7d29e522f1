"""Slow iterations are told from long batches and from noise."""

import random
import statistics

import pytest

from autotune.analysis import slow

BATCHES = (1.0, 1.2, 0.8, 2.0)


def launch(*, cycles, level=1.0, slow_at=(), by=1.5, noise=0.0, draw=None):
    times = [level * BATCHES[i % 4] for i in range(4 * cycles)]
    if noise:
        times = [seconds * draw.gauss(1, noise) for seconds in times]
    return [seconds * (by if i in slow_at else 1) for i, seconds in enumerate(times)]


def test_without_slow_iterations_the_typical_time_is_the_mean():
    draw = random.Random(1)
    times = launch(cycles=5, noise=0.02, draw=draw)
    (found,) = slow.part([times], 4)
    assert found.num_slow == 0
    assert found.typical_s == pytest.approx(statistics.fmean(times), rel=1e-12)


@pytest.mark.parametrize("slow_at", [(0,), (3,), (7,), (1, 6)])
def test_two_cycles_of_unequal_batches_show_a_slow_iteration(slow_at):
    (found,) = slow.part([launch(cycles=2, slow_at=slow_at)], 4)
    assert found.num_slow == len(slow_at)
    assert found.typical_s == pytest.approx(1.25)


def test_launches_of_a_single_cycle_show_it_together():
    """A long batch and a slow iteration look alike in one launch, not beside the others."""
    launches = [launch(cycles=1, level=level) for level in (1.0, 1.01, 0.99)]
    launches.insert(1, launch(cycles=1, slow_at=(0,)))
    found = slow.part(launches, 4)
    assert [one.num_slow for one in found] == [0, 1, 0, 0]
    assert found[1].typical_s == pytest.approx(1.25, rel=0.02)


def test_a_single_launch_of_a_single_cycle_is_left_as_it_is():
    times = launch(cycles=1, slow_at=(2,))
    (found,) = slow.part([times], 4)
    assert (found.num_slow, found.typical_s) == (0, pytest.approx(statistics.fmean(times)))


def test_the_level_of_a_launch_is_no_slowness():
    """Another launch of the configuration was half as slow again, all through."""
    found = slow.part([launch(cycles=3), launch(cycles=3, level=1.5)], 4)
    assert [one.num_slow for one in found] == [0, 0]
    assert found[1].typical_s == pytest.approx(1.5 * 1.25)


@pytest.mark.parametrize("cycles", [2, 3, 6])
def test_heavy_noise_is_not_cut_off_at_one_side(cycles):
    """15 % an iteration: the typical time keeps the level of the mean, whatever the cycles."""
    draw = random.Random(cycles)
    gaps = []
    for _ in range(400):
        times = launch(cycles=cycles, noise=0.15, draw=draw)
        (found,) = slow.part([times], 4)
        gaps.append(found.typical_s / statistics.fmean(times))
    assert statistics.fmean(gaps) == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize("times", [[], [1.0] * 5, [1.0, 1.0, 1.0, 0.0]])
def test_what_is_no_launch_is_refused(times):
    with pytest.raises(ValueError):
        slow.part([times], 4)
