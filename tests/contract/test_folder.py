import pytest

from autotune.contract import codec, jsonfile
from autotune.contract.failures import PHASES, POLICIES, FailureKind
from autotune.contract.folder import StudyFolder, check_study_name
from autotune.contract.outcome import Failure, Outcome
from autotune.errors import InputError, RecordError


@pytest.mark.parametrize("name", ["qwen", "zero3-2026.11_b", "0", "a" * 100, "x..y"])
def test_plain_names_name_a_study(name, tmp_path):
    assert check_study_name(name) == name
    assert StudyFolder.of(tmp_path, name).path == tmp_path / name


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "../x", "a/b", "/etc", "-rf", "--help", ".hidden", "a b", "a\n", "é", "a" * 101,
     "$(x)", "a;b", "a\x00", "autotune.db", "autotune.db-wal", "README.md"],
)  # fmt: skip
def test_other_names_are_refused(name, tmp_path):
    with pytest.raises(InputError) as caught:
        StudyFolder.of(tmp_path, name)
    assert caught.value.exit_code == 2
    assert caught.value.hint


def test_paths_of_a_study(tmp_path):
    folder = StudyFolder.of(tmp_path, "qwen")
    attempt = folder.attempt("trial", 3, 1)
    assert attempt.path == tmp_path / "qwen/trials/00003/attempt-1"
    assert folder.attempt("remeasurement", 0, 0).path.parts[-3:] == (
        "remeasurements", "00000", "attempt-0",
    )  # fmt: skip
    assert attempt.rank_file(2).name == "rank-2.json"
    assert not folder.path.exists()


def outcome(**changes):
    failure = Failure(kind="oom_device", reason="out of memory", rank=1, phase="warmup")
    values = {
        "plan_digest": "d", "state": "failed", "failure": failure, "submitted_at": 1.0,
        "wall_s": 2.0, "overhead_s": 2.0, "timed_s": 0.0,
    }  # fmt: skip
    return Outcome(**{**values, **changes})


def test_outcomes_return_from_their_folder(tmp_path):
    attempt = StudyFolder.of(tmp_path, "s").attempt("trial", 0, 0)
    assert attempt.read_rank(0) is None
    attempt.write_outcome(outcome())
    assert codec.from_json(Outcome, jsonfile.read_json(attempt.outcome_file)) == outcome()
    attempt.rank_file(0).write_text('{"rank": 0}')
    with pytest.raises(RecordError, match="rank-0.json: key 'pid' is missing"):
        attempt.read_rank(0)


def test_a_failed_trial_has_no_time_and_a_stopped_one_is_interrupted():
    with pytest.raises(ValueError, match="do not fit together"):
        outcome(state="complete")
    with pytest.raises(ValueError, match="do not fit together"):
        outcome(failure=None)
    with pytest.raises(ValueError, match="does not fit kind"):
        outcome(state="interrupted")
    with pytest.raises(ValueError, match="does not fit kind"):
        outcome(failure=Failure(kind="interrupted", reason="stopped"))


def test_the_policies_are_those_of_the_design():
    table = {kind: (p.teaches, p.max_retries > 0) for kind, p in POLICIES.items()}
    assert table == {
        "oom_device": (True, False), "oom_host": (True, False), "incompatible": (True, False),
        "numerics": (True, False), "not_in_effect": (True, False), "hang": (True, True),
        "timeout": (True, True), "crash": (False, True), "infra": (False, True),
        "interrupted": (False, False),
    }  # fmt: skip
    assert [k for k, p in POLICIES.items() if not p.counts] == ["infra", "interrupted"]
    assert set(POLICIES) == set(FailureKind.__args__)
    assert PHASES[0] == "launch"
    assert PHASES[-1] == "teardown"
