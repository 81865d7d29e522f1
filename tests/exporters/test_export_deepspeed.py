from __future__ import annotations

import ast
import dataclasses
import hashlib
import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from study_factory import StudyBuilder, failed, measured

from autotune.contract import jsonfile
from autotune.errors import InputError, NothingToExportError, RecordError
from autotune.exporters import choosing, deepspeed, exactness, writing
from autotune.exporters.base import ExportResult
from autotune.exporters.provenance import provenance
from autotune.knobs.zero3 import KNOBS
from autotune.report.document import build
from autotune.store.importer import read_study


def trial(study: StudyBuilder, s_per_it: float, **config: Any) -> int:
    """A measured trial whose read-back agrees with its configuration."""
    from study_factory import CONFIG

    return study.trial(measured(s_per_it, read_back={}), config=CONFIG | config)


def exported(study: StudyBuilder) -> ExportResult:
    contents = read_study(study.folder)
    return deepspeed.export(choosing.choose(contents, build(contents), "ds.json"))


def test_the_export_is_what_ran_and_loads_in_deepspeed(study: StudyBuilder) -> None:
    """BUG-055: sizes are JSON integers without exponent or fraction."""
    trial(study, 0.9)
    trial(
        study,
        0.5,
        **{
            "zero3.stage3_prefetch_bucket_size": 15_099_494,
            "zero3.reduce_bucket_size": 200_000_000,
            "workload.micro_batch": 1,
        },
    )
    result = exported(study)
    text = result.files["ds.json"]
    assert '"stage3_prefetch_bucket_size": 15099494' in text
    assert '"reduce_bucket_size": 200000000' in text
    written = json.loads(text)
    assert written["zero_optimization"]["stage"] == 3
    # 16 samples by 2 processes and 1 row: eight micro-steps (BUG-056: the integer 8).
    assert written["gradient_accumulation_steps"] == 8
    assert type(written["gradient_accumulation_steps"]) is int
    assert written["train_micro_batch_size_per_gpu"] == 1
    assert written["train_batch_size"] == 16
    assert written["gradient_clipping"] == 1.0
    assert "auto" not in text
    assert result.checked_with == f"deepspeed {metadata.version('deepspeed')}"
    assert result.losses == ()


def test_every_measured_setting_is_written_with_its_value(
    study: StudyBuilder, unasked: None
) -> None:
    values: dict[str, Any] = {}
    for knob in KNOBS:
        if knob.dead_when == "true" or knob.type not in ("int", "bool"):
            continue
        values[knob.full_name] = knob.default
    values |= {"zero3.reduce_bucket_size": 500_000_003, "zero3.overlap_comm": False}
    trial(study, 0.5, **values)
    zero = json.loads(exported(study).files["ds.json"])["zero_optimization"]
    live = {name.partition(".")[2]: value for name, value in values.items() if value is not None}
    assert {key: value for key, value in zero.items() if key in live} == {
        key: value for key, value in live.items() if key in zero
    }
    assert zero["reduce_bucket_size"] == 500_000_003
    assert zero["overlap_comm"] is False
    assert "stage3_model_persistence_threshold" in zero


def test_leaf_modules_of_experts_and_packing_are_left_to_the_trainer(
    study: StudyBuilder, unasked: None
) -> None:
    from study_factory import CONFIG

    config = CONFIG | {
        "workload.batching": "packed",
        "workload.max_tokens": 1024,
        "workload.micro_batch": None,
    }
    notes = {"z3_leaf_modules": ["Qwen3MoeSparseMoeBlock"]}
    study.trial(measured(0.5, read_back={}, notes=notes), config=config)
    result = exported(study)
    text = " ".join(result.notes)
    assert "set_z3_leaf_modules(model, ['Qwen3MoeSparseMoeBlock'])" in text
    assert "packed into rows of 1024 tokens" in text
    assert result.losses == ("the cut of the global batch by tokens",)


def test_a_convolution_that_the_library_does_not_take_by_itself_is_exported_as_code(
    study: StudyBuilder, unasked: None
) -> None:
    from study_factory import CONFIG

    kernels = {"kernel.linear_attention": "fla", "kernel.convolution": "fla"}
    study.trial(measured(0.5, read_back={}), config=CONFIG | kernels)
    result = exported(study)
    code = result.files["ds_kernels.py"]
    assert "from autotune.models.kernels.convolution import take_fla" in code
    compile(code, "ds_kernels.py", "exec")
    text = " ".join(result.notes)
    assert "cannot be said in this file (kernel.convolution=fla)" in text


def test_whole_floats_become_integers_and_nothing_is_rounded() -> None:
    """BUG-055: 2e8 on a float scale is 200000000; 15099494.4 is no size."""
    made = exactness.exact({"zero_optimization": {"reduce_bucket_size": 2e8}, "lr": 1.0}, KNOBS)
    assert exactness.same(made["zero_optimization"], {"reduce_bucket_size": 200_000_000})
    assert exactness.same(made["lr"], 1.0)
    for wrong in (15_099_494.4, "16", True, "auto"):
        with pytest.raises(NothingToExportError, match="stage3_prefetch_bucket_size"):
            exactness.exact({"stage3_prefetch_bucket_size": wrong}, KNOBS)


