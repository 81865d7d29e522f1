"""Asking a package in a process of its own."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from autotune.errors import EnvironmentFault
from autotune.exporters import asking

REQUEST = {"config": {"train_batch_size": 4, "zero_optimization": {"stage": 3}}, "processes": 2}


def test_a_file_of_the_packages_name_in_the_working_directory_is_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "deepspeed.py").write_text("raise RuntimeError('shadow')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)  # its own entries are the user's wish
    answer = asking.ask("deepspeed", REQUEST)
    assert (answer["refused"], answer["differences"]) == (None, [])


def test_a_package_that_cannot_be_imported_is_named_with_a_hint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "deepspeed.py").write_text("raise RuntimeError('broken')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(EnvironmentFault, match="RuntimeError: broken") as caught:
        asking.ask("deepspeed", REQUEST)
    assert "import deepspeed" in str(caught.value.hint)


def test_one_that_takes_too_long_is_given_up_with_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(command: list[str], *, timeout: float, **_: Any) -> None:
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(asking.subprocess, "run", slow)
    with pytest.raises(EnvironmentFault, match="deepspeed did not load") as caught:
        asking.ask("deepspeed", REQUEST)
    assert caught.value.hint is not None
