"""AdamW of the engines that leave the optimizer to torch: as plain data, and made from it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from autotune.contract.plan import Plan

if TYPE_CHECKING:
    import torch


def rendered(plan: Plan) -> dict[str, Any]:
    """Return the optimizer and the clipping of a plan, each value explicit."""
    optimizer = plan.training.optimizer
    return {
        "optimizer": {
            "type": "AdamW",
            "lr": optimizer.lr,
            "betas": list(optimizer.betas),
            "eps": optimizer.eps,
            "weight_decay": optimizer.weight_decay,
            "fused": plan.topology.device == "cuda",
        },
        "gradient_clipping": optimizer.gradient_clipping,
    }


def make(
    parameters: Iterable[torch.nn.Parameter], settings: Mapping[str, Any]
) -> torch.optim.AdamW:
    """Return the optimizer over ``parameters`` that :func:`rendered` describes."""
    import torch

    options = {key: value for key, value in settings["optimizer"].items() if key != "type"}
    return torch.optim.AdamW(parameters, **{**options, "betas": tuple(options["betas"])})


def state_dtypes(optimizer: torch.optim.Optimizer) -> set[torch.dtype]:
    """Return the formats of the moments; empty before the first update."""
    return {
        moments[name].dtype
        for moments in optimizer.state.values()
        for name in ("exp_avg", "exp_avg_sq")
        if name in moments
    }
