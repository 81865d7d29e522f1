"""``autotune search`` as a user types it. Real processes are in the tests marked slow."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path

import pytest
from scripted import SPACE

from autotune.cli.main import main
from autotune.contract.folder import StudyFolder
from autotune.store.importer import read_study


def write(tmp_path: Path, text: str = SPACE) -> Path:
    file = tmp_path / "my space.yaml"
    file.write_text(text, encoding="utf-8")
    return file


def test_dry_run_prints_the_plan_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path)
    runs = tmp_path / "runs"
    space = SPACE.replace("[1, 2, 4, 8]", "[1, 2, 3, 8]")
    file.write_text(space, encoding="utf-8")
    assert main(["search", "--space", str(file), "--runs", str(runs), "--dry-run"]) == 0
    text = capsys.readouterr().out
    assert "study my-space: 40 trials" in text
    assert "micro_batch: 3 is left out: global_batch 16 is not divisible" in text
    assert "baseline: micro_batch=1" in text
    assert "runs on 2 × cpu with zero3, launcher local" in text
    assert f"deepspeed {metadata.version('deepspeed')}" in text
    assert "GiB for all processes together" in text
    assert not runs.exists()
    assert list(tmp_path.iterdir()) == [file]


def test_a_hybrid_without_boundary_aware_kernels_is_not_packed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """BUG-049: the choice is left out before anything starts, with the reason."""
    arguments = ["search", "--space", "packing.yaml", "--runs", str(tmp_path / "runs"), "--dry-run"]
    assert main(arguments) == 0
    assert "left out" not in capsys.readouterr().out
    hybrid = [*arguments, "--set", "workload.model=qwen3_5-tiny"]
    assert main(hybrid) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "batching: 'packed' is left out: a hybrid model needs kernels" in text
    # BUG-060: where the hidden size was found is said.
    assert "hidden size 128 is text_config.hidden_size of its config" in text
    assert main([*hybrid, "--set", "baseline.batching=packed"]) == 2
    said = capsys.readouterr().err
    assert "batching packed cannot be: a hybrid model needs kernels" in said
    assert "linear attention by torch takes no sequence boundaries" in said


def test_dry_run_json_is_one_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["search", "--space", str(write(tmp_path)), "--runs", str(tmp_path / "runs")]
    assert main([*arguments, "--dry-run", "--json", "--trials", "7"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["trials"] == 7
    assert plan["baseline"]["micro_batch"] == 1


def test_a_dry_run_counts_every_launch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """20 trials, the baseline twice for its noise, five rounds of it and three finalists."""
    file = write(tmp_path, f"{SPACE}search: {{finalists: 3, max_trial_time: 60s}}\n")
    arguments = ["search", "--space", str(file), "--runs", str(tmp_path / "runs")]
    assert main([*arguments, "--dry-run", "--json", "--trials", "20"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["confirmation_launches"] == 20
    assert plan["estimated_s"]["longest"] == 60 * (20 + 2 + 20)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--space", "{file}", "--trials", "0"], 2, "--trials is 0"),
        (["--space", "{file}", "--study", "a/b"], 2, "cannot be the name"),
        (["--space", "{file}", "--study", "a\nb'"], 2, "cannot be the name"),
        (["--space", "{folder}/none.yaml"], 2, "none.yaml:1:1"),
        (["--space", "{file}", "--set", "workload.global_batch=7"], 2, "global_batch 7"),
        (["--space", "{file}", "--set", "workload.model={folder}"], 2, "config.json"),
        (["--space", "{file}", "--storage", "nonsense"], 2, "not a database URL"),
        (["--space", "{file}", "--runs", "{file}"], 3, "is a file"),
        (["--space", "{file}", "--runs", "/proc/none"], 3, "/proc/none"),
        (["--space", "{file}", "--set", "search.sampler=none"], 2, "sampler"),
        (["--space", "{file}", "--set", "params.reduce_buckets.low=1"], 2, "reduce_buckets"),
    ],
)
def test_bad_input_leaves_no_study(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    code: int,
    words: str,
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    file = write(tmp_path)
    filled = [word.format(file=file, folder=work) for word in arguments]
    assert main(["search", *filled]) == code
    captured = capsys.readouterr()
    assert words in captured.err
    assert "Traceback" not in captured.err
    assert captured.out == ""
    assert not list(work.glob("runs/*/"))


def test_sampler_without_its_package_is_an_environment_fault(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import importlib.util

    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "scipy" else find(name)
    )
    file = write(tmp_path)
    arguments = ["search", "--space", str(file), "--runs", str(tmp_path / "runs")]
    assert main([*arguments, "--set", "search.sampler=gp"]) == 3
    assert "pip install 'scipy" in capsys.readouterr().err


def test_a_version_known_to_be_bad_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = metadata.version
    monkeypatch.setattr(
        metadata, "version", lambda name: "0.17.2+cu128" if name == "deepspeed" else found(name)
    )
    arguments = ["search", "--space", str(write(tmp_path)), "--runs", str(tmp_path / "runs")]
    assert main(arguments) == 3
    error = capsys.readouterr().err
    assert "deepspeed 0.17.2 cannot be used with zero3" in error
    assert "pip install --upgrade deepspeed" in error
    assert not (tmp_path / "runs").exists()


SMALL = ["--set", "workload.data.max_length=48", "--set", "workload.global_batch=4"]
MODEL = {
    "model_type": "qwen3", "vocab_size": 2048, "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32,
}  # fmt: skip
"""One layer of half the tiny preset's width; its embedding is large enough to be partitioned."""


