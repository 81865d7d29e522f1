"""Adapters beside frozen weights: no target's file can say them, the training script adds them."""

from __future__ import annotations

from typing import Any

from autotune.backends import adapters
from autotune.contract.plan import CommandWorkload, Plan


def rendered(plan: Plan) -> dict[str, Any]:
    """What the measured engine was told; empty where all weights are trained, or of a command."""
    return {} if isinstance(plan.workload, CommandWorkload) else adapters.rendered(plan)


def notes(plan: Plan) -> tuple[str, ...]:
    """Return what the training script has to do to train what was measured."""
    measured = rendered(plan)
    if not measured:
        return ()
    said = ", ".join(f"{name}={value!r}" for name, value in measured["lora"].items())
    found = [
        f"adapters are trained and all other weights frozen, in {measured['frozen_dtype']}: "
        f"get_peft_model(model, LoraConfig({said})) of peft gives the measured ones"
    ]
    if measured["quantized"]:
        found.append(
            "the frozen linear layers are stored in four bits: load the model with transformers' "
            "BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type='nf4', "
            "bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=torch."
            f"{'bfloat16' if measured['frozen_dtype'] == 'bf16' else 'float32'})"
        )
    return tuple(found)
