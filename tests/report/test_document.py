from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest
from study_factory import GIB, StudyBuilder, failed, make_study, measured

from autotune.analysis.launches import summarise, trimmed_ranks
from autotune.contract import jsonfile
from autotune.contract.outcome import PeakMemory
from autotune.report.document import build
from autotune.store.database import Store, default_url
from autotune.store.importer import import_runs, read_study

NUMBER = (int, float)
OPTIONAL_NUMBER = (int, float, type(None))
OPTIONAL_TEXT = (str, type(None))
TIME = {"median": NUMBER, "low": NUMBER, "high": NUMBER, "mean": NUMBER}
CONFIGURATION = {
    "trial": (int, type(None)),
    "params": dict,
    "config": dict,
    "s_per_it": (TIME, None),
    "peak_memory_bytes": ({"timed": int, "worst_case": int}, None),
}
TRIAL = {
    "number": int,
    "state": str,
    "kind": OPTIONAL_TEXT,
    "reason": OPTIONAL_TEXT,
    "params": dict,
    "s_per_it": OPTIONAL_NUMBER,
    "tokens_per_s": OPTIONAL_NUMBER,
    "mfu": OPTIONAL_NUMBER,
    "peak_memory_bytes": OPTIONAL_NUMBER,
    "overhead_s": OPTIONAL_NUMBER,
    "timed_s": OPTIONAL_NUMBER,
    "micro_steps": OPTIONAL_NUMBER,
    "padding_share": OPTIONAL_NUMBER,
    "distinct_shapes": OPTIONAL_NUMBER,
}
DOCUMENT = {
    "schema_version": int,
    "study": str,
    "space_fingerprint": str,
    "environment": dict,
    "counts": dict,
    "baseline": CONFIGURATION,
    "best": CONFIGURATION
    | {
        "speedup": ({"ratio": NUMBER, "low": OPTIONAL_NUMBER, "high": OPTIONAL_NUMBER}, None),
        "verdict": OPTIONAL_TEXT,
    },
    "trials": [TRIAL],
    "remeasurements": list,
}


def conforms(data: Any, schema: Any, where: str = "$") -> None:
    if isinstance(schema, dict):
        assert isinstance(data, dict), where
        for key, part in schema.items():
            assert key in data, f"{where}.{key} is missing"
            conforms(data[key], part, f"{where}.{key}")
    elif isinstance(schema, list):
        for index, item in enumerate(data):
            conforms(item, schema[0], f"{where}[{index}]")
    elif isinstance(schema, tuple) and None in schema:
        if data is not None:
            conforms(data, schema[0], where)
    else:
        assert isinstance(data, schema), f"{where}: {data!r}"


def document(study: StudyBuilder) -> dict[str, Any]:
    made = build(read_study(study.folder))
    conforms(made, DOCUMENT)
    jsonfile.canonical(made)  # refuses NaN and infinity
    return json.loads(json.dumps(made))  # type: ignore[no-any-return]


@pytest.fixture
def study(tmp_path: Path) -> StudyBuilder:
    return StudyBuilder(tmp_path)


def confirm(study: StudyBuilder, trial: int, ours: list[float], base: list[float]) -> None:
    for number, (a, b) in enumerate(zip(base, ours, strict=True)):
        study.again(0, measured(a), role="baseline", round=number)
        study.again(trial, measured(b), round=number)


def test_a_confirmed_best(study: StudyBuilder) -> None:
    study.trial(measured(0.80))
    best = study.trial(measured(0.50))
    confirm(study, best, [0.51, 0.52, 0.53, 0.54, 0.55], [0.81, 0.82, 0.83, 0.84, 0.85])
    study.verdict("faster", best, ratio=1.55, low=1.5, high=1.6)
    made = document(study)
    assert made["counts"] == {"measured": 2}
    assert made["baseline"]["trial"] == 0
    assert made["baseline"]["s_per_it"]["median"] == pytest.approx(0.825)
    assert made["best"]["trial"] == best
    # Six launches: the median's 95 % interval runs from the smallest to the largest.
    assert made["best"]["s_per_it"] == pytest.approx(
        {"median": 0.525, "low": 0.50, "high": 0.55, "mean": 0.525}
    )
    assert made["best"]["speedup"] == {"ratio": 1.55, "low": 1.5, "high": 1.6}
    assert made["best"]["verdict"] == "faster"
    assert made["best"]["params"] == {"reduce_bucket_size": 499_999_999}
    assert made["best"]["config"]["zero3.reduce_bucket_size"] == 499_999_999
    assert made["best"]["peak_memory_bytes"] == {
        "timed": 2 * GIB,
        "worst_case": 3 * GIB,
        "worst_case_is_bound": False,
    }
    assert [again["role"] for again in made["remeasurements"]][:2] == ["baseline", "finalist"]
    assert made["trials"][1]["s_per_it"] == 0.50
    assert made["trials"][1]["warmup_s"] == pytest.approx(5 * 0.50)
    assert made["trials"][1]["compile_s"] == pytest.approx(0.50)
    assert made["trials"][1]["kind"] is None
    assert made["trials"][1]["peak_memory_bytes"] == 3 * GIB


