"""The comparison is judged by simulated launches of the noise that is stated in docs/."""

import math
import random
import statistics

import pytest

from autotune.analysis import paired, slow

ROUNDS = 5
REPEATS = 500
CYCLE = 4


BATCHES = (0.9, 1.0, 1.1, 1.3)


def window(draw, true_s, *, drift, iterations=40, spikes=0.02, noise=0.01, every=0, size=1.5):
    """One launch: 1 % noise per iteration, 0.5 % offset per launch, spikes of 1.5 times.

    ``every``: the slow iterations come in even steps instead of by chance.
    """
    offset = draw.gauss(1, 0.005)
    first = draw.randrange(1000)
    times = []
    for i in range(iterations):
        is_slow = (first + i) % every == 0 if every else draw.random() < spikes
        seconds = true_s * BATCHES[i % CYCLE] * (1 + drift) * offset * draw.gauss(1, noise)
        times.append(seconds * (size if is_slow else 1))
    return times


def summaries(windows):
    parted = slow.part(windows, CYCLE)
    return [
        paired.Launch(mean_s=statistics.fmean(times), typical_s=part.typical_s)
        for times, part in zip(windows, parted, strict=True)
    ]


def rounds(draw, baseline_s, candidate_s, *, drift=0.03, **noise):
    launches = 2 * ROUNDS
    sides = ([], [])
    for i in range(launches):
        true_s = candidate_s if i % 2 else baseline_s
        sides[i % 2].append(window(draw, true_s, drift=drift * i / (launches - 1), **noise))
    return summaries(sides[0]), summaries(sides[1])


def compare_launches(baseline, candidate):
    """Sides that took turns, A B A B, perhaps with a last A."""
    launched = [(0, 2 * i, one) for i, one in enumerate(baseline)]
    launched += [(1, 2 * i + 1, one) for i, one in enumerate(candidate)]
    turns = [paired.Turn(side=a, position=at, launch=one) for a, at, one in launched]
    return paired.compare_turns(turns, 0, 1)


def compare_times(baseline, candidate):
    """The same of launches of which nothing but the s/it is known."""
    sides = ([paired.Launch(mean_s=s, typical_s=s) for s in x] for x in (baseline, candidate))
    return compare_launches(*sides)


def by_means(baseline, candidate):
    return compare_times([x.mean_s for x in baseline], [x.mean_s for x in candidate])


@pytest.mark.parametrize("iterations", [4, 8, 40])
def test_identical_configurations_seldom_have_a_winner(iterations):
    draw, repeats, compare = random.Random(11), REPEATS, compare_launches
    found = [compare(*rounds(draw, 0.8, 0.8, iterations=iterations)) for _ in range(repeats)]
    assert sum(c.verdict_hint != "tie" for c in found) / repeats <= 0.07
    assert sum(c.verdict_hint == "faster" for c in found) / repeats <= 0.035


@pytest.mark.parametrize("iterations", [8, 24, 40])
def test_a_true_difference_of_three_percent_is_found(iterations):
    draw = random.Random(12)
    found = [
        compare_launches(*rounds(draw, 0.8, 0.8 / 1.03, iterations=iterations))
        for _ in range(REPEATS)
    ]
    assert sum(c.verdict_hint == "faster" for c in found) / REPEATS >= 0.93
    # Where luck puts the means of short windows on the other side, they are taken: never too good.
    assert 1.028 <= sum(c.ratio for c in found) / REPEATS <= 1.0305


def test_means_of_short_windows_find_it_half_as_often():
    draw = random.Random(12)
    found = [by_means(*rounds(draw, 0.8, 0.8 / 1.03, iterations=8)) for _ in range(REPEATS)]
    assert 0.40 <= sum(c.verdict_hint == "faster" for c in found) / REPEATS <= 0.60
    assert sum(c.ratio for c in found) / REPEATS == pytest.approx(1.03, abs=0.002)


@pytest.mark.parametrize("compare", [by_means, compare_launches])
def test_the_interval_covers_the_truth(compare):
    draw = random.Random(13)
    found = [compare(*rounds(draw, 0.8, 0.8 / 1.10)) for _ in range(REPEATS)]
    assert 0.93 <= sum(c.low <= 1.10 <= c.high for c in found) / REPEATS <= 0.99


def test_spikes_of_the_candidate_alone_count_against_it():
    """Typically 3 % faster, but a fifth of its iterations take half as long again."""
    draw = random.Random(14)
    wrong = 0
    for _ in range(200):
        baseline, _ = rounds(draw, 0.8, 0.8)
        _, candidate = rounds(draw, 0.8, 0.8 / 1.03, spikes=0.20)
        wrong += compare_launches(baseline, candidate).verdict_hint == "faster"
    assert wrong == 0


@pytest.mark.parametrize(("every", "size"), [(10, 1.5), (20, 2.0)])
def test_periodic_slow_steps_are_not_forgiven(every, size):
    """Typically 3 % faster, but 1 to 2 % slower in the mean of all its iterations."""
    draw, repeats = random.Random(15), 400
    wrong = 0
    for _ in range(repeats):
        baseline, _ = rounds(draw, 0.8, 0.8, iterations=24)
        _, candidate = rounds(draw, 0.8, 0.8 / 1.03, iterations=24, every=every, size=size)
        wrong += compare_launches(baseline, candidate).verdict_hint == "faster"
    assert wrong / repeats <= 0.07


