"""AdamW of the engines that leave the optimizer to torch: as plain data, and made from it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from autotune.contract.plan import Plan

if TYPE_CHECKING:
    import torch

KNOB: Final = "kernel.adamw"


def arguments(plan: Plan) -> dict[str, bool]:
    """Return what tells torch how to compute the update (``torch/optim/adamw.py``).

    Without the knob it is fused on a device and torch's own choice without one.
    """
    chosen = plan.config.get(KNOB)
    if chosen is None:
        return {"fused": plan.topology.device == "cuda"}
    if chosen == "fused":
        return {"fused": True}
    return {"fused": False, "foreach": chosen == "foreach"}


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
            **arguments(plan),
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


def implementation(optimizer: torch.optim.Optimizer) -> str:
    """How the live optimizer computes its update; several ways are joined by commas."""
    found = set()
    for group in optimizer.param_groups:
        if group.get("fused"):
            found.add("fused")
        elif group.get("foreach") is None and not group.get("fused"):
            found.add("foreach" if _is_foreach_by_default(group["params"]) else "loop")
        else:
            found.add("foreach" if group["foreach"] else "loop")
    return ", ".join(sorted(found))


def _is_foreach_by_default(parameters: Iterable[torch.Tensor]) -> bool:
    from torch.optim.optimizer import _default_to_fused_or_foreach

    tensors = list(parameters)
    _, foreach = _default_to_fused_or_foreach(tensors, differentiable=False, use_fused=False)
    return bool(foreach)


def updates(optimizer: torch.optim.Optimizer) -> int | None:
    """How many updates it has counted itself; ``None`` if it may be one that does not count."""
    import torch

    counts = [int(held["step"]) for held in optimizer.state.values() if "step" in held]
    if not counts:  # torch's own make their state in the first update
        return 0 if isinstance(optimizer, torch.optim.Adam | torch.optim.AdamW) else None
    return max(counts)


def state_dtypes(optimizer: torch.optim.Optimizer) -> set[torch.dtype]:
    """Return the formats of the moments; empty before the first update."""
    return {
        moments[name].dtype
        for moments in optimizer.state.values()
        for name in ("exp_avg", "exp_avg_sq")
        if name in moments
    }
