"""What a coordinator leaves half made that is killed while it writes."""

from __future__ import annotations

from pathlib import Path

import pytest
from study_factory import StudyBuilder, measured

from autotune.contract import jsonfile
from autotune.store import comparisons
from autotune.store.importer import read_study
from autotune.store.recorder import StudyRecorder

WORD = "0123456789abcdef"


def test_what_is_half_made_goes_and_its_number_is_free(tmp_path: Path) -> None:
    study = StudyBuilder(tmp_path)
    study.trial(measured(0.5))
    root = study.folder.path
    hollow = [root / part / "00001" for part in ("trials", "remeasurements", "comparisons")]
    for folder in hollow:
        folder.mkdir(parents=True)
    (hollow[0] / f".trial.json.{WORD}").write_text('{"schema_ver')
    (root / f".study.json.{WORD}").touch()
    attempt = study.folder.attempt("trial", 0, 0).path
    passing = [attempt / f".{name}.{WORD}" for name in ("rank-11.json", "dropped-environment.json")]
    kept = [attempt / f".cache.{WORD}", attempt / ".rank-0.json.swp"]
    for path in (*passing, *kept):
        path.touch()
    assert read_study(study.folder).problems == ()  # a reader sees a trial that is being made
    recorder = StudyRecorder(study.folder, study.store)
    assert recorder.problems == ()
    assert not any(path.exists() for path in (*hollow, *passing, root / f".study.json.{WORD}"))
    assert all(path.exists() for path in kept)
    assert recorder.next_number("trial") == 1
    assert recorder.next_number("remeasurement") == 0
    assert comparisons.next_number(study.folder) == 0


def test_a_folder_that_holds_anything_is_left_and_its_number_not_used(tmp_path: Path) -> None:
    study = StudyBuilder(tmp_path)
    study.trial(measured(0.5))
    mine = study.folder.path / "trials" / "00001" / "notes.txt"
    mine.parent.mkdir()
    mine.touch()
    (mine.parent / f".trial.json.{WORD}").touch()
    recorder = StudyRecorder(study.folder, study.store)
    assert [path.name for path in mine.parent.iterdir()] == ["notes.txt"]
    assert len(recorder.problems) == 1
    assert recorder.next_number("trial") == 2


def test_passing_names_are_those_that_records_are_written_under(
    tmp_path: Path, monkeypatch
) -> None:
    study = StudyBuilder(tmp_path)
    study.trial(measured(0.5))
    path = study.folder.attempt("trial", 0, 0).path / "rank-3.json"
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", lambda self, missing_ok=False: None)
        patch.setattr(Path, "replace", lambda self, target: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            jsonfile.write_json(path, {})
    assert len(list(path.parent.glob(".rank-3.json.*"))) == 1
    StudyRecorder(study.folder, study.store)
    assert not list(path.parent.glob(".rank-3.json.*"))
