"""Qwen3 without torch: its configuration checked, its parameters and FLOPs counted.

Fields, defaults and what follows from them: ``transformers/models/qwen3/configuration_qwen3.py``
and ``modeling_qwen3.py`` (5.24; 5.17 has the same).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from autotune.models.checkpoint import ParameterShape
from autotune.models.fields import Fields, is_number

ACTIVATIONS: Final = (
    *("silu", "swish", "gelu", "gelu_fast", "gelu_new", "gelu_python", "gelu_pytorch_tanh"),
    *("gelu_accurate", "quick_gelu", "relu", "relu2", "relu6", "leaky_relu", "mish"),
    *("sigmoid", "tanh", "linear", "hardswish"),
)
"""Of ``transformers/activations.py`` those without parameters of their own."""

MAX_LAYERS: Final = 10_000
"""Far above any model: each layer is built, listed and wrapped."""

_FULL: Final = "full_attention"
_SLIDING: Final = "sliding_attention"
_ROPE_NEEDS: Final[dict[str, tuple[str, ...]]] = {
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor",),
    "yarn": ("factor", "original_max_position_embeddings"),
    "llama3": (
        "factor",
        "original_max_position_embeddings",
        "low_freq_factor",
        "high_freq_factor",
    ),
    "longrope": ("short_factor", "long_factor", "original_max_position_embeddings"),
}
"""Rope type to the numbers it needs (``transformers/modeling_rope_utils.py``)."""


def complete(config: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the fields that decide training, checked, with every default filled in.

    What only matters to generation, to saving or to the library's version is left out, so that
    two folders with the same model are the same work. Dropout is 0 and the cache is off.

    Raises:
        InputError: A field is wrong or does not fit another one.
    """
    fields = Fields(config, where)
    refuse_changed_weights(fields)
    heads, kv_heads = attention_heads(fields, 32, 32)
    width = head_dim(fields, 128)
    layers = fields.integer("num_hidden_layers", 32, high=MAX_LAYERS)
    positions = fields.integer("max_position_embeddings", 32768)
    return {
        "model_type": "qwen3",
        "vocab_size": fields.integer("vocab_size", 151936, low=2),
        "hidden_size": fields.integer("hidden_size", 4096),
        "intermediate_size": fields.integer("intermediate_size", 22016),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": width,
        "hidden_act": fields.text("hidden_act", "silu", ACTIVATIONS),
        "max_position_embeddings": positions,
        "initializer_range": fields.number("initializer_range", 0.02),
        "rms_norm_eps": fields.number("rms_norm_eps", 1e-6),
        "tie_word_embeddings": fields.switch("tie_word_embeddings", False),
        "attention_bias": fields.switch("attention_bias", False),
        "attention_dropout": 0.0,
        "use_cache": False,
        "pad_token_id": pad_token(fields),
        "rope_parameters": rope(fields, positions, width),
        **_attention_kinds(fields, layers),
    }


def refuse_changed_weights(fields: Fields) -> None:
    """Refuse configurations whose weights are not plain numbers."""
    for key in ("quantization_config", "per_layer_config"):
        if fields.data.get(key) is not None:
            fields.fail(
                f"{key} is set, and only plain full-precision models can be trained here",
                hint="give the folder of the model that it was made from",
            )


def attention_heads(fields: Fields, heads_default: int, kv_default: int) -> tuple[int, int]:
    """Return the number of query heads and of key and value heads."""
    heads = fields.integer("num_attention_heads", heads_default)
    # An explicit null means "as many as heads"; an absent key means the library's default.
    null_kv = "num_key_value_heads" in fields.data and fields.data["num_key_value_heads"] is None
    kv_heads = heads if null_kv else fields.integer("num_key_value_heads", kv_default)
    if heads % kv_heads:
        fields.fail(f"num_attention_heads {heads} is no multiple of num_key_value_heads {kv_heads}")
    return heads, kv_heads


def head_dim(fields: Fields, default: int) -> int:
    """Return the width of one head."""
    width = fields.integer("head_dim", default, low=2)
    if width % 2:
        fields.refuse("head_dim", width, "even, since positions rotate pairs of numbers")
    return width


