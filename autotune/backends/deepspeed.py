"""DeepSpeed ZeRO-3: what its JSON says, what it refuses, which settings to try first.

Pure and without DeepSpeed: the coordinator and the exporters import this module. The part that
runs in a rank is ``autotune.backends.zero3_engine``. Facts are from DeepSpeed 0.19.8.

Two forms of one configuration:

* :meth:`Zero3Backend.render` is the form for a trainer: it carries the accumulation that the
  schedule makes, and its three batch sizes fit together.
* :func:`as_run` derives from it what the measured engine gets: accumulation 1, because the
  worker itself says which micro-step is the last one (``set_gradient_accumulation_boundary``)
  and scales the loss. Everything else is the same object, so the two cannot diverge.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from autotune.backends.base import IncompatibleConfigError, Refusal
from autotune.contract.command import DEEPSPEED_JSON
from autotune.contract.plan import Plan, Precision, Topology, Workload
from autotune.knobs.zero3 import KNOBS
from autotune.models.hidden_size import hidden_size

if TYPE_CHECKING:
    from autotune.backends.base import Engine, RankContext

NEVER_PRINT: Final = 2**31 - 1
"""``steps_per_print``: the engine's progress lines would cost a host synchronisation."""

DEAD_AT_STAGE_3: Final = frozenset(
    {
        "allgather_partitions",
        "allgather_bucket_size",
        "round_robin_gradients",
        "ignore_unused_parameters",
        "use_multi_rank_bucket_allreduce",
    }
)
"""Keys of stages 1 and 2: accepted by the parser, read by nothing at stage 3."""

PRELOAD: Final = (
    "torch",
    "torch.distributed",
    "torch.optim",
    "torch._dynamo",
    "torch._inductor.compile_fx",
    "torch._dynamo.repro.after_aot",
    "functorch.compile",
    "transformers",
    "deepspeed",
    "deepspeed.module_inject.auto_ep_layer",
    "deepspeed.module_inject.auto_ep_folding",
    "deepspeed.runtime.zero.muon.muon_optimizer",
    "deepspeed.runtime.zero.stage3",
    "deepspeed.runtime.superoffload.superoffload_stage3",
    "deepspeed.utils.pin_memory",
    "deepspeed.comm.mori",
    "torch._subclasses.schema_check_mode",
    "autotune.backends.zero3_engine",
)
"""What building and running an engine imports late, found by comparing ``sys.modules``."""


def as_run(rendered: Mapping[str, Any]) -> dict[str, Any]:
    """Return the form of ``rendered`` that the measured engine gets: accumulation 1."""
    running = copy.deepcopy(dict(rendered))
    running["train_batch_size"] //= running["gradient_accumulation_steps"]
    running["gradient_accumulation_steps"] = 1
    return running


def batch_sizes(plan: Plan) -> dict[str, int]:
    """Return the three batch sizes for a trainer; their product rule always holds.

    With ``max_tokens`` no such JSON exists: a trainer takes one row at a time instead, and the
    accumulation is rounded up to whole samples per rank, so only where the global batch divides
    by the processes does the trainer see the same number of samples per update.
    """
    processes = plan.topology.processes
    rows = plan.config.get("workload.micro_batch") or 1
    steps = max(1, math.ceil(plan.workload.global_batch / (rows * processes)))
    return {
        "train_batch_size": rows * steps * processes,
        "train_micro_batch_size_per_gpu": rows,
        "gradient_accumulation_steps": steps,
    }


class Zero3Backend:
    """DeepSpeed ZeRO stage 3."""

    name = "zero3"
    knobs = KNOBS
    preload = PRELOAD
    replicates = False
    placeholder = DEEPSPEED_JSON

    def validate(
        self, config: Mapping[str, Any], workload: Workload, topology: Topology
    ) -> Refusal | None:
        """Return what the engine refuses, in words (``runtime/zero/config.py``, ``stage3.py``)."""
        threshold = config.get("zero3.stage3_module_granularity_threshold") or 0
        if threshold > 0 and topology.device == "cpu":
            return Refusal(
                about="zero3.stage3_module_granularity_threshold",
                reason="stage3_module_granularity_threshold above 0 needs a device: without one "
                "the engine fails while it builds",
            )
        return _refused_precision(workload.precision)

    def anchors(self, workload: Workload) -> dict[str, dict[str, Any]]:
        """Raw defaults, Hugging Face's ``auto`` rule, and three opinions from experience."""
        hidden, _ = hidden_size(workload.model.config)
        return {name: _full(values) for name, values in _anchors(hidden).items()}

    def auto(self, workload: Workload) -> dict[str, Any]:
        """Hugging Face's rule, from the hidden size."""
        hidden, _ = hidden_size(workload.model.config)
        return {f"{self.name}.{key}": value for key, value in _hf_auto(hidden).items()}

    def render(self, plan: Plan) -> dict[str, Any]:
        """Return the whole DeepSpeed JSON, each value explicit, for a trainer.

        For a command that states no optimizer or precision, those keys are left to its program.

        Raises:
            IncompatibleConfigError: An unverified key says what the plan itself decides.
        """
        zero = {"stage": 3}
        for full_name, value in sorted(plan.config.items()):
            owner, _, key = full_name.partition(".")
            if owner == self.name and value is not None and key not in DEAD_AT_STAGE_3:
                zero[key] = value
        rendered: dict[str, Any] = {
            **batch_sizes(plan),
            **_optimizer(plan),
            **_precision(plan),
            "zero_optimization": zero,
            "steps_per_print": NEVER_PRINT,
            "wall_clock_breakdown": False,
        }
        _merge_unverified(rendered, self.unverified(plan), path="")
        return rendered

    @staticmethod
    def unverified(plan: Plan) -> dict[str, Any]:
        """Return the keys that are passed through unknown, as they go into the JSON."""
        merged: dict[str, Any] = {}
        for engine in ("deepspeed", "zero3"):
            section = plan.unverified.get(engine)
            if isinstance(section, Mapping):
                merged.update(section)
        return merged

    def build(self, plan: Plan, rank: RankContext) -> Engine:
        from autotune.backends.zero3_engine import build

        return build(as_run(self.render(plan)), plan, rank)


