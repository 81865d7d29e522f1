"""The command that resumes can be typed as it is shown."""

import sys
from pathlib import Path

import pytest

from autotune.cli.search import _program


@pytest.fixture
def program(tmp_path, monkeypatch):
    """An installed program, off PATH."""
    file = tmp_path / "my venv" / "bin" / "autotune"
    file.parent.mkdir(parents=True)
    file.write_text("#!/bin/sh\n")
    file.chmod(0o755)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(sys, "argv", [str(file)])
    return file


def test_a_program_that_path_finds_is_called_by_its_name(program, monkeypatch):
    monkeypatch.setenv("PATH", str(program.parent))
    assert _program() == ["autotune"]


def test_a_program_that_path_does_not_find_is_called_by_its_path(program):
    assert _program() == [str(program)]


def test_another_program_of_that_name_on_path_is_not_this_one(program, tmp_path, monkeypatch):
    other = tmp_path / "bin" / "autotune"
    other.parent.mkdir()
    other.write_text("#!/bin/sh\n")
    other.chmod(0o755)
    monkeypatch.setenv("PATH", str(other.parent))
    assert _program() == [str(program)]


def test_the_module_is_called_by_its_interpreter(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/anywhere/autotune/__main__.py"])
    monkeypatch.setenv("PATH", "/nowhere")
    assert _program() == [sys.executable, "-m", "autotune"]
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    name = Path(sys.executable).name
    expected = "python" if name == "python" else sys.executable
    assert _program() == [expected, "-m", "autotune"]
