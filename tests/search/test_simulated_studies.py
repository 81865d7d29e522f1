"""A few whole studies whose truth is known; ``benchmarks/simulate.py`` runs hundreds.

The seeds are fixed, so the counts are too: a change that makes the search wrong more often shows.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
STUDIES = 20


@pytest.fixture
def simulate(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import simulate

    yield simulate
    for name in ("simulate", "simulated", "in_memory", "harness"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(("name", "least", "most"), [
    ("identical", 0, 2), ("gain", STUDIES - 2, STUDIES), ("ranked", STUDIES - 3, STUDIES),
])  # fmt: skip
def test_studies_find_what_is_there(simulate, name: str, least: int, most: int) -> None:
    scenario = next(one for one in simulate.SCENARIOS if one.name == name)
    found = simulate.run(scenario, STUDIES)
    assert least <= found["count"] <= most
    assert 5 <= found["launches_per_study"] <= 15


def test_comparing_finds_a_difference_and_makes_none_up(simulate) -> None:
    equal = simulate.compare_many(simulate.COMPARISONS[0], 20)
    apart = simulate.compare_many(simulate.COMPARISONS[1], 20)
    assert equal["count"] <= 3
    assert apart["count"] >= 18


def test_the_noise_is_what_is_stated(simulate) -> None:
    """Spread of single iterations, offsets of launches, drift over the study, spikes."""
    noise = simulate.Noise(launches=11)
    truth = simulate.Truth(seconds=(1.0,), noise=noise, seed=3)
    draw = random.Random(1)
    first = [truth.level_of(0, random.Random(draw.random()))(1) for _ in range(4000)]
    last = [truth.level_of(10, random.Random(draw.random()))(1) for _ in range(4000)]
    usual = [t for (t,) in first if t < 1.2]
    spiked = [t for (t,) in first if t >= 1.2]
    assert len(spiked) / len(first) == pytest.approx(0.02, abs=0.006)
    assert sum(spiked) / len(spiked) == pytest.approx(1.5, rel=0.01)
    middle = sum(usual) / len(usual)
    spread = (sum((t - middle) ** 2 for t in usual) / len(usual)) ** 0.5
    assert spread == pytest.approx((0.01**2 + 0.005**2) ** 0.5, rel=0.05)
    later = [t for (t,) in last if t < 1.2]
    assert sum(later) / len(later) / middle == pytest.approx(1.03, abs=0.002)
