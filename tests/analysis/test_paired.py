"""The comparison is judged by simulated launches of the noise that is stated in docs/."""

import math
import random

import pytest

from autotune.analysis import paired

ROUNDS = 5
REPEATS = 1000


def launch(draw, true_s, *, drift, iterations=40):
    """Mean s/it of one launch: 1 % noise per iteration, 0.5 % offset per launch, 2 % spikes."""
    offset = draw.gauss(1, 0.005)
    times = [
        true_s * (1 + drift) * offset * draw.gauss(1, 0.01) * (1.5 if draw.random() < 0.02 else 1)
        for _ in range(iterations)
    ]
    return sum(times) / len(times)


def rounds(draw, baseline_s, candidate_s, *, drift=0.03):
    launches = 2 * ROUNDS
    baseline, candidate = [], []
    for i in range(launches):
        true_s, into = (candidate_s, candidate) if i % 2 else (baseline_s, baseline)
        into.append(launch(draw, true_s, drift=drift * i / (launches - 1)))
    return baseline, candidate


def test_identical_configurations_seldom_have_a_winner():
    draw = random.Random(11)
    hints = [paired.compare(*rounds(draw, 0.8, 0.8)).verdict_hint for _ in range(REPEATS)]
    assert sum(hint != "tie" for hint in hints) / REPEATS <= 0.07


def test_a_true_difference_of_three_percent_is_found():
    draw = random.Random(12)
    found = [paired.compare(*rounds(draw, 0.8, 0.8 / 1.03)) for _ in range(REPEATS)]
    assert sum(c.verdict_hint == "faster" for c in found) / REPEATS >= 0.85
    assert sum(c.ratio for c in found) / REPEATS == pytest.approx(1.03, abs=0.002)


def test_the_interval_covers_the_truth():
    draw = random.Random(13)
    found = [paired.compare(*rounds(draw, 0.8, 0.8 / 1.10)) for _ in range(REPEATS)]
    assert 0.93 <= sum(c.low <= 1.10 <= c.high for c in found) / REPEATS <= 0.98


def test_strong_drift_alone_makes_no_winner():
    """Every launch is 4 % slower than the one before: the candidate, always second, is not."""
    times = [1.04**i for i in range(10)]
    comparison = paired.compare(times[0::2], times[1::2])
    assert comparison.ratio == pytest.approx(1.0)
    assert comparison.verdict_hint == "tie"


def test_an_exact_difference_is_recovered_under_drift():
    baseline = [1.00 * 1.01 ** (2 * i) for i in range(5)]
    candidate = [0.80 * 1.01 ** (2 * i + 1) for i in range(5)]
    comparison = paired.compare(baseline, candidate)
    assert comparison.ratio == pytest.approx(1.25)
    assert comparison.low == pytest.approx(1.25)
    assert (comparison.verdict_hint, comparison.rounds) == ("faster", 5)


def test_a_slower_candidate_is_called_slower():
    comparison = paired.compare([1.0, 1.01, 1.0, 0.99], [1.2, 1.21, 1.19, 1.2])
    assert comparison.verdict_hint == "slower"
    assert comparison.high < 1


def test_swapping_the_roles_inverts_the_ratio():
    one = paired.compare([1.0, 1.02, 0.99], [0.9, 0.91, 0.92])
    other = paired.compare([0.9, 0.91, 0.92], [1.0, 1.02, 0.99])
    assert one.ratio > 1.05
    assert other.ratio < 0.95


def test_one_round_claims_nothing():
    comparison = paired.compare([2.0], [1.0])
    assert comparison.ratio == 2.0
    assert (comparison.low, comparison.high, comparison.verdict_hint) == (None, None, "tie")


def test_two_rounds_need_a_gross_difference():
    assert paired.compare([1.0, 1.01], [0.99, 0.98]).verdict_hint == "tie"
    gross = paired.compare([1.0, 1.01], [0.5, 0.502])
    assert gross.verdict_hint == "faster"


def test_a_closing_baseline_launch_is_used():
    comparison = paired.compare([1.0, 1.1, 1.2], [1.05, 1.15])
    assert comparison.ratio == pytest.approx(1.0, abs=3e-3)
    assert comparison.low is not None
    assert comparison.verdict_hint == "tie"


def test_equal_times_are_a_tie():
    comparison = paired.compare([0.3] * 5, [0.3] * 5)
    assert comparison.ratio == 1.0
    assert comparison.verdict_hint == "tie"


@pytest.mark.parametrize(
    ("baseline", "candidate"),
    [
        ([], []),
        ([1.0], []),
        ([1.0], [1.0, 1.0]),
        ([1.0] * 4, [1.0] * 2),
        ([0.0], [1.0]),
        ([1.0], [math.nan]),
    ],
)
def test_what_is_no_alternating_comparison_is_refused(baseline, candidate):
    with pytest.raises(ValueError):
        paired.compare(baseline, candidate)
