"""Published models' layers and vocabulary, at a depth that a short run can afford."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def qwen3(layers: int) -> dict[str, Any]:
    """Qwen3 4B."""
    return {
        "model_type": "qwen3",
        "vocab_size": 151936,
        "hidden_size": 2560,
        "intermediate_size": 9728,
        "num_hidden_layers": layers,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 40960,
        "rope_theta": 1_000_000,
        "tie_word_embeddings": True,
    }


def qwen3_5(layers: int) -> dict[str, Any]:
    """Qwen3.5 4B with a wider MLP: 2.5e9 parameters in 16 layers, 12 of them gated delta nets."""
    return {
        "model_type": "qwen3_5_text",
        "vocab_size": 248320,
        "hidden_size": 2560,
        "intermediate_size": 9728,
        "num_hidden_layers": layers,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
        "max_position_embeddings": 32768,
        "tie_word_embeddings": True,
    }


def model_of(shape: dict[str, Any], folder: Path) -> str:
    """What ``workload.model`` is for ``shape``: its preset, or its configuration in ``folder``."""
    if "preset" in shape:
        return str(shape["preset"])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(shape["config"]))
    return str(folder)
