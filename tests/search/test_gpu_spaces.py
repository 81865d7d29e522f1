"""The shipped space files for GPUs: whole on a node that has all, and checked on any machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.contract.plan import Topology
from autotune.search.request import SearchRequest
from autotune.search.session import dry_run
from autotune.space.loader import find_space, load_space

TINY = {
    "qwen3-gpu": "qwen3-tiny",
    "qwen3_5-gpu": "qwen3_5-tiny",
    "zero3-gpu": "qwen3-tiny",
}
"""Space file to the model by which it can be checked without a GPU."""


def test_every_space_file_for_gpus_is_tested_here() -> None:
    files = find_space("zero3-gpu").parent.glob("*-gpu.yaml")
    assert {path.stem for path in files} == TINY.keys()


@pytest.mark.parametrize("name", TINY)
@pytest.mark.parametrize("processes", [2, 8])
def test_on_a_gpu_node_nothing_is_dropped(name: str, processes: int) -> None:
    topology = Topology(processes=processes, device="cuda", devices_per_node=processes)
    space = load_space(name).on(topology)
    assert space.dropped == ()
    assert space.training.precision.compute == "bf16"
    assert space.training.model not in TINY.values()
    for backend in space.backends:
        start = space.project(backend, {})
        assert space.contains(start)
        assert space.violated(space.resolve(start)) is None
    assert space.violated(space.baseline_config()) is None


@pytest.mark.parametrize(("name", "model"), TINY.items())
def test_a_dry_run_without_gpus_leaves_out_what_only_gpus_have(
    name: str, model: str, tmp_path: Path
) -> None:
    request = SearchRequest(
        space=name, overrides=(f"workload.model={model}",), runs=tmp_path / "runs"
    )
    prepared = dry_run(request)
    assert prepared.topology.device == "cpu"
    params = {param.name for param in prepared.space.params}
    declared = {param.name for param in load_space(name).declared}
    gone = {one.param: one.reason for one in prepared.space.dropped if one.value is None}
    assert params == declared - gone.keys()
    assert all(reason == "it needs a CUDA device" for reason in gone.values())
    liger = [one for one in prepared.space.dropped if one.value == "liger"]
    assert {one.param for one in liger} >= {"kernel.loss", "kernel.mlp"}
    assert all("needs an NVIDIA GPU" in one.reason for one in liger)
    assert len(prepared.notes) >= len(prepared.space.dropped)
    assert prepared.anchors
    assert not (tmp_path / "runs").exists()
