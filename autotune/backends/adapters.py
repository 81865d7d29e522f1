"""Adapters beside frozen weights, as plain data: what engines are told and exports write."""

from __future__ import annotations

from typing import Any

from autotune.backends.base import Refusal
from autotune.contract.plan import Plan, Workload
from autotune.models import lora


def rendered(plan: Plan) -> dict[str, Any]:
    """Return peft's arguments, and the format in which frozen weights are held.

    Empty where all weights are trained. No optimizer has a copy of a frozen weight, so it is held
    in the format that it is computed in.
    """
    adapters = plan.training.lora
    if adapters is None:
        return {}
    return {
        "frozen_dtype": plan.training.precision.compute,
        "quantized": plan.training.finetune == "qlora",
        "lora": lora.peft_arguments(adapters),
    }


def refused_quantized(workload: Workload) -> Refusal | None:
    """What an engine that splits weights over processes says to weights of four bits."""
    if workload.finetune != "qlora":
        return None
    return Refusal(
        about="workload.finetune",
        reason="qlora runs under ddp only: weights of four bits are packed, with scales beside "
        "them, and are not split over processes here",
    )
