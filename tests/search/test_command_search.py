"""``autotune search`` over a program of the user's own, as a user types it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from autotune.backends.base import backend_of
from autotune.contract.folder import StudyFolder
from autotune.store.importer import read_study

ROOT = Path(__file__).resolve().parents[2]
TRAIN = """
import json, sys, time
from autotune import report_step

bucket = json.load(open(sys.argv[1]))["zero_optimization"]["reduce_bucket_size"]
seconds = {100_000: 0.04, 1_000_000: 0.01, 10_000_000: 0.02}[bucket]
for step in range(1000):
    time.sleep(seconds)
    report_step(loss=5.0 - 0.01 * step)
"""
SPACE = """
version: 1
backend: zero3
workload:
  command: [{python}, train.py, "{{deepspeed_json}}"]
  samples_per_iteration: 8
topology: {{processes: 1}}
baseline: {{reduce_bucket_size: 1e7}}
params:
  reduce_bucket_size: {{choices: [1e5, 1e6, 1e7]}}
search: {{trials: 3, max_trial_time: 60s}}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(TRAIN, encoding="utf-8")
    (tmp_path / "own.yaml").write_text(SPACE.format(python=sys.executable), encoding="utf-8")
    return tmp_path


def autotune(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "autotune", *words],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def document(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.slow
def test_a_whole_search_over_a_command(folder: Path) -> None:
    report = document(autotune(folder, "search", "--space", "own.yaml", "--json"))
    assert report["counts"] == {"measured": 3}
    assert report["baseline"]["params"] == {"reduce_bucket_size": 10_000_000}
    best = report["best"]
    assert best["verdict"] == "faster"
    assert best["params"] == {"reduce_bucket_size": 1_000_000}
    assert 1.3 < best["speedup"]["ratio"] < 2.2
    assert best["unverified"] == {"zero3.reduce_bucket_size": 1_000_000}
    assert best["read_back"] == {}
    assert {trial["tokens_per_s"] for trial in report["trials"]} == {None}
    text = " ".join(autotune(folder, "report", "own").stdout.split())
    assert "zero3.reduce_bucket_size = 1000000 was passed on and not read back" in text

    exported = document(autotune(folder, "export", "own", "-o", "best.json", "--json"))
    assert exported["equals_measured"]
    study = StudyFolder.of(folder / "runs", "own")
    measured = study.attempt("trial", best["trial"], 0)
    assert json.loads((folder / "best.json").read_text()) == json.loads(
        (measured.path / "deepspeed.json").read_text()
    )
    rendered = backend_of("zero3").render(measured.read_plan())
    assert json.loads((folder / "best.json").read_text()) == rendered
    refused = autotune(folder, "export", "own", "--format", "accelerate")
    assert refused.returncode == 1
    assert "tuned a command of its own" in refused.stderr


@pytest.mark.slow
def test_a_killed_search_over_a_command_goes_on(folder: Path) -> None:
    words = [sys.executable, "-m", "autotune", "search", "--space", "own.yaml", "--trials", "2"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    beat = StudyFolder.of(folder / "runs", "own").attempt("trial", 1, 0).heartbeat_file(0)
    coordinator = subprocess.Popen(
        words, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    deadline = time.monotonic() + 120
    while not beat.exists():
        assert coordinator.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    coordinator.send_signal(signal.SIGKILL)
    coordinator.communicate(timeout=60)
    while programs_in(folder):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    report = document(autotune(folder, "search", "--space", "own.yaml", "--trials", "2", "--json"))
    assert [trial["state"] for trial in report["trials"]] == ["complete"] * 2
    contents = read_study(StudyFolder.of(folder / "runs", "own"))
    assert [len(trial.attempts) for trial in contents.trials] == [1, 2]


def programs_in(folder: Path) -> list[int]:
    """Processes that work in ``folder``: the command of a trial and what runs it."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                if (entry / "cwd").resolve() == folder.resolve():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def test_a_dry_run_shows_the_command(folder: Path) -> None:
    done = autotune(folder, "search", "--space", "own.yaml", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "train.py '{deepspeed_json}'" in done.stdout
    assert "an iteration: 8 samples\n" in done.stdout
    assert not (folder / "runs").exists()


def test_a_program_that_is_not_there_is_refused(folder: Path) -> None:
    override = 'workload.command=[no-such-program, "{deepspeed_json}"]'
    done = autotune(folder, "search", "--space", "own.yaml", "--set", override)
    assert done.returncode == 2
    assert "there is no program 'no-such-program' to run" in done.stderr
    assert not (folder / "runs").exists()


def test_a_failing_baseline_says_what_the_program_said(folder: Path) -> None:
    (folder / "train.py").write_text("raise ValueError('no data here')")
    done = autotune(folder, "search", "--space", "own.yaml")
    assert done.returncode == 1
    assert "failed with crash: ValueError: no data here" in done.stderr
