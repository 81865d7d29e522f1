"""The knobs of activation checkpointing for every engine: what they mean, what cannot be.

Pure and without torch; ``autotune.models.checkpointing`` does it in a rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from autotune.backends.base import Refusal
from autotune.contract.plan import Plan, Workload

if TYPE_CHECKING:
    from autotune.models.checkpointing import Checkpointing

MODE: Final = "workload.activation_checkpointing"
EVERY: Final = "workload.checkpoint_every"
REENTRANT: Final = "workload.use_reentrant"


def rendered(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a configuration says of it, each value explicit."""
    mode = config.get(MODE) or "none"
    if mode == "none":
        return {"mode": "none"}
    return {
        "mode": mode,
        "every": config.get(EVERY) or 1,
        "use_reentrant": bool(config.get(REENTRANT)),
    }


def wanted(plan: Plan) -> Checkpointing:
    """Return what a rank shall switch on."""
    from autotune.models.checkpointing import Checkpointing

    said = rendered(plan.config)
    return Checkpointing(
        mode=said["mode"],
        every=said.get("every", 1),
        reentrant=said.get("use_reentrant", False),
    )


def refused(config: Mapping[str, Any], workload: Workload) -> Refusal | None:
    """Return what cannot hold, in words."""
    said = rendered(config)
    if said["mode"] == "none":
        return None
    if said["mode"] == "selective" and said["use_reentrant"]:
        return Refusal(
            about=REENTRANT,
            reason="use_reentrant true cannot be selective: torch's policies belong to the "
            "checkpointing that is not reentrant",
        )
    layers = int(workload.model.config["num_hidden_layers"])
    if said["every"] > layers:
        return Refusal(
            about=EVERY,
            reason=f"checkpoint_every {said['every']} is more than the model's {layers} layers",
        )
    return None
