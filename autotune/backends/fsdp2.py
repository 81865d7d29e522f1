"""FSDP2 (``torch.distributed.fsdp.fully_shard``): what it is told, what it refuses, what to try.

Pure and without torch; the part that runs in a rank is ``autotune.backends.fsdp2_engine``. Facts
are from torch 2.13 (``torch/distributed/fsdp/_fully_shard``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from autotune.backends import adamw, adapters, recompute
from autotune.backends.base import Refusal
from autotune.contract.plan import Plan, Precision, Topology, Workload
from autotune.knobs.fsdp2 import KNOBS

if TYPE_CHECKING:
    from autotune.backends.base import Engine, RankContext

DEFAULTS: Final[dict[str, Any]] = {knob.name: knob.default for knob in KNOBS}
"""What ``fully_shard`` on every decoder layer and on the root does when told nothing else."""

PRELOAD: Final = (
    "torch",
    "torch.distributed",
    "torch.distributed.fsdp",
    "torch.distributed.tensor",
    "torch.optim",
    "transformers",
    "autotune.backends.fsdp2_engine",
)


def num_units(workload: Workload, *, layers_per_unit: int, wrap_embeddings: bool) -> int:
    """Return the number of units below the root."""
    layers = int(workload.model.config["num_hidden_layers"])
    return math.ceil(layers / layers_per_unit) + (2 if wrap_embeddings else 0)


class Fsdp2Backend:
    """Fully sharded data parallel with per-parameter sharding."""

    name = "fsdp2"
    knobs = KNOBS
    preload = PRELOAD
    replicates = False
    placeholder = None

    def validate(
        self, config: Mapping[str, Any], workload: Workload, topology: Topology
    ) -> Refusal | None:
        """Return what cannot hold here, in words."""
        values = _values(config)
        layers = int(workload.model.config["num_hidden_layers"])
        if values["layers_per_unit"] > layers:
            return Refusal(
                about="fsdp2.layers_per_unit",
                reason=f"layers_per_unit {values['layers_per_unit']} is more than the model's "
                f"{layers} layers",
            )
        if values["wrap_embeddings"] and workload.model.config.get("tie_word_embeddings"):
            return Refusal(
                about="fsdp2.wrap_embeddings",
                reason="wrap_embeddings needs an output head of its own: this model ties it to "
                "the input embedding, and one weight cannot belong to two units",
            )
        return (
            recompute.refused(config, workload)
            or _refused_replication(values, topology.processes)
            or _refused_reshard(
                values["reshard_after_forward"], topology.processes // values["replicate"]
            )
            or _refused_last_unit(values, workload)
            or _refused_prefetch(values, workload)
            or _refused_precision(workload.precision)
            or _refused_sums(config, workload, topology)
            or adapters.refused_quantized(workload)
        )

    def anchors(self, workload: Workload) -> dict[str, dict[str, Any]]:
        """Torch's defaults and four opinions from experience."""
        layers = int(workload.model.config["num_hidden_layers"])
        tied = bool(workload.model.config.get("tie_word_embeddings"))
        anchors: dict[str, dict[str, Any]] = {
            "engine_defaults": {},
            # No second all-gather in backward: fastest where the weights fit (H200: 0.636 to
            # 0.620 s/it at 4.4 B).
            "keep_unsharded": {"reshard_after_forward": False},
        }
        if layers >= 2:
            # Half the collectives, each twice the size: for small layers.
            anchors["pairs"] = {"layers_per_unit": 2}
        if layers >= 3:
            # Two units ahead in both directions: for collectives slower than a layer's compute.
            anchors["deep_prefetch"] = {"forward_prefetch": 2, "backward_prefetch": 2}
        if not tied:
            # Vocabulary-sized weights in units of their own: the root's gather is not one lump.
            anchors["embedding_units"] = {"wrap_embeddings": True}
        return {
            name: {f"fsdp2.{key}": value for key, value in {**DEFAULTS, **changes}.items()}
            for name, changes in anchors.items()
        }

    def auto(self, workload: Workload) -> dict[str, Any]:
        """Nothing: torch has no such word."""
        del workload
        return {}

    def render(self, plan: Plan) -> dict[str, Any]:
        """Return all that the engine is told, as plain data (FSDP2 has no file of its own)."""
        precision = plan.training.precision
        return {
            "fully_shard": _values(plan.config),
            "mixed_precision": {
                "param_dtype": precision.compute,
                "reduce_dtype": precision.reduce,
                "cast_forward_inputs": True,
            },
            "master_dtype": precision.master,
            **adapters.rendered(plan),
            **adamw.rendered(plan),
        }

    def build(self, plan: Plan, rank: RankContext) -> Engine:
        from autotune.backends.fsdp2_engine import build

        return build(self.render(plan), plan, rank)


