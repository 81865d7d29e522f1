"""DDP (``torch.nn.parallel.DistributedDataParallel``): what it is told, refuses, and what to try.

Pure and without torch; the part that runs in a rank is ``autotune.backends.ddp_engine``. Facts are
from torch 2.13 (``torch/nn/parallel/distributed.py``).

*bf16.* DDP has no mixed precision that is equal work to FSDP2's: autocast keeps norms in float32
(up to 5e-3 off in the gradient norm), and DDP's own ``mixed_precision`` accumulates in bf16. So
the engine does what FSDP2 does: float32 weights are the module's parameters, each forward computes
on one bf16 copy of them, and gradients are accumulated and reduced in float32. ``render`` says
``bf16_copy`` where this is so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from autotune.backends import adamw, adapters, recompute
from autotune.backends.base import Refusal
from autotune.contract.plan import Plan, Precision, Topology, Workload
from autotune.knobs.ddp import KNOBS

if TYPE_CHECKING:
    from autotune.backends.base import Engine, RankContext

DEFAULTS: Final[dict[str, Any]] = {knob.name: knob.default for knob in KNOBS}

PRELOAD: Final = (
    "torch",
    "torch.distributed",
    "torch.nn.parallel.distributed",
    "torch.optim",
    "transformers",
    "autotune.backends.ddp_engine",
)

_SEVERAL: Final = (
    "static_graph cannot be used with several micro-steps an iteration: torch's reducer fails "
    "where some of them are not synchronised"
)


class DdpBackend:
    """A whole copy of the model on every process; gradients are averaged in buckets."""

    name = "ddp"
    knobs = KNOBS
    preload = PRELOAD
    replicates = True
    placeholder = None

    def validate(
        self, config: Mapping[str, Any], workload: Workload, topology: Topology
    ) -> Refusal | None:
        """Return what cannot hold here, in words."""
        return (
            recompute.refused(config, workload)
            or _refused_static(config, workload, topology)
            or _refused_precision(workload.precision)
        )

    def anchors(self, workload: Workload) -> dict[str, dict[str, Any]]:
        """Torch's defaults and three opinions from experience."""
        del workload
        anchors: dict[str, dict[str, Any]] = {
            "engine_defaults": {},
            # No copy between gradients and buckets, and the memory of one of them.
            "bucket_views": {"gradient_as_bucket_view": True},
            # Few large messages: for networks with a high cost per message.
            "large_buckets": {"gradient_as_bucket_view": True, "bucket_cap_mb": 100},
            # Many small ones: the reduction starts early and hides behind backward.
            "small_buckets": {"gradient_as_bucket_view": True, "bucket_cap_mb": 5},
        }
        return {
            name: {f"ddp.{key}": value for key, value in {**DEFAULTS, **changes}.items()}
            for name, changes in anchors.items()
        }

    def auto(self, workload: Workload) -> dict[str, Any]:
        """Nothing: torch has no such word."""
        del workload
        return {}

    def render(self, plan: Plan) -> dict[str, Any]:
        """Return all that the engine is told, as plain data (DDP has no file of its own).

        ``bucket_cap_mb`` is null where it is torch's own rule (25 MiB, the first bucket 1 MiB).
        """
        precision = plan.training.precision
        values = _values(plan.config)
        if values["bucket_cap_mb"] == DEFAULTS["bucket_cap_mb"]:
            values["bucket_cap_mb"] = None
        return {
            "ddp": {**values, "find_unused_parameters": False, "broadcast_buffers": True},
            "precision": {
                "compute_dtype": precision.compute,
                "bf16_copy": precision.compute != precision.master,
                "accumulate_dtype": precision.accumulate,
                "reduce_dtype": precision.reduce,
            },
            "master_dtype": precision.master,
            **adapters.rendered(plan),
            **adamw.rendered(plan),
        }

    def build(self, plan: Plan, rank: RankContext) -> Engine:
        from autotune.backends.ddp_engine import build

        return build(self.render(plan), plan, rank)


def _values(config: Mapping[str, Any]) -> dict[str, Any]:
    return {key: config.get(f"ddp.{key}", default) for key, default in DEFAULTS.items()}


def _refused_static(
    config: Mapping[str, Any], workload: Workload, topology: Topology
) -> Refusal | None:
    """A static graph needs each backward to be synchronised: one micro-step an iteration.

    How many micro-steps a cut by tokens makes is known only once it is made, so there it is
    refused in any case.
    """
    if not _values(config)["static_graph"]:
        return None
    rows = config.get("workload.micro_batch")
    if rows is None:
        reason = (
            "static_graph cannot be used with max_tokens, which cuts batches unlike one another"
        )
        return Refusal(about="ddp.static_graph", reason=reason)
    steps = workload.global_batch // (rows * topology.processes)
    if steps > 1:
        whole = workload.global_batch // topology.processes
        reason = f"{_SEVERAL}; micro_batch {rows} makes {steps}, and {whole} would make 1"
        return Refusal(about="ddp.static_graph", reason=reason)
    return None


def _refused_precision(precision: Precision) -> Refusal | None:
    master, reason = precision.master, None
    if (precision.accumulate, precision.reduce) != (master, master):
        reason = (
            "DDP accumulates and reduces gradients in the format of the weights: master "
            f"{master} with accumulate {precision.accumulate} and reduce {precision.reduce} "
            "cannot be"
        )
    elif precision.compute == "fp32" and master != "fp32":
        reason = "bf16 master weights under fp32 compute would round every update twice"
    return None if reason is None else Refusal(about="workload.precision", reason=reason)
