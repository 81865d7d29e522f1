from __future__ import annotations

import dataclasses
from pathlib import Path

from study_factory import StudyBuilder, failed, make_study, measured

from autotune.store.database import Store, default_url
from autotune.store.importer import import_runs, read_study
from autotune.store.recorder import StudyRecorder


def filled(runs: Path) -> StudyBuilder:
    study = StudyBuilder(runs)
    study.trial(measured(0.8))
    study.trial(failed("oom_device", peak_memory=None, rank=1, phase="build"))
    study.trial(measured(0.5, state="stopped_early"))
    retried = study.trial(failed("crash"))
    study.launch("trial", retried, measured(0.4), attempt=1)
    study.again(retried, measured(0.41))
    study.again(0, measured(0.81), role="baseline", round=None)
    study.verdict("faster", retried, ratio=2.0, low=1.9, high=2.1)
    return study


def test_the_database_says_what_the_folder_says(tmp_path: Path) -> None:
    study = filled(tmp_path)
    from_folder = read_study(study.folder)
    assert from_folder == study.store.contents("demo", study.folder)
    assert from_folder == study.recorder.contents()
    assert [trial.state for trial in from_folder.trials] == [
        "complete",
        "failed",
        "stopped_early",
        "complete",
    ]
    assert len(from_folder.trials[3].attempts) == 2
    assert from_folder.problems == ()


def test_a_deleted_database_is_rebuilt_from_the_folders(tmp_path: Path) -> None:
    study = filled(tmp_path)
    before = study.store.contents("demo", study.folder)
    study.store.close()
    (tmp_path / "autotune.db").unlink()

    store = Store(default_url(tmp_path))
    assert store.studies() == ()
    done = import_runs(tmp_path, store)

    assert [contents.study.name for contents in done.studies] == ["demo"]
    assert store.contents("demo", study.folder) == before
    import_runs(tmp_path, store)
    assert store.contents("demo", study.folder) == before


def test_a_recorder_brings_a_stale_database_to_the_folders_state(tmp_path: Path) -> None:
    study = filled(tmp_path)
    (tmp_path / "autotune.db").unlink()
    store = Store(default_url(tmp_path))
    recorder = StudyRecorder(study.folder, store)
    assert store.contents("demo", study.folder) == recorder.contents() == read_study(study.folder)


def test_nothing_is_created_before_the_study_is_saved(tmp_path: Path) -> None:
    study = StudyBuilder(tmp_path)
    other = study.folder.path.with_name("other")
    recorder = StudyRecorder(dataclasses.replace(study.folder, path=other), study.store)
    assert recorder.study() is None
    assert not other.exists()


def test_stored_integers_are_exact(tmp_path: Path) -> None:
    """BUG-007: 500000003 stays 500000003, and so do numbers beyond 2**53 and 2**63."""
    values = [500_000_003, 2**53 + 1, 2**63 - 1, 2**63 + 11, 10**30 + 7]
    study = StudyBuilder(tmp_path)
    for value in values:
        study.trial(
            measured(0.5),
            params={"reduce_bucket_size": value},
            config={"zero3.reduce_bucket_size": value},
        )
    for contents in (read_study(study.folder), study.store.contents("demo", study.folder)):
        assert contents is not None
        found = [trial.header.config["zero3.reduce_bucket_size"] for trial in contents.trials]
        assert found == values
        assert all(type(value) is int for value in found)
        assert [trial.header.params["reduce_bucket_size"] for trial in contents.trials] == values


def test_an_attempt_that_nobody_judged_is_interrupted(tmp_path: Path) -> None:
    study = StudyBuilder(tmp_path)
    number = study.trial(None)
    assert study.recorder.trials()[number].state == "running"
    assert read_study(study.folder).trials[number].state == "interrupted"

    resumed = StudyRecorder(study.folder, study.store)
    trial = resumed.trials()[number]
    assert trial.state == "interrupted"
    assert trial.outcome is not None
    assert trial.outcome.failure is not None
    assert trial.outcome.failure.kind == "interrupted"
    assert trial.next_attempt == 1
    assert read_study(study.folder) == study.store.contents("demo", study.folder)


def test_the_latest_study_is_the_one_searched_last(tmp_path: Path) -> None:
    StudyBuilder(tmp_path, make_study("old", created_at=1.0, updated_at=30.0))
    study = StudyBuilder(tmp_path, make_study("new", created_at=2.0, updated_at=20.0))
    latest = study.store.latest_study()
    assert latest is not None
    assert latest.name == "old"
    assert [s.name for s in study.store.studies()] == ["old", "new"]