def command(tmp_path: Path, space: str, *arguments: str) -> list[str]:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(MODEL))
    words = [sys.executable, "-m", "autotune", "search", "--space", space]
    words += ["--runs", str(tmp_path / "runs"), "--set", f"workload.model={model}"]
    return [*words, *SMALL, *arguments]


@pytest.mark.slow
@pytest.mark.parametrize("space", ["zero3.yaml", "both.yaml"])
def test_a_whole_search_on_real_ranks(tmp_path: Path, space: str) -> None:
    done = subprocess.run(
        command(tmp_path, space, "--trials", "3", "--json"),
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["counts"] == {"measured": 3}
    assert document["best"]["verdict"] in ("faster", "tie", "keep_baseline")
    contents = read_study(StudyFolder.of(tmp_path / "runs", space.removesuffix(".yaml")))
    checks = [t.measurement.checks[0] for t in contents.trials if t.measurement is not None]
    for check in checks[1:]:
        assert check.loss == pytest.approx(checks[0].loss, rel=1e-5)
        assert check.grad_norm == pytest.approx(checks[0].grad_norm, rel=1e-5)
    for trial in contents.trials:
        assert trial.measurement is not None
        assert all(back.in_effect for back in trial.measurement.read_back.values())


TWO = """
version: 1
backend: fsdp2
workload: {global_batch: 8, data: {lengths: ultrachat-like}}
topology: {processes: 2}
baseline: {micro_batch: 1}
params:
  micro_batch: {choices: [1, 4]}
"""
"""The second configuration is so much faster than the first that it is always confirmed."""


@pytest.mark.slow
def test_killed_and_interrupted_searches_go_on(tmp_path: Path) -> None:
    """BUG-072 with one trial: kill -9, SIGTERM, Ctrl-C while it confirms; each counted once."""
    runs = tmp_path / "runs"
    file = tmp_path / "two.yaml"
    file.write_text(TWO, encoding="utf-8")
    words = command(tmp_path, str(file), "--trials", "2", "--set", "workload.global_batch=8")
    folder = StudyFolder.of(runs, "two")
    for attempt, number in (
        (folder.attempt("trial", 1, 0), signal.SIGKILL),
        (folder.attempt("trial", 1, 1), signal.SIGTERM),
        (folder.attempt("remeasurement", 0, 0), signal.SIGINT),
    ):
        coordinator = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        beat = attempt.heartbeat_file(0)
        deadline = time.monotonic() + 240
        while not beat.exists():
            assert coordinator.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        coordinator.send_signal(number)
        coordinator.communicate(timeout=60)
        killed = number == signal.SIGKILL
        assert coordinator.returncode == (-signal.SIGKILL if killed else 130)
        assert not processes_of(runs)
    trials = read_study(folder).trials
    assert [trial.state for trial in trials] == ["complete"] * 2
    assert [len(trial.attempts) for trial in trials] == [1, 3]


def processes_of(runs: Path) -> list[int]:
    """Processes that still belong to a study under ``runs``, a moment after its end."""
    deadline = time.monotonic() + 20
    found = [0]
    while found and time.monotonic() < deadline:
        time.sleep(0.1)
        found = [
            int(entry.name)
            for entry in Path("/proc").iterdir()
            if entry.name.isdecimal()
            and int(entry.name) != os.getpid()
            and _names(int(entry.name), runs)
        ]
    return found


def _names(pid: int, runs: Path) -> bool:
    try:
        return str(runs).encode() in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
