"""The DeepSpeed JSON, what ZeRO-3 refuses, and its anchors: pure functions."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from typing import Any

import pytest
from support_trials import BF16, FP32, make_plan

from autotune.backends.base import IncompatibleConfigError
from autotune.backends.deepspeed import Zero3Backend, as_run
from autotune.contract.plan import Topology

CPU = Topology(processes=2, device="cpu", devices_per_node=2)
BACKEND = Zero3Backend()


def _render(**more: Any) -> dict[str, Any]:
    return BACKEND.render(make_plan("zero3", **more))


def test_trainer_form_has_batch_sizes_that_fit_together() -> None:
    rendered = _render(changes={"workload.micro_batch": 2})
    assert rendered["train_micro_batch_size_per_gpu"] == 2
    assert rendered["gradient_accumulation_steps"] == 4
    assert rendered["train_batch_size"] == 16


def test_engine_form_differs_only_in_accumulation() -> None:
    rendered = _render(changes={"workload.micro_batch": 2})
    before = json.dumps(rendered, sort_keys=True)
    running = as_run(rendered)
    assert json.dumps(rendered, sort_keys=True) == before
    assert running.pop("gradient_accumulation_steps") == 1
    assert running.pop("train_batch_size") == 4
    for key in ("gradient_accumulation_steps", "train_batch_size"):
        rendered.pop(key)
    assert running == rendered


def test_token_cut_gives_whole_samples_for_a_trainer() -> None:
    rendered = _render(changes={"workload.max_tokens": 128})
    sizes = [
        rendered[key] for key in ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    ]
    assert sizes == [1, 8]
    assert rendered["train_batch_size"] == 16


def test_everything_that_changes_numbers_is_explicit() -> None:
    rendered = _render(clipping=0.0, lr=3e-4)
    assert rendered["gradient_clipping"] == 0.0
    assert rendered["bf16"] == {"enabled": False}
    assert rendered["data_types"] == {"grad_accum_dtype": "fp32"}
    assert rendered["communication_data_type"] == "fp32"
    parameters = rendered["optimizer"]["params"]
    assert parameters["lr"] == 3e-4
    assert parameters["betas"] == [0.9, 0.999]
    assert parameters["torch_adam"] is True
    assert _render(precision=BF16)["bf16"] == {"enabled": True}
    assert "auto" not in json.dumps(rendered)


def test_integers_stay_integers() -> None:
    """BUG-055, BUG-007: no exponent, no fraction, exact beyond a float's reach."""
    changes = {
        "zero3.stage3_prefetch_bucket_size": 15_099_494,
        "zero3.reduce_bucket_size": 500_000_003,
        "zero3.stage3_model_persistence_threshold": 9_223_372_036_854_775_807,
    }
    text = json.dumps(_render(changes=changes)["zero_optimization"])
    assert '"stage3_prefetch_bucket_size": 15099494,' in text
    assert '"reduce_bucket_size": 500000003,' in text
    assert '"stage3_model_persistence_threshold": 9223372036854775807' in text


def test_the_engines_own_parser_takes_the_rendered_form() -> None:
    program = (
        "import json, sys\n"
        "from deepspeed.runtime.zero.config import get_zero_config\n"
        "data = json.load(sys.stdin)\n"
        "parsed = get_zero_config(data)\n"
        "values = parsed.reduce_bucket_size, parsed.prefetch_bucket_size, int(parsed.stage)\n"
        "print(json.dumps(values))\n"
    )
    rendered = _render(
        changes={"zero3.reduce_bucket_size": 7, "zero3.stage3_prefetch_bucket_size": 9}
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        input=json.dumps(rendered),
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout.splitlines()[-1]) == [7, 9, 3]


def test_unverified_keys_are_merged_deeply_and_may_not_contradict() -> None:
    """BUG-008: an explicit opt-in passes a key through."""
    extra = {"deepspeed": {"zero_optimization": {"log_trace_cache_warnings": True}, "new": 1}}
    rendered = _render(unverified=extra)
    assert rendered["zero_optimization"]["log_trace_cache_warnings"] is True
    assert rendered["zero_optimization"]["reduce_bucket_size"] == 500_000_000
    assert rendered["new"] == 1
    with pytest.raises(IncompatibleConfigError, match=r"zero_optimization\.reduce_bucket_size"):
        _render(unverified={"deepspeed": {"zero_optimization": {"reduce_bucket_size": 4}}})


def test_dead_keys_of_other_stages_are_not_written() -> None:
    assert "allgather_bucket_size" not in _render()["zero_optimization"]


def test_anchors_follow_the_hidden_size() -> None:
    workload = make_plan("zero3").workload
    anchors = BACKEND.anchors(workload)
    rule = anchors["hf_auto"]
    assert rule["zero3.reduce_bucket_size"] == 128 * 128
    assert rule["zero3.stage3_prefetch_bucket_size"] == 14_745
    assert rule["zero3.stage3_param_persistence_threshold"] == 1_280
    names = {knob.full_name for knob in BACKEND.knobs}
    defaults = {knob.full_name: knob.default for knob in BACKEND.knobs}
    for values in anchors.values():
        assert set(values) <= names
    for name, value in anchors["engine_defaults"].items():
        assert value == defaults[name]


def test_refusals_are_in_words() -> None:
    plan = make_plan("zero3")
    assert BACKEND.validate(plan.config, plan.workload, CPU) is None
    config = plan.config | {"zero3.stage3_module_granularity_threshold": 10}
    assert "granularity" in str(BACKEND.validate(config, plan.workload, CPU))
    low = dataclasses.replace(plan.workload, precision=dataclasses.replace(BF16, master="bf16"))
    assert "master" in str(BACKEND.validate(plan.config, low, CPU))
    mixed = dataclasses.replace(
        plan.workload, precision=dataclasses.replace(FP32, accumulate="bf16")
    )
    assert "accumulates" in str(BACKEND.validate(plan.config, mixed, CPU))
