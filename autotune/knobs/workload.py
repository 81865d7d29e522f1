"""Knobs of the workload: how equal work is cut into micro-steps. None of them changes the work."""

from __future__ import annotations

from typing import Final

from autotune.knobs.knob import Knob

KNOBS: Final[tuple[Knob, ...]] = (
    Knob(
        owner="workload",
        name="micro_batch",
        type="int",
        default=1,
        low=1,
        unit="rows",
        numerics="order",
        read_back="schedule",
        read_from="shapes of the micro-steps that ran",
        source="autotune/data/schedule.py",
        meaning="Samples per micro-step and rank; more fills the device better and costs memory.",
    ),
    Knob(
        owner="workload",
        name="max_tokens",
        type="int",
        default=None,
        low=1,
        unit="tokens",
        numerics="order",
        read_back="schedule",
        read_from="shapes of the micro-steps that ran",
        source="autotune/data/schedule.py",
        meaning="Largest micro-step in tokens, padding included; instead of micro_batch. The "
        "length of every row where batching is packed.",
    ),
    Knob(
        owner="workload",
        name="batching",
        type="text",
        default="padded",
        choices=("padded", "sorted", "packed"),
        numerics="order",
        read_back="schedule",
        read_from="shapes of the micro-steps that ran",
        source="autotune/data/schedule.py",
        meaning="padded: rows in stream order; sorted: rows of like length, so less padding; "
        "packed: several samples in one row of max_tokens, kept apart by their boundaries.",
    ),
    Knob(
        owner="workload",
        name="activation_checkpointing",
        type="text",
        default="none",
        choices=("none", "full", "selective"),
        numerics="neutral",
        read_back="live",
        read_from="gradient_checkpointing of each decoder layer, and the function it calls",
        source="transformers/modeling_utils.py; torch/utils/checkpoint.py",
        meaning="full: recomputes each layer in backward; less memory for about a third more work. "
        "selective: keeps matrix products and attention, recomputes the cheap rest.",
    ),
    Knob(
        owner="workload",
        name="checkpoint_every",
        type="int",
        default=1,
        low=1,
        unit="layers",
        numerics="neutral",
        dead_when="activation_checkpointing == 'none'",
        read_back="live",
        read_from="which decoder layers have gradient_checkpointing",
        source="transformers/modeling_utils.py",
        meaning="Of so many layers the first recomputes; more means less work and more memory.",
        later=True,
    ),
    Knob(
        owner="workload",
        name="use_reentrant",
        type="bool",
        default=False,
        numerics="neutral",
        dead_when="activation_checkpointing == 'none'",
        read_back="live",
        read_from="arguments of the function that each decoder layer calls",
        source="torch/utils/checkpoint.py",
        meaning="Recomputes by autograd inside backward, torch's older way: it works with some "
        "engines where the newer one fails, and cannot be selective.",
        later=True,
    ),
)

OF_COMMANDS: Final = ("micro_batch", "activation_checkpointing")
"""Knobs that mean the same to a program of the user's own; the others are of our own step."""

WORK: Final[dict[str, str]] = {
    "global_batch": "workload.global_batch",
    "batch_size": "workload.global_batch",
    "train_batch_size": "workload.global_batch",
    "lr": "workload.optimizer.lr",
    "learning_rate": "workload.optimizer.lr",
    "weight_decay": "workload.optimizer.weight_decay",
    "gradient_clipping": "workload.optimizer.gradient_clipping",
    "max_grad_norm": "workload.optimizer.gradient_clipping",
    "betas": "workload.optimizer.betas",
    "eps": "workload.optimizer.eps",
    "optimizer": "workload.optimizer",
    "max_length": "workload.data.max_length",
    "seq_length": "workload.data.max_length",
    "seq_len": "workload.data.max_length",
    "sequence_length": "workload.data.max_length",
    "max_seq_length": "workload.data.max_length",
    "precision": "workload.precision",
    "mixed_precision": "workload.precision",
    "dtype": "workload.precision",
    "bf16": "workload.precision",
    "fp16": "workload.precision",
    "model": "workload.model",
    "data": "workload.data",
    "finetune": "workload.finetune",
    "dropout": "the model's config.json",
}
"""What defines the work, and where the space file states it. Never a knob."""

REFUSED: Final[dict[str, str]] = {
    "gradient_accumulation_steps": "it follows from global_batch, micro_batch and the processes",
    "gradient_accumulation": "it follows from global_batch, micro_batch and the processes",
}
"""Other names that people try, with the reason why there is no such knob."""