def test_keep_baseline_names_the_baseline_with_ratio_one(study: StudyBuilder) -> None:
    study.trial(measured(0.80))
    other = study.trial(measured(0.79))
    study.verdict("keep_baseline", 0, finalist=other, ratio=0.99, low=0.98, high=1.0)
    made = document(study)
    assert made["best"]["trial"] == 0
    assert made["best"]["speedup"] == {"ratio": 1.0, "low": 1.0, "high": 1.0}
    assert made["best"]["verdict"] == "keep_baseline"


def test_a_tie_names_its_winner(study: StudyBuilder) -> None:
    study.trial(measured(0.80))
    other = study.trial(measured(0.79))
    study.verdict("tie", other, ratio=1.01, low=0.98, high=1.04)
    made = document(study)
    assert made["best"]["trial"] == other
    assert made["best"]["speedup"] == {"ratio": 1.01, "low": 0.98, "high": 1.04}
    study.verdict("tie", 0, finalist=other, ratio=1.01, low=0.98, high=1.04)
    made = document(study)
    assert made["best"]["trial"] == 0
    assert made["best"]["speedup"]["ratio"] == 1.0


def test_none_feasible_has_nulls(study: StudyBuilder) -> None:
    study.trial(failed("oom_device"))
    study.trial(failed("oom_device"))
    study.trial(failed("crash"))
    study.verdict("none_feasible", None)
    made = document(study)
    assert made["counts"] == {"measured": 0, "oom_device": 2, "crash": 1}
    best = made["best"]
    assert (best["trial"], best["s_per_it"], best["speedup"]) == (None, None, None)
    assert best["verdict"] == "none_feasible"
    assert made["baseline"]["trial"] == 0
    assert made["baseline"]["s_per_it"] is None
    assert [trial["s_per_it"] for trial in made["trials"]] == [None, None, None]


def test_without_a_verdict_nothing_is_claimed(study: StudyBuilder) -> None:
    study.trial(measured(0.80))
    best = study.trial(measured(0.40))
    study.trial(measured(0.30, state="stopped_early"))
    made = document(study)
    assert made["best"]["trial"] == best
    assert made["best"]["verdict"] is None
    assert made["best"]["speedup"] == {"ratio": 2.0, "low": None, "high": None}
    assert made["counts"] == {"measured": 3}


def test_a_finalist_that_failed_when_launched_again_is_out(study: StudyBuilder) -> None:
    study.trial(measured(0.80))
    study.trial(measured(0.60))
    out = study.trial(measured(0.40))
    study.again(out, failed("numerics"))
    assert document(study)["best"]["trial"] == 1


def test_trials_after_a_verdict_undo_only_none_feasible(study: StudyBuilder) -> None:
    study.trial(failed("timeout"))
    study.verdict("none_feasible", None, at=90.0, reason="the baseline failed")
    assert document(study)["best"]["reason"] == "the baseline failed"
    study.trial(measured(0.8), created_at=91.0)
    made = document(study)
    assert (made["best"]["trial"], made["best"]["verdict"]) == (1, None)
    study.verdict("faster", 1, ratio=1.2, low=1.1, high=1.3, at=200.0)
    study.trial(measured(0.1), created_at=201.0)
    made = document(study)
    assert (made["best"]["trial"], made["best"]["verdict"]) == (1, "faster")
    assert made["best"]["later_trials"] == 1


def test_an_empty_study_has_a_document(study: StudyBuilder) -> None:
    made = document(study)
    assert made["counts"] == {"measured": 0}
    assert made["best"]["verdict"] is None
    assert made["baseline"]["trial"] is None


def test_a_retry_is_one_entry_and_interrupted_is_not_counted(study: StudyBuilder) -> None:
    study.trial(measured(0.80))
    retried = study.trial(failed("crash"))
    study.launch("trial", retried, measured(0.5), attempt=1)
    study.trial(failed("interrupted"))
    study.trial(None)
    made = document(study)
    assert [trial["number"] for trial in made["trials"]] == [0, 1, 2, 3]
    assert made["trials"][1]["state"] == "complete"
    assert [made["trials"][n]["kind"] for n in (2, 3)] == ["interrupted", "interrupted"]
    assert made["counts"] == {"measured": 2}


