from __future__ import annotations

import json
import os
import subprocess
import sys
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


@pytest.mark.parametrize(
    ("environment", "place"),
    [
        ({}, (0, None)),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, (1, 2)),
        ({"SLURM_PROCID": "2", "SLURM_STEP_NUM_TASKS": "4", "SLURM_NTASKS": "8"}, (2, 4)),
        # torchrun inside a job: the job's own numbers are those of another thing.
        (
            {"RANK": "1", "WORLD_SIZE": "2", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"},
            (1, 2),
        ),
        # One process in an allocation of eight tasks, without srun.
        ({"SLURM_NTASKS": "8"}, (0, None)),
    ],
)
def test_rank_and_size_are_one_launchers(
    environment: dict[str, str],
    place: tuple[int, int | None],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    report_step()
    file = StepFile(next(folder.glob(PATTERN))).read()
    assert (file.rank, file.world_size) == place


SYNCHRONISING = """
import sys, types
from autotune import report_step

waits = []
cuda = types.SimpleNamespace(
    is_initialized=lambda: True,
    synchronize=lambda: waits.append(done),
    current_device=lambda: 0,
    get_device_properties=lambda device: types.SimpleNamespace(total_memory=1),
    max_memory_reserved=lambda device: 1,
)
sys.modules["torch"] = types.SimpleNamespace(cuda=cuda)
for done in range(10):
    report_step()
print(*waits)
"""


@pytest.mark.parametrize(
    ("every", "waits"), [("4", "0 4 8"), ("1", "0 1 2 3 4 5 6 7 8 9"), ("", "")]
)
def test_the_device_is_waited_for_where_a_window_may_begin(
    every: str, waits: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOTUNE_SYNCHRONISE_EVERY", every)
    done = subprocess.run(
        [sys.executable, "-c", SYNCHRONISING], check=True, capture_output=True, text=True
    )
    assert done.stdout.strip() == waits


def test_an_unfinished_line_waits(tmp_path: Path) -> None:
    path = tmp_path / "steps-0-1.jsonl"
    line = json.dumps({"at": 1.0})
    path.write_text(f'{{"rank": 0, "world_size": null}}\n{line}\n{line[:4]}')
    file = StepFile(path).read()
    assert len(file.steps) == 1
    with path.open("a") as rest:
        rest.write(line[4:] + "\n")
    assert len(file.read().steps) == 2


def test_what_is_no_plain_file_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "steps-0-1.jsonl")
    with pytest.raises(ValueError, match="is no plain file"):
        StepFile(tmp_path / "steps-0-1.jsonl").read()


def test_a_file_that_is_not_there_yet_is_empty(tmp_path: Path) -> None:
    assert StepFile(tmp_path / "steps-0-1.jsonl").read().rank is None


@pytest.mark.parametrize("line", ["[1]", "nonsense", '{"rank": 0}', '{"rank": "x"}'])
def test_foreign_lines_are_refused(tmp_path: Path, line: str) -> None:
    path = tmp_path / "steps-0-1.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(ValueError):
        StepFile(path).read()
