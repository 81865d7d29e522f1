import math

import pytest
from scipy import stats

from autotune.analysis import students_t

DEGREES = [0.5, 1, 1.7, 2, 3, 4, 5, 7, 9, 10, 19, 29.5, 50, 99, 150, 400, 999, 1000, 1001, 5e3, 1e6]
PROBABILITIES = [1e-6, 0.001, 0.025, 0.05, 0.2, 0.4, 0.499, 0.501, 0.6, 0.9, 0.975, 0.995, 0.99999]


@pytest.mark.parametrize("df", DEGREES)
def test_quantiles_equal_scipy(df):
    for p in PROBABILITIES:
        assert students_t.quantile(p, df) == pytest.approx(float(stats.t.ppf(p, df)), rel=1e-9)


def test_known_table_values():
    assert students_t.quantile(0.975, 4) == pytest.approx(2.7764451, abs=5e-8)
    assert students_t.quantile(0.975, 1) == pytest.approx(math.tan(math.pi * 0.475), rel=1e-12)
    assert students_t.quantile(0.5, 3) == 0.0
    assert students_t.quantile(0.025, 8) == -students_t.quantile(0.975, 8)


@pytest.mark.parametrize(
    ("p", "df"), [(0.0, 3), (1.0, 3), (math.nan, 3), (0.9, 0), (0.9, math.nan)]
)
def test_arguments_out_of_range_are_refused(p, df):
    with pytest.raises(ValueError):
        students_t.quantile(p, df)
