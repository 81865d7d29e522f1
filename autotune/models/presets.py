"""Models that need no file: named configurations, as data.

A preset is what a ``config.json`` would say, without the keys that only matter when text is
generated. Adding one means adding an entry.

Sources:

- ``qwen3-tiny`` follows no published model: a shape small enough to train on two CPU cores with
  every part that the real ones have (grouped-query attention, query and key norms, tied
  embeddings). Its embeddings are tied because those of the published small models are, and
  because a shared parameter is what sharding engines get wrong.
- ``qwen3_moe-tiny`` and ``qwen3_5-tiny`` are its siblings: eight experts of which each token
  takes two, and three gated delta net layers before one of attention.
- ``qwen3-*b`` and ``qwen3-*-a*``: the ``config.json`` of Qwen/Qwen3-0.6B … Qwen3-32B,
  Qwen3-30B-A3B and Qwen3-235B-A22B as first published (2025-04). Two other programs that train
  them state the same dimensions: pytorch/torchtitan, ``torchtitan/models/qwen3/flavors.py``, and
  NVIDIA-NeMo/Megatron-Bridge, ``src/megatron/bridge/models/qwen/qwen_provider.py``. 0.6B, 1.7B
  and 4B tie their embeddings, the others do not (Qwen3 technical report, arXiv 2505.09388).
- ``qwen3_5-*b``: ``text_config`` of the ``config.json`` of Qwen/Qwen3.5-0.8B … Qwen3.5-27B, the
  dense ones; the same dimensions in pytorch/torchtitan, ``torchtitan/models/qwen3_5/flavors.py``,
  and 9B's as defaults of transformers, ``models/qwen3_5/configuration_qwen3_5.py``. 0.8B, 2B and
  4B tie their embeddings. The vision part and the head that predicts further tokens are not
  trained here, so they are not counted.
"""

from __future__ import annotations

from typing import Any, Final

_QWEN3: Final[dict[str, Any]] = {
    "model_type": "qwen3",
    "vocab_size": 151936,
    "head_dim": 128,
    "num_key_value_heads": 8,
    "hidden_act": "silu",
    "max_position_embeddings": 40960,
    "initializer_range": 0.02,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000,
    "attention_bias": False,
}
"""What the dense models of Qwen3 share."""

_QWEN3_MOE: Final[dict[str, Any]] = {
    **_QWEN3,
    "model_type": "qwen3_moe",
    "num_key_value_heads": 4,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "tie_word_embeddings": False,
}
"""What those with experts share."""

_QWEN3_5: Final[dict[str, Any]] = {
    "model_type": "qwen3_5_text",
    "vocab_size": 248320,
    "head_dim": 256,
    "full_attention_interval": 4,
    "linear_num_key_heads": 16,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "hidden_act": "silu",
    "max_position_embeddings": 262144,
    "initializer_range": 0.02,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10_000_000,
        "partial_rotary_factor": 0.25,
        "mrope_section": [11, 11, 10],
    },
    "attention_bias": False,
}
"""What the dense models of Qwen3.5 share."""

_TINY: Final[dict[str, Any]] = {
    "vocab_size": 2048,
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "tie_word_embeddings": True,
}
"""What the models for machines without a GPU share."""


def _dense(hidden: int, ffn: int, layers: int, heads: int, *, tied: bool = False) -> dict[str, Any]:
    return {
        **_QWEN3,
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "tie_word_embeddings": tied,
    }


def _hybrid(
    hidden: int, ffn: int, layers: int, heads: tuple[int, int], values: int, *, tied: bool = False
) -> dict[str, Any]:
    """``heads``: of queries, and of keys and values; ``values``: value heads of linear layers."""
    return {
        "model_type": "qwen3_5",
        "text_config": {
            **_QWEN3_5,
            "hidden_size": hidden,
            "intermediate_size": ffn,
            "num_hidden_layers": layers,
            "num_attention_heads": heads[0],
            "num_key_value_heads": heads[1],
            "linear_num_value_heads": values,
            "tie_word_embeddings": tied,
        },
    }


PRESETS: Final[dict[str, dict[str, Any]]] = {
    "qwen3-tiny": {**_QWEN3, **_TINY},
    "qwen3_moe-tiny": {
        **_QWEN3_MOE,
        **_TINY,
        "moe_intermediate_size": 96,
        "num_experts": 8,
        "num_experts_per_tok": 2,
    },
    "qwen3_5-tiny": {
        "model_type": "qwen3_5",
        "text_config": {
            **_QWEN3_5,
            **_TINY,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 32,
            "linear_value_head_dim": 32,
            "max_position_embeddings": 40960,
        },
    },
    "qwen3-0.6b": _dense(1024, 3072, 28, 16, tied=True),
    "qwen3-1.7b": _dense(2048, 6144, 28, 16, tied=True),
    "qwen3-4b": _dense(2560, 9728, 36, 32, tied=True),
    "qwen3-8b": _dense(4096, 12288, 36, 32),
    "qwen3-14b": _dense(5120, 17408, 40, 40),
    "qwen3-32b": _dense(5120, 25600, 64, 64),
    "qwen3-30b-a3b": {
        **_QWEN3_MOE,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "moe_intermediate_size": 768,
        "num_hidden_layers": 48,
        "num_attention_heads": 32,
    },
    "qwen3-235b-a22b": {
        **_QWEN3_MOE,
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "moe_intermediate_size": 1536,
        "num_hidden_layers": 94,
        "num_attention_heads": 64,
    },
    "qwen3_5-0.8b": _hybrid(1024, 3584, 24, (8, 2), 16, tied=True),
    "qwen3_5-2b": _hybrid(2048, 6144, 24, (8, 2), 16, tied=True),
    "qwen3_5-4b": _hybrid(2560, 9216, 32, (16, 4), 32, tied=True),
    "qwen3_5-9b": _hybrid(4096, 12288, 32, (16, 4), 32),
    "qwen3_5-27b": _hybrid(5120, 17408, 64, (24, 4), 48),
}
"""Preset name to model configuration."""