def _values(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return each knob's value; one that is dead in this configuration stays at its default."""
    return {key: config.get(f"fsdp2.{key}", default) for key, default in DEFAULTS.items()}


def _refused_replication(values: Mapping[str, Any], processes: int) -> Refusal | None:
    copies = values["replicate"]
    if processes % copies:
        return Refusal(
            about="fsdp2.replicate",
            reason=f"replicate {copies} does not divide the {processes} processes",
        )
    if values["gradient_sync"] == "scatter" and copies == 1:
        return Refusal(
            about="fsdp2.gradient_sync",
            reason="gradient_sync scatter needs copies to sum over: with replicate 1 it is each",
        )
    return None


def _refused_last_unit(values: Mapping[str, Any], workload: Workload) -> Refusal | None:
    units = num_units(
        workload,
        layers_per_unit=values["layers_per_unit"],
        wrap_embeddings=values["wrap_embeddings"],
    )
    if values["keep_last_unit"] and units < 2:
        return Refusal(
            about="fsdp2.keep_last_unit",
            reason="keep_last_unit with a single unit is the same as reshard_after_forward false",
        )
    return None


def _refused_reshard(value: bool | int, processes: int) -> Refusal | None:
    if isinstance(value, bool):
        return None
    if value in (1, processes):
        plain = "false" if value == 1 else "true"
        return Refusal(
            about="fsdp2.reshard_after_forward",
            reason=f"reshard_after_forward {value} on {processes} processes is the same as {plain}",
        )
    if value < 1 or processes % value:
        return Refusal(
            about="fsdp2.reshard_after_forward",
            reason=f"reshard_after_forward {value} does not divide the {processes} processes "
            "(_fsdp_init.py, _get_post_forward_mesh_info)",
        )
    return None


def _refused_prefetch(values: Mapping[str, Any], workload: Workload) -> Refusal | None:
    units = num_units(
        workload,
        layers_per_unit=values["layers_per_unit"],
        wrap_embeddings=values["wrap_embeddings"],
    )
    for key in ("forward_prefetch", "backward_prefetch"):
        if values[key] > max(1, units - 1):
            return Refusal(
                about=f"fsdp2.{key}",
                reason=f"{key} {values[key]} looks further ahead than the {units} units reach",
            )
    return None


def _refused_precision(precision: Precision) -> Refusal | None:
    if precision.accumulate != precision.reduce:
        return Refusal(
            about="workload.precision",
            reason="FSDP2 sums the gradients of several micro-steps in the format in which it "
            f"reduces them: accumulate {precision.accumulate} with reduce {precision.reduce} "
            "cannot be",
        )
    if precision.compute == "fp32" and precision.master != "fp32":
        return Refusal(
            about="workload.precision",
            reason="bf16 master weights under fp32 compute would round every update twice",
        )
    return None


def _refused_sums(
    config: Mapping[str, Any], workload: Workload, topology: Topology
) -> Refusal | None:
    """What is reduced after every micro-step is summed in the format of the weights.

    ``_fsdp_collectives.py``, ``foreach_reduce``: it is cast before it is added to the gradient. How
    many micro-steps a cut by tokens makes is known only once it is made.
    """
    precision, rows = workload.precision, config.get("workload.micro_batch")
    if _values(config)["gradient_sync"] != "each" or precision.accumulate == precision.master:
        return None
    if rows is not None and workload.global_batch <= rows * topology.processes:
        return None
    return Refusal(
        about="fsdp2.gradient_sync",
        reason="gradient_sync each sums the gradients of several micro-steps in the format of the "
        f"weights, {precision.master}, and the workload says accumulate {precision.accumulate}",
    )
