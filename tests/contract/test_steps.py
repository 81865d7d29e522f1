from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from autotune import report_step
from autotune.contract.steps import PATTERN, StepFile


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AUTOTUNE_TRIAL_DIR", str(tmp_path))
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    return tmp_path


def test_what_is_reported_is_read(folder: Path) -> None:
    report_step()
    report_step(loss=2.5, grad_norm=1)
    (path,) = folder.glob(PATTERN)
    assert path.name == f"steps-3-{os.getpid()}.jsonl"
    file = StepFile(path).read()
    assert (file.rank, file.world_size) == (3, 4)
    first, second = file.steps
    assert (first.loss, second.loss, second.grad_norm) == (None, 2.5, 1.0)
    assert second.at >= first.at
    assert second.resident > 1_000_000
    report_step(loss=float("inf"))
    assert not file.read().steps[2].is_finite
    assert second.is_finite


def test_a_tensor_of_one_element_is_a_number(folder: Path) -> None:
    class Tensor:
        def __float__(self) -> float:
            return 1.5

    report_step(loss=Tensor())
    assert StepFile(next(folder.glob(PATTERN))).read().steps[0].loss == 1.5


def test_a_forked_process_has_a_file_of_its_own(folder: Path) -> None:
    report_step()
    child = os.fork()
    if child == 0:
        report_step()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    files = [StepFile(path).read() for path in folder.glob(PATTERN)]
    assert sorted(len(file.steps) for file in files) == [1, 1]


def test_an_unfinished_line_waits(tmp_path: Path) -> None:
    path = tmp_path / "steps-0-1.jsonl"
    line = json.dumps({"at": 1.0})
    path.write_text(f'{{"rank": 0, "world_size": null}}\n{line}\n{line[:4]}')
    file = StepFile(path).read()
    assert len(file.steps) == 1
    with path.open("a") as rest:
        rest.write(line[4:] + "\n")
    assert len(file.read().steps) == 2


def test_a_file_that_is_not_there_yet_is_empty(tmp_path: Path) -> None:
    assert StepFile(tmp_path / "steps-0-1.jsonl").read().rank is None


@pytest.mark.parametrize("line", ["[1]", "nonsense", '{"rank": 0}', '{"rank": "x"}'])
def test_foreign_lines_are_refused(tmp_path: Path, line: str) -> None:
    path = tmp_path / "steps-0-1.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(ValueError):
        StepFile(path).read()
