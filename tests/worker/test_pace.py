"""A slow rank is told from one that stands still."""

from __future__ import annotations

from autotune.contract.smallfile import Beat
from autotune.worker.pace import PATIENCE, Pace

LIMITS = {"build": 10.0, "check": 20.0, "measure": 20.0}


def test_standing_still_counts_from_the_last_move() -> None:
    pace = Pace(100.0)
    pace.look(Beat(phase="build"), 103.0)
    assert pace.since == 103.0
    pace.look(Beat(phase="build"), 108.0)
    assert pace.since == 103.0
    pace.look(Beat(phase="build", steps=1), 109.0)
    assert pace.since == 109.0
    assert pace.limit_s(LIMITS) == 10.0
    assert pace.limit_s({}) is None


def test_long_micro_steps_so_far_allow_longer_ones_later() -> None:
    pace = Pace(0.0)
    pace.look(Beat(phase="check"), 1.0)
    assert pace.limit_s(LIMITS) == 20.0
    pace.look(Beat(phase="check", steps=1), 19.0)
    assert pace.limit_s(LIMITS) == PATIENCE * 18.0
    pace.look(Beat(phase="measure", iteration=1, steps=2), 20.0)
    assert pace.limit_s(LIMITS) == PATIENCE * 18.0


def test_a_long_build_says_nothing_of_steps() -> None:
    pace = Pace(0.0)
    pace.look(Beat(phase="build", steps=1), 500.0)
    pace.look(Beat(phase="build", steps=2), 900.0)
    pace.look(Beat(phase="check"), 901.0)
    assert pace.limit_s(LIMITS) == 20.0
