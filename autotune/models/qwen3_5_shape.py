"""Qwen3.5's text model without torch: its configuration checked, parameters and FLOPs counted.

Fields and defaults: ``transformers/models/qwen3_5/configuration_qwen3_5.py`` and
``modeling_qwen3_5.py`` (5.24; 5.17 has the same).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Final

from autotune.models import qwen3_shape
from autotune.models.checkpoint import ParameterShape
from autotune.models.fields import Fields, is_number

_FULL: Final = "full_attention"
_LINEAR: Final = "linear_attention"
_VOCABULARY: Final = 248320


def complete(config: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the text model's fields that decide training, with every default filled in.

    The whole model's ``config.json`` holds them under ``text_config``, a text model's own at the
    top. The vision part is not trained and not built.

    Raises:
        InputError: A field is wrong or does not fit another one.
    """
    fields = _text_fields(config, where)
    qwen3_shape.refuse_changed_weights(fields)
    heads, kv_heads = qwen3_shape.attention_heads(fields, 16, 4)
    head_dim = qwen3_shape.head_dim(fields, 256)
    layers = fields.integer("num_hidden_layers", 32, high=qwen3_shape.MAX_LAYERS)
    key_heads = fields.integer("linear_num_key_heads", 16)
    value_heads = fields.integer("linear_num_value_heads", 32)
    if value_heads % key_heads:
        fields.fail(
            f"linear_num_value_heads {value_heads} is no multiple of linear_num_key_heads "
            f"{key_heads}"
        )
    return {
        "model_type": "qwen3_5_text",
        "vocab_size": fields.integer("vocab_size", _VOCABULARY, low=2),
        "hidden_size": fields.integer("hidden_size", 4096),
        "intermediate_size": fields.integer("intermediate_size", 12288),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "linear_conv_kernel_dim": fields.integer("linear_conv_kernel_dim", 4),
        "linear_key_head_dim": fields.integer("linear_key_head_dim", 128),
        "linear_value_head_dim": fields.integer("linear_value_head_dim", 128),
        "linear_num_key_heads": key_heads,
        "linear_num_value_heads": value_heads,
        "hidden_act": fields.text("hidden_act", "silu", qwen3_shape.ACTIVATIONS),
        "max_position_embeddings": fields.integer("max_position_embeddings", 32768),
        "initializer_range": fields.number("initializer_range", 0.02),
        "rms_norm_eps": fields.number("rms_norm_eps", 1e-6),
        "tie_word_embeddings": fields.switch("tie_word_embeddings", False),
        "attention_bias": fields.switch("attention_bias", False),
        "attention_dropout": 0.0,
        "use_cache": False,
        "pad_token_id": qwen3_shape.pad_token(fields, _VOCABULARY),
        "rope_parameters": _rope(fields, head_dim),
        "layer_types": _layer_types(fields, layers),
    }


def _text_fields(config: Mapping[str, Any], where: str) -> Fields:
    outer = Fields(config, where)
    qwen3_shape.refuse_changed_weights(outer)
    if config.get("text_config") is None:
        return outer
    text = outer.mapping("text_config")
    if "tie_word_embeddings" in config:
        text.setdefault("tie_word_embeddings", config["tie_word_embeddings"])
    return Fields(text, f"{where}: text_config")


def _rope(fields: Fields, head_dim: int) -> dict[str, Any]:
    """Rotary parameters; the sections for images are kept as they are: text has one position."""
    rope = fields.mapping("rope_scaling") or fields.mapping("rope_parameters")
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in ("default", "mrope"):
        fields.fail(f"rope type {kind!r} is not supported for this family; it must be default")
    theta = rope.get("rope_theta", fields.data.get("rope_theta", 10_000.0))
    share = rope.get("partial_rotary_factor", fields.data.get("partial_rotary_factor", 0.25))
    if not is_number(theta) or theta <= 0:
        fields.fail(f"rope_theta must be a positive number; found {theta!r:.60}")
    if not is_number(share) or not 0 < share <= 1 or int(head_dim * share) % 2:
        fields.fail(
            f"partial_rotary_factor must leave an even number of the {head_dim} of a head; found "
            f"{share!r:.60}"
        )
    if int(head_dim * share) < 2:
        fields.fail(f"partial_rotary_factor {share} leaves nothing of head_dim {head_dim}")
    found = {"rope_type": "default", "rope_theta": theta, "partial_rotary_factor": share}
    section = rope.get("mrope_section", [11, 11, 10])
    whole = isinstance(section, list) and len(section) == 3
    if not whole or any(isinstance(n, bool) or not isinstance(n, int) or n < 0 for n in section):
        fields.fail(f"mrope_section must be three whole numbers; found {section!r:.60}")
    return {**found, "mrope_section": section}


