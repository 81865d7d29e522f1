"""The order of configurations by noisy launches whose truth is known."""

import math
import random

import pytest

from autotune.analysis import ranking
from autotune.analysis.paired import Launch


def launch(seconds, spikes=1.0, num_slow=0, iterations=24):
    return Launch(
        mean_s=seconds * spikes, typical_s=seconds, num_slow=num_slow, iterations=iterations
    )


@pytest.mark.parametrize(("iterations", "num_slow", "added"), [(24, 1, 0.021), (8, 2, 0.125)])
def test_slow_iterations_that_could_hit_anyone_do_not_change_the_order(iterations, num_slow, added):
    """They add more than the configurations differ by."""
    hit = launch(0.99, 1 + added, num_slow, iterations)
    found = ranking.estimates([(0, launch(1.00)), (1, hit), (2, launch(1.01)), (3, launch(1.02))])
    assert sorted(found, key=found.__getitem__) == [1, 0, 2, 3]
    usual = math.exp(math.log1p(added) / 4)
    assert found[1] == pytest.approx(0.99 * usual)


def test_slow_iterations_that_a_configuration_alone_has_count_against_it():
    """5 of 24 where the others have 1 of 48: one in 7,000 by chance."""
    found = ranking.estimates(
        [(0, launch(1.00, 1.02, 1)), (1, launch(0.97, 1.10, 5)), (2, launch(1.02))]
    )
    assert sorted(found, key=found.__getitem__) == [0, 2, 1]
    assert found[1] == pytest.approx(0.97 * 1.10)


def test_few_slow_iterations_a_launch_count_when_all_launches_have_them():
    """2 of 24 are nothing to go by, 6 of 72 are: one in 500."""
    once = ranking.estimates([(0, launch(1.00)), (1, launch(0.97, 1.04, 2)), (2, launch(1.02))])
    thrice = ranking.estimates([(0, launch(1.00)), *[(1, launch(0.97, 1.04, 2))] * 3])
    assert once[1] < once[0]
    assert thrice[1] == pytest.approx(0.97 * 1.04)


def test_thousands_of_iterations_are_weighed_as_few_are():
    """A baseline that was launched often, on a machine where one iteration in six is slow."""
    others = [(number, launch(1.00, 1.05, 4)) for number in range(1, 200)]
    like_others = ranking.estimates([(0, launch(0.97, 1.10, 4))] * 100 + others)
    assert like_others[0] < 0.97 * 1.09
    own = ranking.estimates([(0, launch(0.97, 1.10, 6))] * 100 + others)
    assert own[0] == pytest.approx(0.97 * 1.10)


def test_slow_iterations_that_all_have_stay_in_the_time():
    found = ranking.estimates([(0, launch(1.00, 1.2, 9)), (1, launch(0.90, 1.2, 9))])
    assert found == {0: pytest.approx(1.2), 1: pytest.approx(1.08)}


def test_drift_that_repeated_launches_prove_is_removed():
    """The machine slows down by 1 % a launch; 5 ran last and looks 3 % slower than 0."""
    drift = [1.01**i for i in range(9)]
    order = [0, 1, 0, 2, 0, 3, 0, 5, 0]
    true_s = {0: 1.0, 1: 0.98, 2: 0.96, 3: 0.94, 5: 0.99}
    launches = [(n, launch(true_s[n] * drift[i])) for i, n in enumerate(order)]
    found = ranking.estimates(launches)
    assert sorted(found, key=found.__getitem__) == [3, 2, 1, 5, 0]
    assert found[0] / found[5] == pytest.approx(1 / 0.99, rel=1e-3)


def test_a_drift_that_noise_explains_is_left_alone():
    times = {0: [(0, 0.01), (3, -0.01), (6, 0.01), (9, -0.008)]}
    assert ranking.drift(times) == 0.0


def test_single_launches_say_nothing_about_drift():
    assert ranking.drift({i: [(i, 0.1 * i)] for i in range(9)}) == 0.0


def test_several_launches_count_by_their_median():
    found = ranking.estimates(
        [(0, launch(1.0)), (1, launch(0.9)), (0, launch(3.0)), (0, launch(1.0))]
    )
    assert found[0] == pytest.approx(1.0)


def test_nothing_was_launched():
    assert ranking.estimates([]) == {}


def test_the_estimate_of_drift_is_unbiased():
    draw = random.Random(5)
    slopes = [
        ranking.drift(
            {0: [(i, math.log1p(0.01 * i) + draw.gauss(0, 0.005)) for i in range(0, 12, 2)]}
        )
        for _ in range(200)
    ]
    expected = math.log(1.1 / 1.0) / 10
    assert sum(slopes) / len(slopes) == pytest.approx(expected, rel=0.03)
