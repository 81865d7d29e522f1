"""Qwen3 with experts, without torch: its configuration checked, parameters and FLOPs counted.

Fields and defaults: ``transformers/models/qwen3_moe/configuration_qwen3_moe.py`` and
``modeling_qwen3_moe.py`` (5.24; 5.17 has the same).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from autotune.models import qwen3_shape
from autotune.models.checkpoint import ParameterShape
from autotune.models.fields import Fields


def complete(config: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the fields that decide training, checked, with every default filled in.

    Raises:
        InputError: A field is wrong or does not fit another one.
    """
    fields = Fields(config, where)
    qwen3_shape.refuse_changed_weights(fields)
    heads, kv_heads = qwen3_shape.attention_heads(fields, 32, 4)
    hidden = fields.integer("hidden_size", 2048)
    head_dim = qwen3_shape.head_dim(fields, hidden // heads or 1)
    layers = fields.integer("num_hidden_layers", 24, high=qwen3_shape.MAX_LAYERS)
    positions = fields.integer("max_position_embeddings", 32768)
    # The library reads either name (``attribute_map``).
    key = "num_local_experts" if "num_local_experts" in config else "num_experts"
    experts = fields.integer(key, 128)
    active = fields.integer("num_experts_per_tok", 8)
    if active > experts:
        fields.fail(f"num_experts_per_tok {active} is more than {key} {experts}")
    windowed = fields.switch("use_sliding_window", False)
    windowed = windowed and fields.data.get("sliding_window", 4096) is not None
    return {
        "model_type": "qwen3_moe",
        "vocab_size": fields.integer("vocab_size", 151936, low=2),
        "hidden_size": hidden,
        "intermediate_size": fields.integer("intermediate_size", 6144),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "hidden_act": fields.text("hidden_act", "silu", qwen3_shape.ACTIVATIONS),
        "max_position_embeddings": positions,
        "initializer_range": fields.number("initializer_range", 0.02),
        "rms_norm_eps": fields.number("rms_norm_eps", 1e-6),
        "tie_word_embeddings": fields.switch("tie_word_embeddings", False),
        "attention_bias": fields.switch("attention_bias", False),
        "attention_dropout": 0.0,
        "use_cache": False,
        "pad_token_id": qwen3_shape.pad_token(fields),
        "rope_parameters": qwen3_shape.rope(fields, positions, head_dim),
        "use_sliding_window": windowed,
        "sliding_window": fields.integer("sliding_window", 4096) if windowed else None,
        "decoder_sparse_step": fields.integer("decoder_sparse_step", 1),
        "mlp_only_layers": _dense_layers(fields, layers),
        "moe_intermediate_size": fields.integer("moe_intermediate_size", 768),
        "num_experts": experts,
        "num_experts_per_tok": active,
        "norm_topk_prob": fields.switch("norm_topk_prob", False),
        # The load-balancing loss is off: it depends on the cut.
        "output_router_logits": False,
        "router_aux_loss_coef": 0.0,
    }


def _dense_layers(fields: Fields, layers: int) -> list[int]:
    value = fields.data.get("mlp_only_layers")
    if value is None:
        return []
    good = isinstance(value, list)
    good = good and all(isinstance(i, int) and not isinstance(i, bool) for i in value)
    if not good or any(not 0 <= i < layers for i in value):
        fields.refuse("mlp_only_layers", value, f"a list of layers from 0 to {layers - 1}")
    return sorted(set(value))


def is_sparse(config: Mapping[str, Any], index: int) -> bool:
    """Whether layer ``index`` has experts (``Qwen3MoeDecoderLayer.__init__``)."""
    step, dense = config["decoder_sparse_step"], config["mlp_only_layers"]
    return (index + 1) % step == 0 and index not in dense


def _expert(config: Mapping[str, Any]) -> int:
    return 3 * int(config["hidden_size"]) * int(config["moe_intermediate_size"])


def parameters(config: Mapping[str, Any]) -> tuple[ParameterShape, ...]:
    """Return names and shapes of the trainable parameters of a completed ``config``."""
    hidden, width = config["hidden_size"], config["moe_intermediate_size"]
    experts = config["num_experts"]
    shared = {**qwen3_shape.attention_parameters(config), **qwen3_shape.norm_parameters(config)}
    sparse = {
        "mlp.experts.gate_up_proj": (experts, 2 * width, hidden),
        "mlp.experts.down_proj": (experts, hidden, width),
        "mlp.gate.weight": (experts, hidden),
    }
    dense = qwen3_shape.mlp_parameters(config)
    layers = range(config["num_hidden_layers"])
    found = qwen3_shape.model_parameters(
        config, [{**shared, **(sparse if is_sparse(config, i) else dense)} for i in layers]
    )
    return tuple(_expert_by_expert(parameter) for parameter in found)


def _expert_by_expert(parameter: ParameterShape) -> ParameterShape:
    """Add the tensors that checkpoints hold for all experts of a layer: those of each by itself.

    The library joins them as it loads and parts them as it saves
    (``transformers/conversion_mapping.py``, ``qwen2_moe``).
    """
    experts, _, kind = parameter.names[0].rpartition(".")
    parts = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}.get(kind)
    if parts is None or not experts.endswith(".experts"):
        return parameter
    count, rows, columns = parameter.shape
    pieces = (f"{experts}.{index}.{part}.weight" for index in range(count) for part in parts)
    return dataclasses.replace(
        parameter, pieces=tuple(pieces), piece_shape=(rows // len(parts), columns)
    )


def flops_per_token(
    config: Mapping[str, Any], lengths: Sequence[int], adapters: int | None = None
) -> float:
    """Return the model FLOPs of forward and backward per real token.

    As :func:`autotune.models.qwen3_shape.flops_per_token`, with the experts that a token is sent
    to instead of the dense layer's matrices, and the router. Experts that a token does not reach
    compute nothing for it.
    """
    if not sum(lengths):
        return 0.0
    active = config["num_experts_per_tok"] * _expert(config)
    router = config["hidden_size"] * config["num_experts"]
    dense_mlp = 3 * config["hidden_size"] * config["intermediate_size"]
    kind = "full_attention" if config["sliding_window"] is None else "sliding_attention"
    as_dense = {**config, "layer_types": [kind] * config["num_hidden_layers"]}
    sparse = sum(is_sparse(config, index) for index in range(config["num_hidden_layers"]))
    more = sparse * (active + router - dense_mlp)
    extra: float = 6 * more if adapters is None else 4 * more
    return qwen3_shape.flops_per_token(as_dense, lengths, adapters) + extra
