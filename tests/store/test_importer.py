from __future__ import annotations

import json
import os
import pickle
from pathlib import Path

import pytest
from study_factory import StudyBuilder, measured

from autotune.errors import InputError, RecordError, SchemaTooNewError
from autotune.store.importer import import_runs, read_study
from autotune.store.recorder import StudyRecorder


class Marker:
    """Unpickling it creates a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (os.system, (f"touch {self.path}",))


def test_a_pickle_in_place_of_an_outcome_is_never_run(tmp_path: Path) -> None:
    """BUG-068: refused with a message that names the file, kept, and the rest is read."""
    study = StudyBuilder(tmp_path)
    study.trial(measured(0.8))
    study.trial(measured(0.5))
    marker = tmp_path / "marker"
    payload = pickle.dumps(Marker(marker))
    file = study.folder.attempt("trial", 1, 0).outcome_file
    file.write_bytes(payload)

    done = import_runs(tmp_path, study.store)

    assert not marker.exists()
    assert file.read_bytes() == payload
    assert len(done.problems) == 1
    assert str(file) in done.problems[0]
    assert "not a JSON record" in done.problems[0]
    states = [trial.state for trial in done.studies[0].trials]
    assert states == ["complete", "interrupted"]


def test_a_resumed_coordinator_keeps_a_refused_file(tmp_path: Path) -> None:
    study = StudyBuilder(tmp_path)
    study.trial(measured(0.5))
    file = study.folder.attempt("trial", 0, 0).outcome_file
    file.write_bytes(b"\x80\x04garbage")
    recorder = StudyRecorder(study.folder, study.store)
    assert recorder.trials()[0].state == "interrupted"
    assert recorder.problems
    assert file.read_bytes() == b"\x80\x04garbage"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '{"state": "complete"}',
        '{"schema_version": 1, "plan_digest": "", "state": "complete", "submitted_at": NaN}',
        "[" * 100_000,
    ],
)
def test_a_damaged_outcome_is_skipped(tmp_path: Path, text: str) -> None:
    study = StudyBuilder(tmp_path)
    study.trial(measured(0.5))
    study.folder.attempt("trial", 0, 0).outcome_file.write_text(text)
    contents = read_study(study.folder)
    assert contents.trials[0].state == "interrupted"
    assert len(contents.problems) == 1


def test_an_outcome_of_another_plan_is_refused(tmp_path: Path) -> None:
    study = StudyBuilder(tmp_path)
    study.trial(measured(0.8))
    study.trial(measured(0.1))
    foreign = study.folder.attempt("trial", 1, 0).outcome_file.read_text()
    study.folder.attempt("trial", 0, 0).outcome_file.write_text(foreign)
    contents = read_study(study.folder)
    assert contents.trials[0].measurement is None
    assert "another plan" in contents.problems[0]


def test_folders_that_look_like_attempts_are_named_and_left(tmp_path: Path) -> None:
    study = StudyBuilder(tmp_path)
    study.trial(measured(0.5))
    trial = study.folder.attempt("trial", 0, 0).path.parent
    for name in ("attempt-007", "attempt-\u0663", "attempt-copy"):
        (trial / name).mkdir()
    (trial / "attempt-1").touch()
    for _ in range(2):
        recorder = StudyRecorder(study.folder, study.store)
        assert [attempt.number for attempt in recorder.trials()[0].attempts] == [0]
        assert len(recorder.problems) == 4


def test_foreign_things_in_a_study_are_named_and_left(tmp_path: Path) -> None:
    study = StudyBuilder(tmp_path)
    study.trial(measured(0.8))
    trials = study.folder.path / "trials"
    (trials / "notes.txt").write_text("mine")
    (trials / "00007").mkdir()
    (trials / "00007" / "trial.json").write_text((trials / "00000" / "trial.json").read_text())
    (trials / "00008").mkdir()
    (trials / "00009").write_text("no folder")
    os.mkfifo(trials / "00010")
    (trials / "00011").symlink_to("/dev/zero")
    contents = read_study(study.folder)
    assert [trial.number for trial in contents.trials] == [0]
    assert len(contents.problems) == 5
    assert (trials / "notes.txt").read_text() == "mine"
    # Numbers of refused folders are not taken again.
    assert study.recorder.next_number("trial") == 12


def test_a_newer_study_folder_is_refused_with_both_versions(tmp_path: Path) -> None:
    """BUG-023, for the records in a folder."""
    study = StudyBuilder(tmp_path)
    data = json.loads(study.folder.study_file.read_text()) | {"schema_version": 9, "new_key": 1}
    study.folder.study_file.write_text(json.dumps(data))
    with pytest.raises(SchemaTooNewError, match=r"schema 9.*up to 1"):
        read_study(study.folder)


def test_a_study_under_another_name_is_refused(tmp_path: Path) -> None:
    study = StudyBuilder(tmp_path)
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / "study.json").write_text(study.folder.study_file.read_text())
    done = import_runs(tmp_path, study.store)
    assert [contents.study.name for contents in done.studies] == ["demo"]
    assert "copy" in done.problems[0]
    with pytest.raises(RecordError):
        read_study(type(study.folder)(copy))


def test_importing_from_nowhere_is_an_input_error(tmp_path: Path) -> None:
    study = StudyBuilder(tmp_path / "runs")
    with pytest.raises(InputError, match="no folder"):
        import_runs(tmp_path / "elsewhere", study.store)
