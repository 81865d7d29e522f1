"""A DeepSpeed JSON read back as a configuration: all that the engine's rendering says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autotune.backends.base import backend_of
from autotune.contract.plan import Reference, Topology
from autotune.errors import InputError
from autotune.search import deepspeed_file
from autotune.search.planning import Planner
from autotune.search.workload import make_workload
from autotune.space.loader import parse_space

CPU = Topology(processes=2, device="cpu", devices_per_node=2)
SPACE = """
version: 1
backend: zero3
workload:
  model: qwen3_moe-tiny
  global_batch: 8
  data: {lengths: ultrachat-like, max_length: 64}
params:
  micro_batch: {choices: [1, 2]}
  deepcompile: {choices: [false, true]}
"""


@pytest.fixture
def planner() -> Planner:
    space = parse_space(SPACE, file="space.yaml").on(CPU)
    workload = make_workload(space, data_folder=Path())
    return Planner(study="s", space=space, workload=workload, topology=CPU)


def rendered(planner: Planner, **assignment: Any) -> dict[str, Any]:
    config = planner.space.resolve({"micro_batch": 2, "deepcompile": False, **assignment})
    plan = planner.plan(
        config, number=0, attempt=0, purpose="trial", reference=Reference(), racing=None
    )
    return backend_of("zero3").render(plan)


def found_in(planner: Planner, folder: Path, data: dict[str, Any]) -> deepspeed_file.FromFile:
    path = folder / "ds.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    return deepspeed_file.read(path, planner)


def read(planner: Planner, folder: Path, data: dict[str, Any]) -> dict[str, Any]:
    return found_in(planner, folder, data).config.values


@pytest.mark.parametrize("deepcompile", [False, True])
def test_experts_and_deepcompile_are_read_back(
    planner: Planner, tmp_path: Path, deepcompile: bool
) -> None:
    data = rendered(planner, deepcompile=deepcompile)
    assert data["zero_optimization"]["leaf_module"] == {"classes": ["Qwen3MoeSparseMoeBlock"]}
    values = read(planner, tmp_path, data)
    assert values["workload.micro_batch"] == 2
    assert values["zero3.deepcompile"] is deepcompile


def test_other_modules_that_are_gathered_whole_are_refused(
    planner: Planner, tmp_path: Path
) -> None:
    data = rendered(planner)
    data["zero_optimization"]["leaf_module"] = {"classes": ["Qwen3MoeDecoderLayer"]}
    with pytest.raises(InputError, match="leaf_module is .*, but the study runs"):
        read(planner, tmp_path, data)
    del data["zero_optimization"]["leaf_module"]
    read(planner, tmp_path, data)


def test_what_is_no_switch_is_refused(planner: Planner, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="deepcompile cannot be 'yes'"):
        read(planner, tmp_path, {**rendered(planner), "compile": {"deepcompile": "yes"}})


def test_tuned_settings_that_the_file_cannot_say_are_told(planner: Planner, tmp_path: Path) -> None:
    assert found_in(planner, tmp_path, rendered(planner)).notes == ()
    text = f"{SPACE}  kernel.loss: {{choices: [torch, chunked]}}\n"
    space = parse_space(text, file="space.yaml").on(CPU)
    more = Planner(study="s", space=space, workload=planner.workload, topology=CPU)
    found = found_in(more, tmp_path, rendered(planner))
    assert found.notes == ("it says nothing of kernel.loss: there the baseline's values run",)
    assert found.config.values["kernel.loss"] == "torch"