def test_types_survive_the_round_trip() -> None:
    """BUG-056: text stays text, numbers are never quoted, booleans are no integers."""
    data = {"a": "no", "b": 8, "c": 8.0, "d": True, "e": None, "f": [1, 2**63 + 1], "g": "8"}
    assert exactness.same(json.loads(exactness.json_text(data)), data)
    assert not exactness.same({"a": 1}, {"a": True})
    assert not exactness.same({"a": 8}, {"a": "8"})
    assert not exactness.same({"a": 8}, {"a": 8.0})


JUDGE = """
import json, sys
from autotune.exporters.deepspeed_loading import load
def judge(config):
    try:
        return load(config, 2)
    except Exception as error:
        return str(error)
print("\\n" + json.dumps([judge(config) for config in json.load(sys.stdin)]))
"""


def test_deepspeed_itself_judges_the_file() -> None:
    """BUG-055: a fraction, an unknown key, batch sizes that do not fit."""
    good = {
        "train_batch_size": 16,
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 4,
        "zero_optimization": {"stage": 3, "reduce_bucket_size": 10},
    }
    wrong = [
        ("train_batch_size", good | {"train_batch_size": 17}),
        ("no_such_key", good | {"zero_optimization": {"stage": 3, "no_such_key": 1}}),
        (
            "stage3_prefetch_bucket_size",
            good | {"zero_optimization": {"stage": 3, "stage3_prefetch_bucket_size": 1.5}},
        ),
        ("overlap_comm", good | {"zero_optimization": {"stage": 3, "overlap_comm": 1}}),
    ]
    done = subprocess.run(
        [sys.executable, "-c", JUDGE],
        input=json.dumps([good, *(config for _, config in wrong)]),
        capture_output=True,
        text=True,
        check=True,
    )
    verdicts = json.loads(done.stdout.splitlines()[-1])
    assert verdicts[0] == []
    for (word, _), verdict in zip(wrong, verdicts[1:], strict=True):
        assert word in str(verdict)


def test_what_deepspeed_refuses_is_not_exported() -> None:
    config = {"train_batch_size": 16, "zero_optimization": {"stage": 3, "no_such_key": 1}}
    with pytest.raises(NothingToExportError, match=r"deepspeed [0-9.]+ refuses.*no_such_key"):
        deepspeed.load_in_deepspeed(config, 2)


def test_without_deepspeed_the_export_says_that_it_was_not_loaded(
    study: StudyBuilder, unasked: None
) -> None:
    trial(study, 0.5)
    result = exported(study)
    assert result.checked_with is None
    assert any("not installed" in note for note in result.notes)


def test_a_cut_by_tokens_is_said_not_to_fit(study: StudyBuilder, unasked: None) -> None:
    trial(study, 0.5, **{"workload.micro_batch": None, "workload.max_tokens": 4096})
    result = exported(study)
    assert any("max_tokens=4096" in note for note in result.notes)
    assert result.losses


def test_a_global_batch_that_the_json_cannot_say(study: StudyBuilder, unasked: None) -> None:
    """Seven samples cut by tokens on two processes: the JSON must round up, and says so."""
    trial(study, 0.5, **{"workload.micro_batch": None, "workload.max_tokens": 4096})
    contents = read_study(study.folder)
    request = choosing.choose(contents, build(contents), "ds.json")
    workload = dataclasses.replace(request.plan.workload, global_batch=7)
    plan = dataclasses.replace(request.plan, workload=workload)
    result = deepspeed.export(dataclasses.replace(request, plan=plan))
    assert json.loads(result.files["ds.json"])["train_batch_size"] == 8
    assert result.losses == (
        "the cut of the global batch by tokens",
        "the global batch of 7 samples (train_batch_size is 8: 2 processes do not divide 7)",
    )


def test_a_best_of_another_backend_is_refused_in_words(study: StudyBuilder) -> None:
    study.trial(measured(0.5), backend="fsdp2")
    with pytest.raises(NothingToExportError, match="fsdp2") as caught:
        exported(study)
    assert caught.value.exit_code == 1
    assert "--format accelerate" in str(caught.value.hint)


def test_a_value_that_the_engine_did_not_have_is_refused(study: StudyBuilder) -> None:
    # The factory's read-back has 500,000,000; this trial's plan says another number.
    study.trial(measured(0.5), config={"zero3.reduce_bucket_size": 7})
    with pytest.raises(NothingToExportError, match="reduce_bucket_size"):
        exported(study)


