"""A launch played from recorded ones ends where a real one would, at recorded times."""

from __future__ import annotations

import random
import statistics

import pytest

from autotune.analysis import played
from autotune.analysis.played import Recorded, Source, play
from autotune.contract.plan import Measuring, Racing

CYCLE = 2
RULES = Measuring(
    warmup_tolerance=0.05,
    warmup_max_cycles=4,
    interval_share=0.01,
    window_s=100.0,
    window_iterations=12,
)
WARMUP = ((3.0, 3.1), (2.0, 1.9))
ONE = Recorded(warmup=WARMUP, timed=((1.0, 1.01), (2.0, 1.98)))
"""Two ranks, one cycle of two batches, of which one takes twice as long."""


def two_cycles(step: float) -> Recorded:
    shares = (1.0 - step, 1.0 + step)
    timed = tuple((a * share, b * share) for share in shares for a, b in ONE.timed)
    return Recorded(warmup=WARMUP, timed=timed)


def test_recorded_iterations_are_played_first_and_in_order() -> None:
    recorded = two_cycles(0.02)
    launch = play(Source([recorded], CYCLE, ()), RULES, random.Random(1))
    assert launch.warmup[:2] == WARMUP
    assert launch.timed[:4] == recorded.timed
    assert len(launch.timed) == 12
    assert launch.verdict == "done"


def test_a_single_cycle_is_repeated_with_the_deviations_of_others() -> None:
    same = play(Source([ONE], CYCLE, ()), RULES, random.Random(1))
    assert same.timed == ONE.timed * 2  # the interval of equal cycles is as narrow as can be
    assert same.steady
    varied = play(Source([ONE], CYCLE, (0.9, 1.1)), RULES, random.Random(1))
    assert len(varied.timed) == 12
    drawn = {one[0] / ONE.timed[i % 2][0] for i, one in enumerate(varied.timed[2:])}
    assert {round(share, 9) for share in drawn} == {0.9, 1.1}
    # Ranks run in step: all of them are slower in a slow iteration.
    for index, (a, b) in enumerate(varied.timed):
        assert b / a == pytest.approx(ONE.timed[index % 2][1] / ONE.timed[index % 2][0])


def test_the_rules_end_the_window_that_was_recorded_longer() -> None:
    long = Recorded(warmup=WARMUP, timed=ONE.timed * 5)
    launch = play(Source([long], CYCLE, ()), RULES, random.Random(1))
    assert launch.timed == ONE.timed * 2


def test_racing_stops_a_played_launch() -> None:
    racing = Racing(best_s_per_it=1.0, noise_share=0.01)
    rules = Measuring(
        warmup_tolerance=0.05,
        warmup_max_cycles=4,
        interval_share=0.0,
        window_s=100.0,
        window_iterations=12,
        racing=racing,
    )
    launch = play(Source([two_cycles(0.001)], CYCLE, ()), rules, random.Random(1))
    assert (launch.verdict, len(launch.timed)) == ("slower", 4)


def test_a_warm_up_that_never_agrees_ends_at_its_limit() -> None:
    limited = Measuring(
        warmup_tolerance=0.0,
        warmup_max_cycles=3,
        interval_share=0.01,
        window_s=100.0,
        window_iterations=2,
    )
    shares = tuple(0.9 + i / 100 for i in range(20))
    launch = play(Source([ONE], CYCLE, shares), limited, random.Random(3))
    assert (len(launch.warmup), launch.steady) == (6, False)


def test_a_launch_that_is_drawn_whole_varies_around_all_recorded_ones() -> None:
    slower = Recorded(warmup=WARMUP, timed=tuple((a * 1.21, b * 1.21) for a, b in ONE.timed))
    source = Source([ONE, slower], CYCLE, ())
    usual = statistics.fmean(max(one) for one in ONE.timed)
    assert source.level == pytest.approx(usual * 1.1)
    launch = play(source, RULES, random.Random(1), factor=1.02)
    assert played.level(launch.timed) == pytest.approx(usual * 1.1 * 1.02)
    assert launch.warmup[0][0] == pytest.approx(3.0 * 1.1 * 1.02)


def test_the_same_draws_give_the_same_launch() -> None:
    source = Source([two_cycles(0.03)], CYCLE, ())
    first, again, other = (play(source, RULES, random.Random(seed)) for seed in (5, 5, 6))
    assert first == again
    assert first.timed[:4] == other.timed[:4]
    assert first.timed != other.timed


def test_deviations_have_the_spread_of_the_times_they_come_from() -> None:
    draw = random.Random(0)
    spread = []
    for _ in range(2000):
        timed = tuple((draw.gauss(2.0, 0.1),) for _ in range(2 * CYCLE))
        spread += played.deviations(timed, CYCLE)
    assert statistics.fmean(spread) == pytest.approx(1.0, abs=1e-9)
    assert statistics.pstdev(spread) == pytest.approx(0.05, rel=0.03)
    assert played.deviations(ONE.timed, CYCLE) == []
