"""Which implementation computes each layer type: knobs of the model, whatever the backend.

All choices of a knob compute the same function, in another order of summation. What a choice
needs, whether it can run here, and how it is bound is in ``autotune.models.kernels``; a test
compares the two tables.
"""

from __future__ import annotations

from typing import Final

from autotune.knobs.knob import Knob

OWNER: Final = "kernel"

COMPILED_VARIANTS: Final = 64
"""Compilations of one layer's code that a trial, and what is exported of it, may need."""

_LIGER: Final = "liger_kernel/transformers/monkey_patch.py"

KNOBS: Final[tuple[Knob, ...]] = (
    Knob(
        owner=OWNER,
        name="attention",
        type="text",
        default="sdpa",
        choices=("sdpa", "flex_attention", "flash_attention_2", "hub_flash_attention_2", "varlen"),
        numerics="order",
        dead_when="attention_layers == 0",
        read_back="live",
        read_from="the function that each attention layer looks up by its config",
        source="transformers/modeling_utils.py (AttentionInterface); torch/nn/attention/varlen.py",
        meaning="sdpa: torch's fused attention, with a dense mask where samples are packed; "
        "flex_attention: a compiled block mask; flash_attention_2: the flash_attn package, or as "
        "the Hugging Face hub has it built (hub_); "
        "varlen: torch's own flash attention with sample boundaries.",
    ),
    Knob(
        owner=OWNER,
        name="linear_attention",
        type="text",
        default=None,
        default_where=(("fla_binds == true", "fla"), ("true", "torch")),
        choices=("torch", "fla"),
        numerics="order",
        dead_when="linear_attention_layers == 0",
        read_back="live",
        read_from="the function that each gated delta net layer calls",
        source="transformers/models/qwen3_5/modeling_qwen3_5.py; fla/ops/gated_delta_rule/chunk.py",
        meaning="Gated delta nets. torch: the library's chunked form, many small kernels; fla: "
        "flash-linear-attention, which samples can be packed for. Its first steps compile.",
    ),
    Knob(
        owner=OWNER,
        name="convolution",
        type="text",
        default=None,
        default_where=(("causal_conv1d_binds == true", "causal_conv1d"), ("true", "torch")),
        choices=("torch", "causal_conv1d", "fla"),
        numerics="order",
        dead_when="linear_attention_layers == 0",
        read_back="live",
        read_from="the function that each gated delta net layer calls before its recurrence",
        source="transformers/models/qwen3_5/modeling_qwen3_5.py; fla/modules/causal_conv1d/ops.py",
        meaning="The gated delta nets' short convolution. torch: samples cannot be packed; "
        "causal_conv1d: that package; fla: flash-linear-attention's Triton kernel.",
    ),
    Knob(
        owner=OWNER,
        name="norm",
        type="text",
        default="torch",
        choices=("torch", "liger"),
        numerics="order",
        read_back="live",
        read_from="forward of each RMS norm",
        source=_LIGER,
        meaning="torch: the library's own RMS norm, several kernels; liger: one Triton kernel.",
    ),
    Knob(
        owner=OWNER,
        name="rope",
        type="text",
        default="torch",
        choices=("torch", "liger"),
        numerics="order",
        dead_when="attention_layers == 0",
        read_back="live",
        read_from="apply_rotary_pos_emb of the file that defines the attention layers",
        source=_LIGER,
        meaning="Rotation of queries and keys: torch, or liger's Triton kernel.",
    ),
    Knob(
        owner=OWNER,
        name="mlp",
        type="text",
        default="torch",
        choices=("torch", "liger"),
        numerics="order",
        read_back="live",
        read_from="forward of each MLP, of the experts where the model has some",
        source=_LIGER,
        meaning="torch: gate, product and projections one by one; liger: SwiGLU in one Triton "
        "kernel that keeps less for backward; fused experts in a mixture.",
    ),
    Knob(
        owner=OWNER,
        name="loss",
        type="text",
        default="torch",
        choices=("torch", "chunked", "liger"),
        numerics="order",
        read_back="live",
        read_from="the function that the output head calls",
        source="autotune/models/kernels/loss.py; liger_kernel/ops/fused_linear_cross_entropy.py",
        meaning="torch: all logits at once; chunked: rows at a time and again in backward, so the "
        "logits never lie whole in memory; liger: gradients in forward, chunk by chunk.",
    ),
    Knob(
        owner=OWNER,
        name="compile",
        type="text",
        default="none",
        choices=("none", "layer"),
        numerics="order",
        read_back="live",
        read_from="forward of each decoder layer",
        source="torch/_dynamo/eval_frame.py",
        meaning="layer: each decoder layer by torch.compile; its first steps take long, and shapes "
        "that vary are compiled as such.",
    ),
    Knob(
        owner=OWNER,
        name="adamw",
        type="text",
        default=None,
        choices=("fused", "foreach", "loop"),
        # What autotune has always made, and torch's own choice without a device.
        default_where=(("device == 'cuda'", "fused"), ("device == 'cpu'", "loop")),
        numerics="order",
        read_back="live",
        read_from="fused and foreach of the optimizer's groups",
        source="torch/optim/adamw.py",
        meaning="fused: one kernel updates many weights; foreach: one operation after the other on "
        "many weights, with a copy of them; loop: weight by weight.",
        refused=(
            (
                "deepspeed",
                "DeepSpeed's FusedAdam and CPUAdam are compiled at first use, for minutes, and "
                "round in another way: torch's AdamW does the step under every engine",
            ),
        ),
        later=True,
    ),
)

REFUSED: Final[dict[str, str]] = {
    "attn_implementation": "kernel.attention says it",
    "use_liger_kernel": "kernel.norm, kernel.rope, kernel.mlp and kernel.loss say it each",
    "torch_compile": "kernel.compile says it",
}
"""Other names that people try, with the reason why there is no such knob."""