def test_nothing_valid_is_nothing_to_export_and_says_why(study: StudyBuilder) -> None:
    """BUG-071."""
    with pytest.raises(NothingToExportError, match="no trials yet"):
        exported(study)
    for _ in range(3):
        study.trial(failed("oom_device"))
    study.trial(failed("crash", "ModuleNotFoundError: No module named 'x'"))
    study.verdict("none_feasible", None)
    with pytest.raises(NothingToExportError) as caught:
        exported(study)
    assert "nothing to export" in caught.value.message
    assert "3 × oom_device, 1 × crash" in caught.value.message
    assert caught.value.exit_code == 1
    assert caught.value.hint is not None
    assert "autotune report demo" in caught.value.hint


def test_another_plan_than_the_measured_one_is_refused(study: StudyBuilder) -> None:
    trial(study, 0.5)
    contents = read_study(study.folder)
    report = build(contents)
    file = study.folder.attempt("trial", 0, 0).plan_file
    data = json.loads(file.read_text())
    data["config"]["zero3.reduce_bucket_size"] = 1
    file.write_text(json.dumps(data))
    with pytest.raises(RecordError, match="not the plan"):
        choosing.choose(contents, report, "ds.json")
    file.unlink()
    with pytest.raises(NothingToExportError, match="is gone"):
        choosing.choose(contents, report, "ds.json")


def test_a_plan_of_an_earlier_version_is_still_the_measured_one(study: StudyBuilder) -> None:
    """It lacks fields that have come since, and its digest is of what was written."""
    trial(study, 0.5)
    attempt = study.folder.attempt("trial", 0, 0)
    plan = json.loads(attempt.plan_file.read_text())
    del plan["workload"]["model"]["hidden_size_from"]
    attempt.plan_file.write_text(json.dumps(plan))
    outcome = json.loads(attempt.outcome_file.read_text())
    outcome["plan_digest"] = jsonfile.digest(plan)
    attempt.outcome_file.write_text(json.dumps(outcome))
    contents = read_study(study.folder)
    request = choosing.choose(contents, build(contents), "ds.json")
    assert request.plan.training.model.hidden_size_from == "hidden_size"


def test_the_companion_tells_where_the_file_comes_from(study: StudyBuilder, unasked: None) -> None:
    trial(study, 0.9)
    best = trial(study, 0.5)
    study.verdict("faster", best, ratio=1.8, low=1.7, high=1.9)
    contents = read_study(study.folder)
    request = choosing.choose(contents, build(contents), "ds.json")
    result = deepspeed.export(request)
    about = provenance(request, result, format_name="deepspeed", at=0.0)
    json.dumps(about, allow_nan=False)
    assert about["study"] == "demo"
    assert about["trial"] == best
    assert about["verdict"] == "faster"
    assert about["speedup"] == {"ratio": 1.8, "low": 1.7, "high": 1.9}
    assert about["plan_digest"] == study.folder.attempt("trial", best, 0).read_plan().digest
    assert about["date"] == "1970-01-01T00:00:00+00:00"
    assert about["equals_measured"] is True
    text = result.files["ds.json"]
    assert about["files"]["ds.json"]["sha256"] == hashlib.sha256(text.encode()).hexdigest()


def test_only_our_own_unchanged_files_are_replaced(tmp_path: Path) -> None:
    file = tmp_path / "ds.json"
    digest = hashlib.sha256(b"one").hexdigest()
    companion = {"files": {"ds.json": {"sha256": digest}}}
    paths = writing.write(file, {"ds.json": "one"}, companion)
    assert [path.name for path in paths] == ["ds.json", "ds.json.provenance.json"]
    writing.check_replaceable(file, {"ds.json": "two"})
    file.write_text("edited by hand")
    with pytest.raises(InputError, match="not an unchanged export") as caught:
        writing.check_replaceable(file, {"ds.json": "two"})
    assert caught.value.exit_code == 2
    assert "--force" in str(caught.value.hint)
    with pytest.raises(InputError, match="no folder"):
        writing.check_target(tmp_path / "missing" / "ds.json")
    with pytest.raises(InputError, match="is a folder"):
        writing.check_target(tmp_path)


def test_the_arguments_that_are_named_are_those_that_transformers_asks_for(
    study: StudyBuilder, unasked: None
) -> None:
    """Trainer stops where the file and its own arguments differ, the defaults included."""
    from types import SimpleNamespace

    from transformers.integrations.deepspeed import HfTrainerDeepSpeedConfig

    trial(study, 0.9)
    result = exported(study)
    (note,) = [note for note in result.notes if "TrainingArguments(" in note]
    said = note.partition("TrainingArguments(")[2].removesuffix(")")
    call = ast.parse(f"f({said})", mode="eval").body
    assert isinstance(call, ast.Call)
    arguments = {word.arg: ast.literal_eval(word.value) for word in call.keywords}
    unset = {"fp16": False, "fp16_full_eval": False, "bf16_full_eval": False}
    args = SimpleNamespace(**unset, **arguments, world_size=2, save_on_each_node=False)
    config = HfTrainerDeepSpeedConfig(json.loads(result.files["ds.json"]))
    config.trainer_config_process(args)
    assert config.mismatches == []
    args.learning_rate *= 2
    config.trainer_config_process(args)
    assert len(config.mismatches) == 1
