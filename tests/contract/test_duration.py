import math

import pytest

from autotune.contract.duration import parse_duration


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        ("350ms", 0.350),
        ({"value": 350, "unit": "ms"}, 0.350),
        ({"value": 0.350, "unit": "s"}, 0.350),
        ("0.35s", 0.350),
        ("20us", 2e-5),
        ("5m", 300.0),
        ("5min", 300.0),
        (" 1h 30m ", 5400.0),
        ("1h30m", 5400.0),
        ("2d", 172800.0),
        ("1_000ms", 1.0),
        ("1e3ms", 1.0),
    ],
)
def test_durations_become_seconds(given, seconds):
    """BUG-039: 350 ms and 0.350 s are the same number of seconds."""
    assert parse_duration(given) == pytest.approx(seconds, rel=1e-12)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (350, "has no unit"),
        (0.35, "has no unit"),
        (True, "has no unit"),
        (None, "has no unit"),
        ("350", "not a duration"),
        ("", "empty"),
        ("-5s", "not a duration"),
        ("5 parsecs", "no known unit"),
        ("5s garbage!", "not a duration"),
        ("nans", "not a duration"),
        ("0s", "not a positive"),
        ("1e999s", "not a positive, finite"),
        ({"value": 350}, "no known unit"),
        ({"value": 350, "unit": ["ms"]}, "no known unit"),
        ({"value": "350", "unit": "ms"}, "no number"),
        ({"value": True, "unit": "ms"}, "no number"),
        ({"value": -1, "unit": "s"}, "not a positive"),
        ({"value": math.nan, "unit": "s"}, "not a positive, finite"),
        ({"value": math.inf, "unit": "s"}, "not a positive, finite"),
        ({"value": 10**400, "unit": "s"}, "not a positive, finite"),
    ],
)
def test_what_is_no_duration_is_refused_in_words(given, told):
    """BUG-039: no unit, negative, zero or not finite is never taken for seconds."""
    with pytest.raises(ValueError, match=told):
        parse_duration(given)
