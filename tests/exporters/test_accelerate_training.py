"""Training scripts under accelerate that use the code beside an exported YAML."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate_exports import exported
from study_factory import StudyBuilder, make_plan
from transformers import AutoModelForCausalLM, Qwen3Config

from autotune.contract.plan import Precision

ROOT = Path(__file__).resolve().parents[2]
TRAIN = """
import json, torch
from accelerate import Accelerator
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin
from acc_setup import shard
from transformers import AutoModelForCausalLM, Qwen3Config
from torch.distributed.fsdp._fully_shard._fsdp_state import _get_module_fsdp_state as state
from autotune.backends.fsdp2_state import groups_of

accelerator = Accelerator(cpu=True)
# Accelerate switches FSDP on for accelerators only; the code that prepares a model is the same.
for name, value in {
    "distributed_type": DistributedType.FSDP, "fsdp_plugin": FullyShardedDataParallelPlugin()
}.items():
    accelerator.state._shared_state[name] = value
    setattr(accelerator.state, name, value)
assert accelerator.is_fsdp2
torch.manual_seed(0)
model = AutoModelForCausalLM.from_config(Qwen3Config(
    hidden_size=32, intermediate_size=48, num_hidden_layers=4, num_attention_heads=2,
    num_key_value_heads=1, head_dim=16, vocab_size=64, use_cache=False,
))
layers = list(model.get_decoder().layers)
model = shard(accelerator, model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
model, optimizer = accelerator.prepare(model, optimizer)
ids = torch.arange(16).reshape(2, 8) + accelerator.process_index
losses = []
for _ in range(2):
    loss = model(input_ids=ids, labels=ids).loss
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
states = [state(layer) for layer in layers]
if accelerator.is_main_process:
    print("SEEN" + json.dumps({
        "units": len({id(s) for s in states}),
        "forward": [len(s._states_to_forward_prefetch) for s in states],
        "backward": [len(s._states_to_backward_prefetch) for s in states],
        "wrapped": [type(layer).__name__ for layer in model.get_decoder().layers],
        "checkpointing": [layer.gradient_checkpointing for layer in layers],
        "selective": "context_fn" in layers[0]._gradient_checkpointing_func.keywords,
        "copies": [groups_of(layer)[0].mesh_info.replicate_mesh_size for layer in layers],
        "kept": [groups_of(layer)[0].post_forward_mesh_info is None for layer in layers],
        "learned": losses[1] < losses[0],
    }))
"""


DDP_TRAIN = """
import copy, json, torch
from accelerate import Accelerator
from acc_setup import as_measured, kwargs_handlers
from autotune.backends.ddp_engine import ComputeCopy
from transformers import AutoModelForCausalLM, Qwen3Config

torch.manual_seed(0)
model = AutoModelForCausalLM.from_config(Qwen3Config(
    hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
    num_key_value_heads=1, head_dim=16, vocab_size=64, use_cache=False, tie_word_embeddings=True,
), dtype=torch.bfloat16)
measured = copy.deepcopy(model).float()
rounding = ComputeCopy(measured, torch.bfloat16)
accelerator = Accelerator(
    cpu=True, mixed_precision="bf16", kwargs_handlers=kwargs_handlers()
)
model = as_measured(accelerator, model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
model, optimizer = accelerator.prepare(model, optimizer)
autocast = set()
model.get_decoder().layers[0].register_forward_pre_hook(
    lambda *_: autocast.add(torch.is_autocast_enabled("cpu"))
)
ids = torch.arange(16).reshape(2, 8)
for one, backward in ((model, accelerator.backward), (measured, torch.Tensor.backward)):
    for _ in range(2):
        backward(one(input_ids=ids, labels=ids).loss)
rounding.drop()
pairs = list(zip(model.parameters(), measured.parameters(), strict=True))
print("SEEN" + json.dumps({
    "gradients": all(torch.equal(a.grad, b.grad) for a, b in pairs) and len(pairs),
    "formats": sorted({str(t.dtype) for a, _ in pairs for t in (a, a.grad)}),
    "autocast": sorted(autocast),
    "copies": sum("weight" in owner.__dict__ for owner in model.modules()),
    "checkpointing": all(layer.gradient_checkpointing for layer in model.get_decoder().layers),
}))
"""


@pytest.mark.parametrize("backend", ["fsdp2", "ddp"])
def test_weights_are_held_in_their_format_and_rotary_frequencies_stay_exact(
    backend: str, study: StudyBuilder, unasked: None
) -> None:
    """As the engine holds them: rounded frequencies turn late tokens by whole radians."""
    bf16 = Precision(compute="bf16", master="bf16", accumulate="bf16", reduce="bf16")
    result = exported(study, backend, precision=bf16)
    code: dict[str, Any] = {}
    exec(result.files["acc_setup.py"], code)
    config = Qwen3Config(
        hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, vocab_size=64, tie_word_embeddings=True,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config)
    code["_hold"](model)
    assert {weight.dtype for weight in model.parameters()} == {torch.bfloat16}
    assert {buffer.dtype for buffer in model.buffers()} == {torch.float32}
    assert model.lm_head.weight is model.get_input_embeddings().weight


@pytest.mark.slow
def test_the_code_beside_a_ddp_yaml_computes_what_was_measured(
    study: StudyBuilder, unasked: None, tmp_path: Path
) -> None:
    """Accelerate's autocast would lower products that a layer makes in float32 on purpose."""
    config = {"workload.activation_checkpointing": "full"}
    result = exported(study, "ddp", config=config)
    assert any("autocast" in note for note in result.notes)
    (tmp_path / "acc_setup.py").write_text(result.files["acc_setup.py"])
    done = subprocess.run(
        [sys.executable, "-c", DDP_TRAIN], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("SEEN")]
    assert json.loads(line.removeprefix("SEEN")) == {
        "gradients": 24,
        "formats": ["torch.float32"],
        "autocast": [False],
        "copies": 0,
        "checkpointing": True,
    }


@pytest.mark.slow
def test_the_code_beside_an_fsdp2_yaml_is_taken_by_accelerate_as_it_is(
    study: StudyBuilder, unasked: None, tmp_path: Path
) -> None:
    result = exported(
        study,
        "fsdp2",
        precision=make_plan().workload.precision,
        config={
            "fsdp2.layers_per_unit": 1,
            "fsdp2.forward_prefetch": 2,
            "fsdp2.backward_prefetch": 2,
            "fsdp2.replicate": 2,
            "fsdp2.keep_last_unit": True,
            "workload.activation_checkpointing": "selective",
            "workload.checkpoint_every": 2,
        },
    )
    for name, text in result.files.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "train.py").write_text(TRAIN)
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--main_process_port", "0"]
    done = subprocess.run(
        [*launch, "--config_file", "acc.yaml", "train.py"],
        cwd=tmp_path,
        env=os.environ | {"ACCELERATE_USE_CPU": "1", "PYTHONPATH": f"{tmp_path}:{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("SEEN")]
    assert json.loads(line.removeprefix("SEEN")) == {
        "units": 4,
        "forward": [2, 2, 1, 0],
        "backward": [0, 1, 2, 2],
        "wrapped": ["FSDPQwen3DecoderLayer"] * 4,
        "checkpointing": [True, False, True, False],
        "selective": True,
        "copies": [2, 2, 2, 2],
        "kept": [False, False, False, True],
        "learned": True,
    }