def pad_token(fields: Fields, vocab_default: int = 151936) -> int | None:
    """The row of the embedding that stays untrained, if any."""
    value = fields.data.get("pad_token_id")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        fields.refuse("pad_token_id", value, "a whole number or null")
    vocab_size = fields.integer("vocab_size", vocab_default, low=2)
    if not -vocab_size <= value < vocab_size:
        fields.refuse("pad_token_id", value, f"below vocab_size {vocab_size}")
    return int(value)


def _attention_kinds(fields: Fields, layers: int) -> dict[str, Any]:
    """Sliding window and kind of each layer, as ``Qwen3Config.__post_init__`` derives them."""
    window: int | None = None
    if (
        fields.switch("use_sliding_window", False)
        and fields.data.get("sliding_window", 0) is not None
    ):
        window = fields.integer("sliding_window", 4096)
    full_layers = fields.integer("max_window_layers", 28, low=0)
    kinds = fields.data.get("layer_types")
    if kinds is None:
        kinds = [_FULL if window is None or i < full_layers else _SLIDING for i in range(layers)]
    if not isinstance(kinds, list) or any(kind not in (_FULL, _SLIDING) for kind in kinds):
        fields.refuse("layer_types", kinds, f"a list of {_FULL} and {_SLIDING}")
    if len(kinds) != layers:
        fields.fail(f"layer_types names {len(kinds)} layers, num_hidden_layers says {layers}")
    if _SLIDING in kinds and window is None:
        fields.fail(f"layer_types has {_SLIDING}, but no sliding window is in use")
    return {
        "use_sliding_window": window is not None,
        "sliding_window": window,
        "max_window_layers": full_layers,
        "layer_types": list(kinds),
    }


def rope(fields: Fields, positions: int, width: int) -> dict[str, Any]:
    """Rotary parameters in the library's present form, from it or from the two older ones."""
    found = fields.mapping("rope_scaling") or fields.mapping("rope_parameters")
    old_type = found.pop("type", "default")
    kind = found.setdefault("rope_type", old_type)
    if not isinstance(kind, str) or kind not in _ROPE_NEEDS:
        fields.fail(f"rope type {kind!r} is not one of {', '.join(_ROPE_NEEDS)}")
    partial = found.pop("partial_rotary_factor", fields.data.get("partial_rotary_factor"))
    if partial not in (None, 1):
        fields.fail("partial_rotary_factor must be 1: the library's Qwen3 rotates whole heads")
    theta = found.get("rope_theta")
    found["rope_theta"] = fields.number("rope_theta", 10_000.0) if theta is None else theta
    if kind in ("yarn", "llama3", "longrope"):
        own = fields.data.get("original_max_position_embeddings")
        found.setdefault("original_max_position_embeddings", own or positions)
    lists = ("short_factor", "long_factor")
    for name in (*_ROPE_NEEDS[kind], "rope_theta"):
        value = found.get(name)
        if name in lists:
            good = isinstance(value, list) and len(value) == width // 2
            good = good and all(is_number(item) and item > 0 for item in value or ())
            expected = f"a list of {width // 2} positive numbers"
        else:
            good = is_number(value) and value > 0  # type: ignore[operator]  # a number
            expected = "a positive number"
        if not good:
            fields.fail(f"rope type {kind} needs {name} as {expected}; found {value!r:.60}")
    return found


def matmul_parameters(config: Mapping[str, Any]) -> tuple[int, int]:
    """Return the elements of all weight matrices in one layer, and in the output projection."""
    hidden = config["hidden_size"]
    queries = config["num_attention_heads"] * config["head_dim"]
    keys = config["num_key_value_heads"] * config["head_dim"]
    attention = 2 * hidden * queries + 2 * hidden * keys
    mlp = 3 * hidden * config["intermediate_size"]
    return attention + mlp, config["vocab_size"] * hidden


def parameters(config: Mapping[str, Any]) -> tuple[ParameterShape, ...]:
    """Return names and shapes of the trainable parameters of a completed ``config``."""
    layer = {**attention_parameters(config), **mlp_parameters(config), **norm_parameters(config)}
    return model_parameters(config, [layer] * config["num_hidden_layers"])


