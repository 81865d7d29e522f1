"""Where a model's folder is looked for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autotune.models.presets import PRESETS
from autotune.search.request import SearchRequest
from autotune.search.session import dry_run
from autotune.space.model import CommandSpec

SPACE = """
version: 1
backend: fsdp2
workload: {model: small, global_batch: 8, data: {lengths: ultrachat-like, max_length: 64}}
params: {micro_batch: {choices: [1, 2]}}
"""


def layers(file: Path) -> tuple[str, int]:
    prepared = dry_run(SearchRequest(space=str(file), runs=file.parent / "runs"))
    assert not isinstance(prepared.space.workload, CommandSpec)
    model = prepared.planner.workload.model
    return model.name, model.config["num_hidden_layers"]


def model(folder: Path, num_layers: int) -> None:
    folder.mkdir()
    config = {**PRESETS["qwen3-tiny"], "num_hidden_layers": num_layers}
    (folder / "config.json").write_text(json.dumps(config))


def test_a_models_folder_may_lie_beside_the_space_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, here = tmp_path / "home", tmp_path / "here"
    home.mkdir()
    here.mkdir()
    monkeypatch.chdir(here)
    file = home / "space.yaml"
    file.write_text(SPACE)
    model(home / "small", 3)
    assert layers(file) == ("small", 3)
    model(here / "small", 2)
    assert layers(file) == ("small", 2)
