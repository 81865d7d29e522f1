"""Adapters in a search: what they need, what they cost, and what is refused before a launch."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
from pathlib import Path

import pytest

from autotune.backends.base import backend_of
from autotune.cli.main import main
from autotune.contract.plan import Topology, Workload
from autotune.errors import EnvironmentFault, SpaceError
from autotune.models.family import family_of
from autotune.search import fitting
from autotune.search.devices import Device, Devices
from autotune.search.finetuning import check_finetuning
from autotune.search.mfu import flops_of
from autotune.search.workload import context_of, flops_per_iteration, make_workload
from autotune.space.loader import parse_space
from autotune.space.search_space import SearchSpace

TEXT = """\
version: 1
backend: [fsdp2, zero3, deepspeed, ddp]
workload:
  model: qwen3-8b
  global_batch: 8
  finetune: {finetune}
  data: {{max_length: 64}}
  precision: bf16
params:
  micro_batch: {{choices: [1, 2]}}
"""
CPU = Topology(processes=2, device="cpu", devices_per_node=2)
CUDA = Topology(processes=2, device="cuda", devices_per_node=2)
LORA = "{lora: {rank: 16, targets: [q_proj, v_proj]}}"
ADAPTERS = 36 * 16 * ((4096 + 4096) + (4096 + 1024))


def space_of(finetune: str, backends: str = "[fsdp2, ddp]") -> SearchSpace:
    text = TEXT.format(finetune=finetune).replace("[fsdp2, zero3, deepspeed, ddp]", backends)
    return parse_space(text, file="space.yaml").on(CUDA)


def workload_of(finetune: str) -> Workload:
    return make_workload(space_of(finetune), data_folder=None)


def test_the_workload_says_what_is_trained() -> None:
    full, lora = workload_of("full"), workload_of(LORA)
    assert full.num_trainable == full.model.num_parameters == 8_190_735_360
    assert lora.num_trainable == ADAPTERS == 7_667_712
    assert lora.model == full.model
    everything = workload_of("lora").lora
    assert everything is not None
    assert everything.alpha == 32.0
    assert everything.targets == (
        *("down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"),
    )


def test_a_layer_that_the_model_lacks_is_told_at_its_place() -> None:
    with pytest.raises(SpaceError, match="in_proj_qkv is the name of no linear layer") as caught:
        workload_of("{lora: {targets: [q_proj, in_proj_qkv]}}")
    assert str(caught.value).startswith("space.yaml:6:30: ")


@pytest.mark.parametrize(
    ("finetune", "gone", "words"),
    [
        ("lora", ("peft",), "lora needs peft, which is not installed"),
        ("qlora", ("bitsandbytes",), "qlora needs bitsandbytes, which is not installed"),
        ("qlora", ("peft", "bitsandbytes"), "peft and bitsandbytes, which are not installed"),
    ],
)
def test_a_missing_package_is_named_with_the_way_to_get_it(
    finetune: str, gone: tuple[str, ...], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in gone else name)
    with pytest.raises(EnvironmentFault, match=words) as caught:
        check_finetuning(finetune, CUDA)
    assert caught.value.exit_code == 3
    assert f"pip install {' '.join(gone)}" in caught.value.hint
    check_finetuning("full", CPU)


def test_four_bits_need_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    check_finetuning("qlora", CUDA)
    check_finetuning("lora", CPU)
    with pytest.raises(EnvironmentFault, match="qlora needs a CUDA device"):
        check_finetuning("qlora", CPU)


@pytest.mark.parametrize("backend", ["fsdp2", "zero3", "deepspeed"])
def test_weights_of_four_bits_are_not_split(backend: str) -> None:
    workload = workload_of("qlora")
    refusal = backend_of(backend).validate({}, workload, CUDA)
    assert refusal is not None
    assert refusal.about == "workload.finetune"
    assert "runs under ddp only" in refusal.reason
    assert backend_of("ddp").validate({"workload.micro_batch": 1}, workload, CUDA) is None
    assert backend_of(backend).validate({}, workload_of("lora"), CUDA) is None


def test_memory_of_adapters_by_hand() -> None:
    number = 8_190_735_360
    full, lora, qlora = (workload_of(kind) for kind in ("full", LORA, "qlora"))
    # float32 weight, gradient and two moments; frozen weights only their two bytes.
    assert fitting.least_memory_bytes(full) == 16 * number
    assert fitting.least_memory_bytes(lora) == 2 * number + 16 * ADAPTERS
    assert fitting.stage_memory_bytes(1, lora, 2) == 2 * number + (2 + 4 + 12 / 2) * ADAPTERS
    assert fitting.stage_memory_bytes(2, lora, 2) == 2 * number + (2 + (4 + 12) / 2) * ADAPTERS
    layers = family_of("qwen3").linear_layers(full.model.config)
    packed = sum(rows * columns for rows, columns in layers.values())
    assert packed == 36 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 12288)
    # 0.127 bits a weight for the scales (QLoRA, section 3).
    scales = 0.127 / 8 * packed
    expected = 2 * (number - packed) + packed / 2 + scales
    assert fitting.frozen_bytes(qlora) == pytest.approx(expected, rel=1e-4)


def test_a_copy_with_adapters_fits_where_a_copy_in_training_does_not() -> None:
    devices = Devices(found=(Device(name="H200", memory_bytes=80 * 2**30),) * 2)
    full = space_of("full")
    kept = fitting.fitting(full, workload_of("full"), CUDA, devices)
    assert kept.backends == ("fsdp2",)
    lora = space_of(LORA)
    assert fitting.fitting(lora, workload_of(LORA), CUDA, devices).backends == ("fsdp2", "ddp")


def test_model_flops_and_peak_of_a_search() -> None:
    full, lora = workload_of("full"), workload_of(LORA)
    tokens = sum(lora.samples.lengths) / 4
    family = family_of("qwen3")
    per_token = family.flops_per_token(lora.model.config, lora.samples.lengths, ADAPTERS)
    assert flops_per_iteration(lora) == pytest.approx(per_token * tokens, rel=1e-12)
    assert 0.66 < flops_per_iteration(lora) / flops_per_iteration(full) < 0.68
    h200 = Devices(found=(Device(name="NVIDIA H200", memory_bytes=1),) * 2)
    found = flops_of(lora, CUDA, h200)
    assert found.per_iteration == flops_per_iteration(lora)
    assert found.per_s_at_peak == 2 * 989e12
    plain = dataclasses.replace(lora, precision=dataclasses.replace(lora.precision, compute="fp32"))
    assert flops_of(plain, CUDA, h200).per_s_at_peak == 2 * 67e12
    other = Devices(found=(h200.found[0], Device(name="NVIDIA H20", memory_bytes=1)))
    assert flops_of(lora, CUDA, other).per_s_at_peak is None
    assert flops_of(lora, CPU, Devices(found=())).per_s_at_peak is None


def test_another_kind_of_training_is_another_work() -> None:
    digests = {
        context_of(workload_of(kind), CUDA, "here")
        for kind in ("full", "lora", LORA, "{lora: {rank: 8, targets: [q_proj, v_proj]}}", "qlora")
    }
    assert len(digests) == 5


SMALL = """\
version: 1
backend: fsdp2
workload: {{model: qwen3-tiny, global_batch: 8, data: {{max_length: 64}}, finetune: {finetune}}}
params: {{micro_batch: {{choices: [1, 2]}}}}
"""


def search(tmp_path: Path, finetune: str, *options: str) -> int:
    file = tmp_path / "s.yaml"
    file.write_text(SMALL.format(finetune=finetune), encoding="utf-8")
    return main(["search", "--space", str(file), "--runs", str(tmp_path / "runs"), *options])


def test_the_dry_run_says_what_is_trained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("peft")
    assert search(tmp_path, "{lora: {rank: 4}}", "--dry-run", "--json") == 0
    model = json.loads(capsys.readouterr().out)["model"]
    assert (model["finetune"], model["parameters"], model["trainable"]) == (
        *("lora", 1_049_984, 38_912),
    )
    assert search(tmp_path, "{lora: {rank: 4}}", "--dry-run") == 0
    assert "1,049,984 parameters; lora trains 38,912 others" in capsys.readouterr().out


def test_a_search_without_peft_ends_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "peft" else find(name)
    )
    assert search(tmp_path, "lora") == 3
    error = capsys.readouterr().err
    assert "lora needs peft, which is not installed" in error
    assert "pip install peft" in error
    assert not list(tmp_path.glob("runs/*/"))
