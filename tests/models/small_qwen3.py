"""A Qwen3 small enough to build in each test."""

import json
import math
from pathlib import Path

import torch

from autotune.contract.plan import Model
from autotune.models.qwen3 import Qwen3Family
from autotune.models.weights import WeightSource, rebuild_buffers

FAMILY = Qwen3Family()
SMALL = {
    "model_type": "qwen3",
    "vocab_size": 96,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
}


class Inputs:
    """A batch without padding."""

    attention_mask = None
    position_ids = None
    boundaries = None

    def __init__(self, ids: torch.Tensor) -> None:
        self.input_ids = self.labels = ids


def small_model(*, seed: int = 0, **changes: object) -> Model:
    config = FAMILY.complete({**SMALL, **changes}, "config.json")
    return Model(
        name="small",
        family="qwen3",
        config=config,
        num_parameters=sum(math.prod(one.shape) for one in FAMILY.parameters(config)),
        seed=seed,
    )


def materialised(model: Model, **kernels: str) -> torch.nn.Module:
    """The model on the CPU in float32 with its start weights."""
    module = FAMILY.build(model, dtype=torch.float32, kernels=kernels)
    source = WeightSource.of(model, module)
    module.to_empty(device="cpu")
    module.tie_weights()
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(source.tensor(name, parameter.shape, device="cpu"))
    rebuild_buffers(module)
    return module


def write_folder(folder: Path, **changes: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**SMALL, **changes}))