def test_a_gain_by_fewer_slow_steps_is_found():
    """Both take 0.8 s, but every eighth iteration of the baseline takes half as long again."""
    draw, found = random.Random(16), 0
    for _ in range(200):
        baseline, _ = rounds(draw, 0.8, 0.8, iterations=24, every=8)
        _, candidate = rounds(draw, 0.8, 0.8, iterations=24)
        found += compare_launches(baseline, candidate).verdict_hint == "faster"
    assert found / 200 >= 0.85


def test_strong_drift_alone_makes_no_winner():
    """Every launch is 4 % slower than the one before: the candidate, always second, is not."""
    times = [1.04**i for i in range(10)]
    comparison = compare_times(times[0::2], times[1::2])
    assert comparison.ratio == pytest.approx(1.0)
    assert comparison.verdict_hint == "tie"


def test_an_exact_difference_is_recovered_under_drift():
    baseline = [1.00 * 1.01 ** (2 * i) for i in range(5)]
    candidate = [0.80 * 1.01 ** (2 * i + 1) for i in range(5)]
    comparison = compare_times(baseline, candidate)
    assert comparison.ratio == pytest.approx(1.25)
    assert comparison.low == pytest.approx(1.25)
    assert (comparison.verdict_hint, comparison.rounds) == ("faster", 5)


def test_a_slower_candidate_is_called_slower():
    comparison = compare_times([1.0, 1.01, 1.0, 0.99], [1.2, 1.21, 1.19, 1.2])
    assert comparison.verdict_hint == "slower"
    assert comparison.high < 1


def test_swapping_the_roles_inverts_the_ratio():
    one = compare_times([1.0, 1.02, 0.99], [0.9, 0.91, 0.92])
    other = compare_times([0.9, 0.91, 0.92], [1.0, 1.02, 0.99])
    assert one.ratio > 1.05
    assert other.ratio < 0.95


def test_one_round_claims_nothing():
    comparison = compare_times([2.0], [1.0])
    assert comparison.ratio == 2.0
    assert (comparison.low, comparison.high, comparison.verdict_hint) == (None, None, "tie")


def test_two_rounds_need_a_gross_difference():
    assert compare_times([1.0, 1.01], [0.99, 0.98]).verdict_hint == "tie"
    gross = compare_times([1.0, 1.01], [0.5, 0.502])
    assert gross.verdict_hint == "faster"


def test_a_closing_baseline_launch_is_used():
    comparison = compare_times([1.0, 1.1, 1.2], [1.05, 1.15])
    assert comparison.ratio == pytest.approx(1.0, abs=3e-3)
    assert comparison.low is not None
    assert comparison.verdict_hint == "tie"


def test_equal_times_are_a_tie():
    comparison = compare_times([0.3] * 5, [0.3] * 5)
    assert comparison.ratio == 1.0
    assert comparison.verdict_hint == "tie"


@pytest.mark.parametrize(
    ("baseline", "candidate"),
    [
        ([], []),
        ([1.0], []),
        ([0.0], [1.0]),
        ([1.0], [math.nan]),
    ],
)
def test_a_missing_side_and_impossible_times_are_refused(baseline, candidate):
    with pytest.raises(ValueError):
        compare_times(baseline, candidate)


def turns(*launched):
    return [
        paired.Turn(side=side, position=i, launch=paired.Launch(mean_s=s, typical_s=s))
        for i, (side, s) in enumerate(launched)
    ]


def test_launches_of_others_are_left_out_but_keep_their_places():
    """Three in turns under a drift of 1 % a launch: B and C are as fast as A."""
    drift = [1.01**i for i in range(15)]
    three = turns(*((i % 3, drift[i]) for i in range(15)))
    for candidate in (1, 2):
        found = paired.compare_turns(three, 0, candidate)
        assert found.ratio == pytest.approx(1.0)
        assert found.rounds == 5


def test_a_correction_for_several_finalists_widens_the_interval():
    noisy = turns(
        *((i % 2, (1.0, 0.985)[i % 2] * (1 + 0.008 * (-1) ** (i // 3))) for i in range(10))
    )
    alone = paired.compare_turns(noisy, 0, 1)
    one_of_three = paired.compare_turns(noisy, 0, 1, confidence=1 - 0.05 / 3)
    assert one_of_three.ratio == alone.ratio
    assert one_of_three.low < alone.low < alone.high < one_of_three.high


def test_a_side_without_a_launch_cannot_be_compared():
    with pytest.raises(ValueError, match="either side"):
        paired.compare_turns(turns((0, 1.0), (0, 1.1)), 0, 1)


def test_three_equal_finalists_have_a_winner_no_more_often_than_one():
    draw, repeats, wrong = random.Random(21), 600, 0
    for _ in range(repeats):
        times = [window(draw, 0.8, drift=0.03 * i / 19, iterations=24) for i in range(20)]
        sides = [summaries(times[side::4]) for side in range(4)]
        launches = [
            paired.Turn(side=i % 4, position=i, launch=sides[i % 4][i // 4]) for i in range(20)
        ]
        found = [
            paired.compare_turns(launches, 0, side, confidence=1 - 0.05 / 3) for side in (1, 2, 3)
        ]
        wrong += any(one.verdict_hint == "faster" for one in found)
    assert wrong / repeats <= 0.035 + 0.015