def _layer_types(fields: Fields, layers: int) -> list[str]:
    """Kind of each layer, as ``Qwen3_5TextConfig.__post_init__`` derives them."""
    kinds = fields.data.get("layer_types")
    if kinds is None:
        interval = fields.integer("full_attention_interval", 4)
        return [_LINEAR if (i + 1) % interval else _FULL for i in range(layers)]
    if not isinstance(kinds, list) or any(kind not in (_FULL, _LINEAR) for kind in kinds):
        fields.refuse("layer_types", kinds, f"a list of {_FULL} and {_LINEAR}")
    if len(kinds) != layers:
        fields.fail(f"layer_types names {len(kinds)} layers, num_hidden_layers says {layers}")
    return list(kinds)


def matmul_parameters(config: Mapping[str, Any]) -> dict[str, int]:
    """Return the elements of all weight matrices in one layer of each kind, convolution included.

    The attention's query projection also makes the gate of its output.
    """
    hidden = config["hidden_size"]
    queries = config["num_attention_heads"] * config["head_dim"]
    keys = config["num_key_value_heads"] * config["head_dim"]
    mlp = 3 * hidden * config["intermediate_size"]
    mixed, values = _linear_widths(config)
    value_heads = config["linear_num_value_heads"]
    linear = hidden * (mixed + 2 * values + 2 * value_heads)
    return {
        _FULL: mlp + 3 * hidden * queries + 2 * hidden * keys,
        _LINEAR: mlp + linear + mixed * config["linear_conv_kernel_dim"],
    }


def _linear_widths(config: Mapping[str, Any]) -> tuple[int, int]:
    """Width of what the convolution runs over (queries, keys, values), and of the values."""
    keys = config["linear_num_key_heads"] * config["linear_key_head_dim"]
    values = config["linear_num_value_heads"] * config["linear_value_head_dim"]
    return 2 * keys + values, values


def parameters(config: Mapping[str, Any]) -> tuple[ParameterShape, ...]:
    """Return names and shapes of the trainable parameters of a completed ``config``."""
    shared = {**qwen3_shape.mlp_parameters(config), **qwen3_shape.norm_parameters(config)}
    mixers = {
        _FULL: qwen3_shape.attention_parameters(config, gated=True),
        _LINEAR: _linear_parameters(config),
    }
    found = qwen3_shape.model_parameters(
        config, [{**shared, **mixers[kind]} for kind in config["layer_types"]]
    )
    return tuple(_inside_the_whole_model(parameter) for parameter in found)


def _inside_the_whole_model(parameter: ParameterShape) -> ParameterShape:
    """Add the name that the multimodal model's checkpoint has (``Qwen3_5Model.language_model``)."""
    text, whole = "model.", "model.language_model."
    aliases = (whole + name.removeprefix(text) for name in parameter.names if name.startswith(text))
    return dataclasses.replace(parameter, aliases=tuple(aliases))


def _linear_parameters(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden, heads = config["hidden_size"], config["linear_num_value_heads"]
    mixed, values = _linear_widths(config)
    shapes: dict[str, tuple[int, ...]] = {
        "dt_bias": (heads,),
        "A_log": (heads,),
        "conv1d.weight": (mixed, 1, config["linear_conv_kernel_dim"]),
        "norm.weight": (config["linear_value_head_dim"],),
        "out_proj.weight": (hidden, values),
        "in_proj_qkv.weight": (mixed, hidden),
        "in_proj_z.weight": (values, hidden),
        "in_proj_b.weight": (heads, hidden),
        "in_proj_a.weight": (heads, hidden),
    }
    return {f"linear_attn.{name}": shape for name, shape in shapes.items()}


def flops_per_token(
    config: Mapping[str, Any], lengths: Sequence[int], adapters: int | None = None
) -> float:
    """Return the model FLOPs of forward and backward per real token.

    Matrices and attention as in :func:`autotune.models.qwen3_shape.flops_per_token`. A gated
    delta net layer (Yang et al. 2024, "Gated Delta Networks", equation 10) does the same for
    every token, however long the sample: per value head it reads the state with the key, adds
    their outer product, and reads it with the query, each ``key_dim · value_dim`` multiplications
    and additions, forward and twice backward: ``18 · heads · key_dim · value_dim``. What the
    chunked form computes beyond that is overhead and does not count.
    """
    tokens = sum(lengths)
    if tokens == 0:
        return 0.0
    matrices = matmul_parameters(config)
    kinds = config["layer_types"]
    elements = sum(matrices[kind] for kind in kinds) + config["vocab_size"] * config["hidden_size"]
    keys = sum(qwen3_shape.attended_keys(length, None) for length in lengths) / tokens
    attention = 12 * config["num_attention_heads"] * config["head_dim"] * keys
    state = config["linear_key_head_dim"] * config["linear_value_head_dim"]
    linear = 18 * config["linear_num_value_heads"] * state
    weights = qwen3_shape.weight_flops(elements, adapters)
    return float(weights + kinds.count(_FULL) * attention + kinds.count(_LINEAR) * linear)
