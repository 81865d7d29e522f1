"""Models that need no file: named configurations, as data.

A preset is what a ``config.json`` would say. Adding one means adding an entry.

Sources:

- ``qwen3-tiny`` follows no published model: a shape small enough to train on two CPU cores with
  every part that the real ones have (grouped-query attention, query and key norms, tied
  embeddings). Its embeddings are tied because those of the published small models are, and
  because a shared parameter is what sharding engines get wrong.
- ``qwen3_moe-tiny`` and ``qwen3_5-tiny`` are its siblings: eight experts of which each token
  takes two, and three gated delta net layers before one of attention.
- ``qwen3-0.6b``: ``config.json`` of Qwen/Qwen3-0.6B, without the keys that only matter when
  text is generated.
"""

from __future__ import annotations

from typing import Any, Final

PRESETS: Final[dict[str, dict[str, Any]]] = {
    "qwen3-tiny": {
        "model_type": "qwen3",
        "vocab_size": 2048,
        "hidden_size": 128,
        "intermediate_size": 384,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "hidden_act": "silu",
        "max_position_embeddings": 40960,
        "initializer_range": 0.02,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000,
        "tie_word_embeddings": True,
        "attention_bias": False,
    },
    "qwen3_moe-tiny": {
        "model_type": "qwen3_moe",
        "vocab_size": 2048,
        "hidden_size": 128,
        "intermediate_size": 384,
        "moe_intermediate_size": 96,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "norm_topk_prob": True,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "hidden_act": "silu",
        "max_position_embeddings": 40960,
        "initializer_range": 0.02,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000,
        "tie_word_embeddings": True,
        "attention_bias": False,
    },
    "qwen3_5-tiny": {
        "model_type": "qwen3_5",
        "text_config": {
            "model_type": "qwen3_5_text",
            "vocab_size": 2048,
            "hidden_size": 128,
            "intermediate_size": 384,
            "num_hidden_layers": 4,
            "full_attention_interval": 4,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 32,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 32,
            "linear_value_head_dim": 32,
            "linear_conv_kernel_dim": 4,
            "hidden_act": "silu",
            "max_position_embeddings": 40960,
            "initializer_range": 0.02,
            "rms_norm_eps": 1e-6,
            "rope_parameters": {"rope_theta": 10_000_000, "partial_rotary_factor": 0.25},
            "tie_word_embeddings": True,
            "attention_bias": False,
        },
    },
    "qwen3-0.6b": {
        "model_type": "qwen3",
        "vocab_size": 151936,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "hidden_act": "silu",
        "max_position_embeddings": 40960,
        "initializer_range": 0.02,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000,
        "tie_word_embeddings": True,
        "attention_bias": False,
    },
}
"""Preset name to model configuration."""