def attention_parameters(
    config: Mapping[str, Any], *, gated: bool = False
) -> dict[str, tuple[int, ...]]:
    """Return one attention layer's parameters; ``gated``: queries bring their output's gate."""
    hidden, head_dim = config["hidden_size"], config["head_dim"]
    queries = config["num_attention_heads"] * head_dim
    keys = config["num_key_value_heads"] * head_dim
    matrices = {
        "self_attn.q_proj": (2 * queries if gated else queries, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, queries),
    }
    found: dict[str, tuple[int, ...]] = {f"{n}.weight": shape for n, shape in matrices.items()}
    found |= {f"self_attn.{name}.weight": (head_dim,) for name in ("q_norm", "k_norm")}
    if config["attention_bias"]:
        found |= {f"{name}.bias": shape[:1] for name, shape in matrices.items()}
    return found


def mlp_parameters(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return one dense layer's matrices."""
    hidden, ffn = config["hidden_size"], config["intermediate_size"]
    return {
        "mlp.gate_proj.weight": (ffn, hidden),
        "mlp.up_proj.weight": (ffn, hidden),
        "mlp.down_proj.weight": (hidden, ffn),
    }


def norm_parameters(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the two norms of the residual stream in one layer."""
    names = ("input_layernorm", "post_attention_layernorm")
    return {f"{name}.weight": (config["hidden_size"],) for name in names}


def model_parameters(
    config: Mapping[str, Any], layers: Sequence[Mapping[str, tuple[int, ...]]]
) -> tuple[ParameterShape, ...]:
    """Return the whole model's parameters from those of each layer."""
    hidden = config["hidden_size"]
    embedding = (config["vocab_size"], hidden)
    inputs, outputs = "model.embed_tokens.weight", "lm_head.weight"
    names = [(inputs, outputs)] if config["tie_word_embeddings"] else [(inputs,), (outputs,)]
    found = [ParameterShape(names=each, shape=embedding) for each in names]
    found += [
        ParameterShape(names=(f"model.layers.{index}.{name}",), shape=shape)
        for index, layer in enumerate(layers)
        for name, shape in layer.items()
    ]
    return (*found, ParameterShape(names=("model.norm.weight",), shape=(hidden,)))


def attended_keys(length: int, window: int | None) -> int:
    """Return how many keys the queries of one sample see in all, under the causal mask.

    Query ``t`` (from 1) sees ``min(t, window)`` keys.
    """
    if window is None or window >= length:
        return length * (length + 1) // 2
    return window * (window + 1) // 2 + (length - window) * window


def weight_flops(elements: int, adapters: int | None) -> int:
    """Return the FLOPs of forward and backward per token for its products with weights.

    A product is a multiplication and an addition an element. There is one forward, and backward
    one for the gradient of its input and one for that of its weight; a frozen weight needs no
    gradient, so it has two products in place of three.

    Args:
        elements: Matrix elements that a token is multiplied with, without those of adapters.
        adapters: Elements of the adapters, beside which ``elements`` are frozen; ``None``: there
            are none, and all weights are trained.
    """
    return 6 * elements if adapters is None else 4 * elements + 6 * adapters


def flops_per_token(
    config: Mapping[str, Any], lengths: Sequence[int], adapters: int | None = None
) -> float:
    """Return the model FLOPs of forward and backward per real token.

    The formula of PaLM (Chowdhery et al. 2022, appendix B, "model FLOPs utilization"), with
    attention counted as it is masked: per token ``6 · P`` for the ``P`` matrix elements that it
    is multiplied with (:func:`weight_flops`; the output projection counts, the input embedding is
    a look-up and does not), and per layer ``12 · heads · head_dim`` for each key that its query
    sees (scores and weighted sum, forward and twice backward). Padding and recomputation are
    overhead and do not count.

    Args:
        config: A completed configuration.
        lengths: Sample lengths in tokens.
        adapters: As in :func:`weight_flops`. That nothing below the first adapter needs the
            gradient of its input is not taken off.
    """
    layer, head = matmul_parameters(config)
    tokens = sum(lengths)
    if tokens == 0:
        return 0.0
    per_key = 12 * config["num_attention_heads"] * config["head_dim"]
    num_sliding = sum(kind == _SLIDING for kind in config["layer_types"])
    num_full = config["num_hidden_layers"] - num_sliding
    keys = num_full * sum(attended_keys(length, None) for length in lengths)
    if num_sliding:
        window = config["sliding_window"]
        keys += num_sliding * sum(attended_keys(length, window) for length in lengths)
    weights = weight_flops(config["num_hidden_layers"] * layer + head, adapters)
    flops: float = weights + per_key * keys / tokens
    return flops