def _optimizer(plan: Plan) -> dict[str, Any]:
    optimizer = plan.workload.optimizer
    if optimizer is None:
        return {}
    adam: dict[str, Any] = {
        "lr": optimizer.lr,
        "betas": list(optimizer.betas),
        "eps": optimizer.eps,
        "weight_decay": optimizer.weight_decay,
        # torch's own AdamW: DeepSpeed's fused one has to be compiled on first use.
        "torch_adam": True,
        "fused": plan.topology.device == "cuda",
    }
    return {
        "gradient_clipping": optimizer.gradient_clipping,
        "optimizer": {"type": "AdamW", "params": adam},
    }


def _precision(plan: Plan) -> dict[str, Any]:
    precision = plan.workload.precision
    if precision is None:
        return {}
    return {
        "bf16": {"enabled": precision.compute == "bf16"},
        "fp16": {"enabled": False},
        "data_types": {"grad_accum_dtype": precision.accumulate},
        "communication_data_type": precision.reduce,
    }


def _merge_unverified(target: dict[str, Any], extra: Mapping[str, Any], *, path: str) -> None:
    for key, value in extra.items():
        place = f"{path}{key}"
        if key not in target:
            target[key] = copy.deepcopy(value)
        elif isinstance(target[key], dict) and isinstance(value, Mapping):
            _merge_unverified(target[key], value, path=f"{place}.")
        elif target[key] != value:
            raise IncompatibleConfigError(
                f"unverified key {place} = {value!r} contradicts the plan, which says "
                f"{target[key]!r}; set it as a knob or in the workload"
            )


def _refused_precision(precision: Precision) -> Refusal | None:
    reason = None
    if precision.master != "fp32":
        reason = "ZeRO-3 keeps bf16 master weights only with CPU offload (stage3.py); use fp32"
    elif precision.compute == "fp32" and precision.accumulate != "fp32":
        reason = "ZeRO-3 with fp32 weights accumulates gradients in fp32"
    return None if reason is None else Refusal(about="workload.precision", reason=reason)


def _full(values: Mapping[str, Any]) -> dict[str, Any]:
    return {f"zero3.{key}": value for key, value in values.items()}


def _hf_auto(hidden: int) -> dict[str, int]:
    """What ``auto`` means to transformers.

    ``integrations/deepspeed.py``, ``trainer_config_finalize``: h², 0.9 h² as an integer, 10 h.
    """
    square = hidden * hidden
    return {
        "reduce_bucket_size": square,
        "stage3_prefetch_bucket_size": square * 9 // 10,
        "stage3_param_persistence_threshold": 10 * hidden,
    }


def _anchors(hidden: int) -> dict[str, dict[str, Any]]:
    """Settings by anchor; what is not named stays at the engine's default."""
    defaults: dict[str, Any] = {
        "stage3_prefetch_bucket_size": 50_000_000,
        "stage3_param_persistence_threshold": 100_000,
        "stage3_max_live_parameters": 1_000_000_000,
        "stage3_max_reuse_distance": 1_000_000_000,
        "sub_group_size": 1_000_000_000,
        "reduce_bucket_size": 500_000_000,
        "reduce_scatter": True,
        "contiguous_gradients": True,
        "overlap_comm": True,
    }
    return {
        "engine_defaults": defaults,
        "hf_auto": {**defaults, **_hf_auto(hidden)},
        # Every parameter its own all-gather, none kept whole: wins where latency is cheap
        # (1.38× on two CPU processes over the default threshold of 1e5).
        "partition_all": {**defaults, "stage3_param_persistence_threshold": 0},
        # Keep norms, biases and small projections whole, so that fewer collectives are issued:
        # wins where each collective has a high fixed cost.
        "persist_small": {**defaults, "stage3_param_persistence_threshold": 1_000_000},
        # The settings that a cluster vendor's case study ended with (Llama 4 Scout, 32 H100).
        "vendor_case": {
            **defaults,
            "overlap_comm": False,
            "contiguous_gradients": False,
            "sub_group_size": 14_714_186,
            "reduce_bucket_size": 1,
            "stage3_prefetch_bucket_size": 473_451,
            "stage3_param_persistence_threshold": 4_304_746,
            "stage3_max_live_parameters": 6_914_199_685,
            "stage3_max_reuse_distance": 3_283_215_516,
        },
    }