def test_failures_have_a_kind_a_reason_a_log_and_no_sentinel(study: StudyBuilder) -> None:
    """BUG-065: only real measurements have an objective, and every number is finite."""
    for s_per_it in (0.4, 0.5, 0.6, 0.7, 0.8, 0.9):
        study.trial(measured(s_per_it))
    peak = PeakMemory(timed=9 * GIB, worst_case=0, limit=8 * GIB)
    for outcome in (
        failed("oom_device", "CUDA out of memory", rank=1, peak_memory=peak),
        failed("oom_device"),
        failed("hang"),
        failed("numerics", measured_s_per_it=0.1),
    ):
        study.trial(outcome)
    made = document(study)
    values = [trial["s_per_it"] for trial in made["trials"] if trial["s_per_it"] is not None]
    assert values == [0.4, 0.5, 0.6, 0.7, 0.8, 0.9]
    assert all(math.isfinite(value) for value in values)
    oom = made["trials"][6]
    assert (oom["kind"], oom["reason"]) == ("oom_device", "CUDA out of memory")
    assert oom["peak_memory_bytes"] == 9 * GIB
    assert oom["log"] == str(study.folder.attempt("trial", 6, 0).log_file(1))
    # A wrong result's speed is shown apart and never ranked.
    assert made["trials"][9]["invalid_s_per_it"] == 0.1
    assert made["best"]["trial"] == 0


def test_times_of_another_context_are_shown_not_compared(study: StudyBuilder) -> None:
    study.trial(measured(0.1))
    fast = study.trial(measured(0.05))
    study.verdict("faster", fast, ratio=2.0, low=1.9, high=2.1)
    study.recorder.save_study(make_study(context="elsewhere"))
    study.trial(measured(0.9), origin="baseline", context="elsewhere")
    study.trial(measured(0.8), context="elsewhere")
    made = document(study)
    assert [trial["other_context"] for trial in made["trials"]] == [True, True, False, False]
    assert made["trials"][1]["s_per_it"] == 0.05
    assert made["counts"] == {"measured": 2}
    assert made["baseline"]["trial"] == 2
    assert made["best"]["trial"] == 3
    assert made["best"]["verdict"] is None


def test_only_configurations_inside_the_present_space_can_be_best(study: StudyBuilder) -> None:
    study.trial(measured(0.9))
    study.trial(measured(0.3))
    study.trial(measured(0.5))
    study.recorder.save_study(make_study(space_fingerprint="space-b", outside=(0, 1)))
    made = document(study)
    assert [trial["outside_space"] for trial in made["trials"]] == [True, True, False]
    assert made["best"]["trial"] == 2
    assert made["counts"] == {"measured": 3}


def test_a_baseline_outside_the_ranges_is_marked_and_can_stay_best(study: StudyBuilder) -> None:
    """BUG-018."""
    study.trial(measured(0.4), inside_space=False)
    study.trial(measured(0.8))
    made = document(study)
    assert made["baseline"]["outside_space"] is True
    assert made["best"]["trial"] == 0
    assert made["best"]["speedup"]["ratio"] == 1.0


def test_the_whole_data_set_is_projected(tmp_path: Path) -> None:
    study = StudyBuilder(
        tmp_path, make_study(workload={"global_batch": 16, "samples": {"dataset_samples": 1601}})
    )
    study.trial(measured(36.0))
    study.trial(measured(18.0))
    projection = document(study)["projection"]
    assert projection["iterations"] == 101
    assert projection["baseline"] == pytest.approx({"hours": 1.01, "device_hours": 2.02})
    assert projection["best"] == pytest.approx({"hours": 0.505, "device_hours": 1.01})


def test_a_rebuilt_database_gives_an_equal_report(study: StudyBuilder) -> None:
    study.trial(measured(0.80))
    best = study.trial(measured(0.50))
    study.trial(failed("oom_device"))
    confirm(study, best, [0.51, 0.52], [0.81, 0.82])
    study.verdict("faster", best, ratio=1.55, low=1.5, high=1.6)
    before = study.store.contents("demo", study.folder)
    assert before is not None
    study.store.close()
    (study.runs / "autotune.db").unlink()
    store = Store(default_url(study.runs))
    import_runs(study.runs, store)
    after = store.contents("demo", study.folder)
    assert after is not None
    assert build(after) == build(before) == document(study)


def test_the_interval_of_the_median_needs_six_launches() -> None:
    # Coverage of [x(k+1), x(n-k)]: 96.9 % for n=6, k=0; 97.9 % for n=10, k=1.
    assert [trimmed_ranks(n) for n in (0, 1, 5, 6, 9, 10)] == [None, None, None, 0, 1, 1]
    assert summarise(()) is None


def test_few_launches_take_the_hull_of_their_own_intervals() -> None:
    from study_factory import make_measurement

    launches = [
        make_measurement(0.5, low=0.49, high=0.51),
        make_measurement(0.7, low=0.65, high=0.75),
    ]
    time = summarise(launches)
    assert time is not None
    assert dataclasses.astuple(time) == pytest.approx((0.6, 0.49, 0.75, 0.6))
