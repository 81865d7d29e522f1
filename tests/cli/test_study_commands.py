from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import optuna
import pytest
from study_factory import StudyBuilder, failed, make_study, measured

from autotune.cli.main import main
from autotune.exporters import deepspeed
from autotune.store import lock


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    study = StudyBuilder(tmp_path / "runs")
    study.trial(measured(0.9, read_back={}))
    best = study.trial(measured(0.5, read_back={}))
    study.trial(failed("oom_device"))
    study.verdict("faster", best, ratio=1.8, low=1.7, high=1.9)
    return study.runs


@pytest.fixture
def unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spares a test that is about something else the seconds of importing DeepSpeed."""
    monkeypatch.setattr(deepspeed, "load_in_deepspeed", lambda config, processes: "0.0")


def call(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = main([str(word) for word in words])
    out, err = capsys.readouterr()
    return code, out, err


def call_json(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, Any]:
    code, out, _ = call(capsys, *words, "--json")
    assert code == 0
    return json.loads(out)  # type: ignore[no-any-return]


def test_report(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = call_json(capsys, "report", "demo", "--runs", runs)
    assert made["best"]["trial"] == 1
    assert made == call_json(capsys, "report", "--study", "demo", "--runs", runs)
    assert made == call_json(capsys, "report", "--runs", runs)
    code, out, err = call(capsys, "report", "--runs", runs)
    assert (code, err) == (0, "")
    assert "Trial 1 is 1.80×" in out


def test_status(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = call_json(capsys, "status", "--runs", runs)
    assert made["running"] is False
    assert made["states"] == {
        "running": 0,
        "complete": 2,
        "stopped_early": 0,
        "failed": 1,
        "interrupted": 0,
    }
    assert made["best"]["verdict"] == "faster"
    code, out, _ = call(capsys, "status", "demo", "--runs", runs)
    assert code == 0
    assert "not running" in out
    assert "2 measured, 1 oom_device" in out


def test_status_of_a_running_search(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = StudyBuilder(tmp_path)
    study.trial(None)
    beat = {"phase": "warmup", "at": 1.0, "iteration": 2}
    study.folder.attempt("trial", 0, 0).heartbeat_file(0).write_text(json.dumps(beat))
    with lock.hold(study.folder):
        made = call_json(capsys, "status", "--runs", tmp_path)
        assert made["running"] is True
        assert made["now"] == {"purpose": "trial", "number": 0, "attempt": 0, "phase": "warmup"}
    made = call_json(capsys, "status", "--runs", tmp_path)
    assert made["running"] is False
    assert made["states"]["interrupted"] == 1


@pytest.mark.parametrize("command", ["status", "report", "export"])
def test_an_unknown_study_names_the_known_ones(
    runs: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    StudyBuilder(runs, make_study("other"))
    code, out, err = call(capsys, command, "nosuch", "--runs", runs)
    assert (code, out) == (2, "")
    assert "'nosuch'" in err
    assert "demo" in err
    assert "other" in err


@pytest.mark.parametrize("command", ["status", "report", "export", "import"])
def test_a_missing_runs_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    code, out, err = call(capsys, command, "--runs", tmp_path / "nowhere")
    assert (code, out) == (2, "")
    assert "nowhere" in err
    assert len(err.splitlines()) == 2


@pytest.mark.parametrize("command", ["status", "report", "export"])
def test_a_missing_database_points_to_import(
    runs: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    (runs / "autotune.db").unlink()
    code, _, err = call(capsys, command, "--runs", runs)
    assert code == 2
    assert f"autotune import {runs}" in err
    assert not (runs / "autotune.db").exists()


def test_import_rebuilds_an_equal_report(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = call_json(capsys, "report", "--runs", runs)
    (runs / "autotune.db").unlink()
    code, out, _ = call(capsys, "import", runs)
    assert code == 0
    assert "imported demo: 3 trials" in out
    assert call_json(capsys, "report", "--runs", runs) == before
    assert call_json(capsys, "import", runs)["trials"] == {"demo": 3}
    empty = runs.parent / "empty"
    empty.mkdir()
    code, _, err = call(capsys, "import", empty)
    assert code == 2
    assert "no study" in err
    assert list(empty.iterdir()) == []


def test_import_rebuilds_optunas_study_too(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (runs / "autotune.db").unlink()
    code, _, err = call(capsys, "import", runs)
    assert (code, err) == (0, "")
    shown = optuna.load_study(study_name="demo", storage=f"sqlite:///{runs}/autotune.db")
    assert [trial.state.name for trial in shown.trials] == ["COMPLETE", "COMPLETE", "FAIL"]
    assert [trial.value for trial in shown.trials] == [0.9, 0.5, None]


def test_two_names_are_one_too_many(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = call(capsys, "report", "demo", "--study", "other", "--runs", runs)
    assert code == 2
    assert "two studies" in err


def test_export_writes_the_file_and_its_companion(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "ds.json"
    code, out, err = call(
        capsys, "export", "demo", "--format", "deepspeed", "-o", file, "--runs", runs
    )
    assert code == 0
    (note,) = err.splitlines()
    assert note.startswith("note: transformers' Trainer takes the file only beside")
    assert "1.80×" in out
    written = json.loads(file.read_text())
    assert written["zero_optimization"]["reduce_bucket_size"] == 499_999_999
    about = json.loads((tmp_path / "ds.json.provenance.json").read_text())
    assert (about["study"], about["trial"], about["verdict"]) == ("demo", 1, "faster")
    assert about["checked_with"].startswith("deepspeed ")


def test_export_replaces_only_its_own_files(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], unasked: None
) -> None:
    file = tmp_path / "ds.json"
    assert call(capsys, "export", "-o", file, "--runs", runs)[0] == 0
    written = json.loads(file.read_text())
    made = call_json(capsys, "export", "--runs", runs, "-o", file)
    assert made["exported"]["files"][0] == str(file)

    file.write_text("mine")
    code, out, err = call(capsys, "export", "-o", file, "--runs", runs)
    assert (code, out, file.read_text()) == (2, "", "mine")
    assert "--force" in err
    assert call(capsys, "export", "-o", file, "--force", "--runs", runs)[0] == 0
    assert json.loads(file.read_text()) == written


def test_export_to_stdout_prints_the_file_only(
    runs: Path, capsys: pytest.CaptureFixture[str], unasked: None
) -> None:
    code, out, err = call(capsys, "export", "--runs", runs)
    assert code == 0
    assert json.loads(out)["zero_optimization"]["stage"] == 3
    assert "1.80×" in err
    made = call_json(capsys, "export", "--runs", runs)
    assert made["exported"]["texts"] == {"demo.deepspeed.json": out}


def test_keep_baseline_and_tie_export_and_say_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], unasked: None
) -> None:
    study = StudyBuilder(tmp_path)
    study.trial(measured(0.5, read_back={}))
    study.trial(measured(0.5, read_back={}))
    study.verdict("keep_baseline", 0)
    code, out, _ = call(capsys, "export", "--runs", tmp_path, "-o", tmp_path / "ds.json")
    assert code == 0
    assert "Keep your baseline" in out
    study.verdict("tie", 1, ratio=1.0, low=0.9, high=1.1)
    code, out, _ = call(capsys, "export", "--runs", tmp_path, "-o", tmp_path / "ds.json")
    assert code == 0
    assert "Tie" in out
    written = json.loads((tmp_path / "ds.json").read_text())
    assert written["zero_optimization"]["reduce_bucket_size"] == 499_999_999


def test_export_of_nothing_exits_1_and_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """BUG-071."""
    study = StudyBuilder(tmp_path)
    study.trial(failed("oom_device"))
    study.verdict("none_feasible", None)
    target = tmp_path / "ds.json"
    code, out, err = call(capsys, "export", "--runs", tmp_path, "-o", target)
    assert (code, out) == (1, "")
    assert "nothing to export" in err
    assert "1 × oom_device" in err
    assert "Traceback" not in err
    assert not target.exists()


def test_export_to_a_missing_folder_and_an_unknown_format(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = call(capsys, "export", "--runs", runs, "-o", tmp_path / "a" / "ds.json")
    assert code == 2
    assert "mkdir" in err
    code, _, err = call(capsys, "export", "--runs", runs, "--format", "nonsense")
    assert code == 2
    assert "deepspeed" in err


def test_reading_commands_load_no_heavy_library(runs: Path) -> None:
    code = (
        "import sys\nfrom autotune.cli.main import main\n"
        f"assert main(['report', '--runs', {str(runs)!r}]) == 0\n"
        f"assert main(['export', '--runs', {str(runs)!r}]) == 0\n"
        "heavy = {'torch', 'transformers', 'deepspeed', 'optuna', 'ray', 'alembic'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_damaged_study_record_is_named_and_the_database_answers(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """BUG-068: nothing in a folder is run, and one bad file costs no report."""
    file = runs / "demo" / "study.json"
    file.write_bytes(b"\x80\x04 a pickle")
    made = call_json(capsys, "report", "--runs", runs)
    assert made["best"]["trial"] == 1
    assert str(file) in made["problems"][0]
    assert file.read_bytes() == b"\x80\x04 a pickle"
