"""What an export says of adapters, and its code, run as a training script would."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate_exports import exported
from study_factory import CONFIG, StudyBuilder, make_plan, measured

from autotune.contract.plan import Lora
from autotune.exporters import choosing, deepspeed
from autotune.exporters.base import ExportResult
from autotune.report.document import build
from autotune.store.importer import read_study

LORA = Lora(rank=8, alpha=16.0, targets=("q_proj", "v_proj"), num_parameters=100)
ARGUMENTS = "r=8, lora_alpha=16, lora_dropout=0.0, target_modules=['q_proj', 'v_proj'], bias='none'"

TRAIN = """
import json, sys, types
import torch
from acc_setup import {function}, adapted
from transformers import AutoModelForCausalLM, Qwen3Config

store = "file://" + sys.argv[1]
torch.distributed.init_process_group("gloo", init_method=store, rank=0, world_size=1)
torch.manual_seed(0)
model = AutoModelForCausalLM.from_config(Qwen3Config(
    hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
    num_key_value_heads=1, head_dim=16, vocab_size=64, use_cache=False,
))
accelerator = types.SimpleNamespace(device=torch.device("cpu"), native_amp=True)
model = {function}(accelerator, adapted(model))
trained = [p for p in model.parameters() if p.requires_grad]
optimizer = torch.optim.AdamW(trained, lr=1e-2)
ids = torch.arange(16).reshape(2, 8)
losses = []
for _ in range(3):
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
formats = {{
    flag: sorted({{str(p.dtype) for p in model.parameters() if p.requires_grad == flag}})
    for flag in (True, False)
}}
print("SEEN" + json.dumps({{
    "trained": sum(p.numel() for p in trained),
    "formats": [formats[True], formats[False]],
    "learned": losses[-1] < losses[0],
    "checkpointing": all(layer.gradient_checkpointing for layer in model.get_decoder().layers),
    "begun": sorted({{bool(optimizer.state[p]["exp_avg_sq"].norm() > 0) for p in trained}}),
}}))
torch.distributed.destroy_process_group()
"""


def _to_accelerate(study: StudyBuilder, backend: str, **changes: Any) -> ExportResult:
    plan = make_plan()
    workload = dataclasses.replace(plan.workload, finetune="lora", lora=LORA)
    return exported(study, backend, workload=workload, **changes)


def _to_deepspeed(study: StudyBuilder, finetune: str) -> ExportResult:
    study.trial(measured(0.5, read_back={}), config=CONFIG)
    contents = read_study(study.folder)
    request = choosing.choose(contents, build(contents), "ds.json")
    workload = dataclasses.replace(request.plan.workload, finetune=finetune, lora=LORA)
    plan = dataclasses.replace(request.plan, workload=workload)
    return deepspeed.export(dataclasses.replace(request, plan=plan))


def test_a_deepspeed_json_comes_with_the_call_that_adds_the_adapters(
    study: StudyBuilder, unasked: None
) -> None:
    (note,) = [note for note in _to_deepspeed(study, "lora").notes if "LoraConfig" in note]
    assert f"get_peft_model(model, LoraConfig({ARGUMENTS})) of peft" in note
    assert "all other weights frozen, in fp32" in note


def test_four_bits_come_with_the_call_that_packs_them(study: StudyBuilder, unasked: None) -> None:
    (note,) = [note for note in _to_deepspeed(study, "qlora").notes if "BitsAndBytes" in note]
    for argument in ("load_in_4bit=True", "'nf4'", "use_double_quant=True", "torch.float32"):
        assert argument in note


def test_packed_weights_are_not_copied_into_the_format_of_compute(
    study: StudyBuilder, unasked: None
) -> None:
    """Their bytes are no numbers: each layer unpacks its own."""
    plan = make_plan()
    workload = dataclasses.replace(plan.workload, finetune="qlora", lora=LORA)
    code: dict[str, Any] = {}
    exec(exported(study, "ddp", workload=workload).files["acc_setup.py"], code)
    model = torch.nn.Linear(4, 4)
    packed = torch.nn.Parameter(torch.zeros(8, 1, dtype=torch.uint8), requires_grad=False)
    model.register_parameter("packed", packed)
    seen: dict[str, torch.dtype] = {}
    code["_compute_on_copy"](model)
    model.register_forward_pre_hook(
        lambda model, _: seen.update(weight=model.weight.dtype, packed=model.packed.dtype)
    )
    model(torch.ones(1, 4, dtype=torch.bfloat16))
    assert seen == {"weight": torch.bfloat16, "packed": torch.uint8}


def test_all_weights_need_no_such_call(study: StudyBuilder, unasked: None) -> None:
    result = exported(study, "fsdp2")
    assert not any("peft" in text for text in (*result.notes, *result.files.values()))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "function", "reentrant"),
    [("fsdp2", "shard", False), ("fsdp2", "shard", True), ("ddp", "as_measured", False)],
)
def test_the_code_beside_a_yaml_trains_the_adapters_alone(
    backend: str,
    function: str,
    reentrant: bool,
    study: StudyBuilder,
    unasked: None,
    tmp_path: Path,
) -> None:
    pytest.importorskip("peft")
    config = {
        "workload.activation_checkpointing": "full",
        "workload.use_reentrant": reentrant,
    }
    result = _to_accelerate(study, backend, config=config)
    assert any("import adapted" in note for note in result.notes)
    (tmp_path / "acc_setup.py").write_text(result.files["acc_setup.py"])
    script = TRAIN.format(function=function)
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "store")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("SEEN")]
    assert json.loads(line.removeprefix("SEEN")) == {
        "trained": 2 * 8 * ((32 + 32) + (32 + 16)),
        "formats": [["torch.float32"], ["torch.bfloat16"]],
        "learned": True,
        "checkpointing": True,
        "begun": [True],
    }
