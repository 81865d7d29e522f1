"""A coordinator killed before each single change that it makes to a file or the database."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).with_name("killed_search.py")
STEP = 40
"""Of the changes that are not named in ``killed_search.py`` every so many-th is tried."""


def test_a_coordinator_killed_at_any_change_leaves_exactly_the_trials_asked_for(
    memory_path: Path,
) -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(memory_path), str(STEP)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    lives = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(lives) > 20
    for life in lives:
        assert life["killed"] == -signal.SIGKILL, life
        assert life["resumed"] == 0, life
        assert life["numbers"] == [0, 1], life
        assert life["keys"] == life["counted"] == 2, life
        assert life["ends"] == [["complete"], ["complete"]], life
        assert life["before"] in ([], ["interrupted"]), life
        assert life["rounds"] == 5, life
        assert life["again"] == list(range(len(life["again"]))), life
        assert life["verdict"] == "faster", life
        assert life["problems"] == life["left"] == [], life
        assert life["folder"], life
        assert life["database"], life
        assert life["shown"] == ["COMPLETE", "COMPLETE"], life
