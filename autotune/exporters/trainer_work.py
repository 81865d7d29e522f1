"""What was measured and is the user's trainer to do, whatever the format of the file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from autotune.contract.plan import Plan

_PADDED: Final = (None, "padded")


def batching(plan: Plan) -> tuple[str, ...]:
    """Say which rows the data loader has to make, where padded ones in order are not it."""
    how = plan.config.get("workload.batching")
    if how == "packed":
        return (
            f"batching: packed into rows of {plan.config.get('workload.max_tokens')} tokens is "
            "done by your trainer's collator, which must pass position ids that restart at each "
            "sample, and no mask",
        )
    if how not in _PADDED:
        return (f"batching: {how} is done by your trainer's sampler, not by this file",)
    return ()


def checkpointing(plan: Plan) -> tuple[str, ...]:
    """Say how activation checkpointing is switched on, where the file does not do it."""
    how = plan.config.get("workload.activation_checkpointing")
    if how in (None, "none"):
        return ()
    return (
        f"activation checkpointing ({how}) is switched on in the model "
        "(gradient_checkpointing_enable, use_reentrant=False), not by this file",
    )


def training_arguments(rendered: Mapping[str, Any]) -> dict[str, Any]:
    """Return what ``TrainingArguments`` must say beside a DeepSpeed JSON.

    transformers compares these with the file and stops at a difference
    (``integrations/deepspeed.py``, ``trainer_config_process``).
    """
    adam = rendered["optimizer"]["params"]
    return {
        "per_device_train_batch_size": rendered["train_micro_batch_size_per_gpu"],
        "gradient_accumulation_steps": rendered["gradient_accumulation_steps"],
        "learning_rate": adam["lr"],
        "weight_decay": adam["weight_decay"],
        "adam_beta1": adam["betas"][0],
        "adam_beta2": adam["betas"][1],
        "adam_epsilon": adam["eps"],
        "max_grad_norm": rendered["gradient_clipping"],
        "bf16": rendered["bf16"]["enabled"],
    }
