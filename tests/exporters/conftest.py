from __future__ import annotations

from pathlib import Path

import pytest
from study_factory import StudyBuilder

from autotune.exporters import accelerate, deepspeed


@pytest.fixture
def study(tmp_path: Path) -> StudyBuilder:
    return StudyBuilder(tmp_path / "runs")


@pytest.fixture
def unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spares a test that is about something else the seconds of importing both libraries."""
    monkeypatch.setattr(accelerate, "check_in_accelerate", lambda files, main, expected: None)
    monkeypatch.setattr(deepspeed, "load_in_deepspeed", lambda config, processes: None)
