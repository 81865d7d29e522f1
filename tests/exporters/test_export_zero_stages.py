"""What was measured at a ZeRO stage is exported at that stage, in both formats."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from study_factory import CONFIG, StudyBuilder, measured

from autotune.contract.outcome import ReadBack
from autotune.errors import NothingToExportError
from autotune.exporters import accelerate, choosing, deepspeed
from autotune.exporters.base import ExportRequest
from autotune.report.document import build
from autotune.store.importer import read_study

WORK = {name: value for name, value in CONFIG.items() if name.startswith("workload.")}


def request(
    path: Path, config: dict[str, Any], read_back: dict[str, Any], file: str = "ds.json"
) -> ExportRequest:
    study = StudyBuilder(path)
    own = {f"deepspeed.{name}": value for name, value in config.items()}
    seen = {
        f"deepspeed.{name}": ReadBack(requested=value, actual=value, level="live")
        for name, value in read_back.items()
    }
    study.trial(measured(0.5, read_back=seen), backend="deepspeed", config=WORK | own)
    contents = read_study(study.folder)
    made = choosing.choose(contents, build(contents), file)
    plan = dataclasses.replace(made.plan, backend="deepspeed", config=WORK | own)
    return dataclasses.replace(made, plan=plan)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_the_json_has_the_stage_and_deepspeed_loads_it(stage: int, tmp_path: Path) -> None:
    config = {"zero_stage": stage, "reduce_bucket_size": 7, "round_robin_gradients": True}
    offload = {"offload_optimizer": "cpu", "offload_optimizer_pin_memory": False}
    result = deepspeed.export(request(tmp_path, config | offload, config | offload))
    assert str(result.checked_with).startswith("deepspeed ")
    written = json.loads(result.files["ds.json"])
    zero = written["zero_optimization"]
    assert zero["stage"] == stage
    assert zero["reduce_bucket_size"] == 7
    assert zero["offload_optimizer"] == {"device": "cpu", "pin_memory": False}
    assert ("round_robin_gradients" in zero) == (stage < 3)
    assert written["optimizer"]["params"]["torch_adam"] is True
    assert any("torch's AdamW on the CPU" in note for note in result.notes)


def test_a_stage_or_an_offload_that_did_not_run_is_refused(tmp_path: Path) -> None:
    config = {"zero_stage": 2, "offload_optimizer": "cpu"}
    for number, (name, value) in enumerate((("zero_stage", 1), ("offload_optimizer", "none"))):
        wrong = request(tmp_path / str(number), config, {name: value})
        with pytest.raises(NothingToExportError, match=f"deepspeed.{name} would be written"):
            deepspeed.export(wrong)


@pytest.mark.parametrize("stage", [2, 3])
def test_accelerate_starts_the_stage_that_its_json_says(stage: int, tmp_path: Path) -> None:
    made = request(tmp_path, {"zero_stage": stage}, {"zero_stage": stage}, "acc.yaml")
    result = accelerate.export(dataclasses.replace(made, folder=tmp_path))
    text, companion = result.files.values()
    assert yaml.safe_load(text)["deepspeed_config"]["zero3_init_flag"] is (stage == 3)
    assert json.loads(companion)["zero_optimization"]["stage"] == stage
    assert "accelerate " in str(result.checked_with)
