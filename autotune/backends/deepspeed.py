"""DeepSpeed ZeRO: what its JSON says, and which settings to try first.

Pure and without DeepSpeed: the coordinator and the exporters import this module. The part that
runs in a rank is ``autotune.backends.deepspeed_engine``. Facts are from DeepSpeed 0.19.8.

Two forms of one configuration:

* :meth:`DeepSpeedBackend.render` is the form for a trainer: it carries the accumulation that the
  schedule makes, and its three batch sizes fit together.
* :func:`as_run` derives from it what the measured engine gets: accumulation 1, because the
  worker itself says which micro-step is the last one (``set_gradient_accumulation_boundary``)
  and scales the loss. Everything else is the same object, so the two cannot diverge.

Under offload the optimizer stays torch's AdamW, which steps on the CPU: DeepSpeed's own one has to
be compiled on first use, and ``zero_force_ds_cpu_optimizer`` speaks only of optimizers that the
caller made (``runtime/engine.py``, ``_configure_optimizer``).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from autotune.backends import adamw, deepspeed_refusals
from autotune.backends.base import IncompatibleConfigError, Refusal
from autotune.contract.command import DEEPSPEED_JSON
from autotune.contract.plan import CommandWorkload, Plan, Topology, Workload
from autotune.knobs import deepspeed as table
from autotune.knobs import zero3
from autotune.models.family import family_of
from autotune.models.hidden_size import hidden_size

if TYPE_CHECKING:
    from autotune.backends.base import Engine, RankContext

NEVER_PRINT: Final = 2**31 - 1
"""``steps_per_print``: the engine's progress lines would cost a host synchronisation."""

OFFLOADS: Final = ("offload_optimizer", "offload_param")
"""Knobs that are sections of the JSON, together with their ``NAME_pin_memory``."""

_NO_KNOBS: Final = ("stage", "leaf_module")

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
    "deepspeed.runtime.zero.stage_1_and_2",
    "deepspeed.runtime.bf16_optimizer",
    "deepspeed.runtime.superoffload.superoffload_stage3",
    "deepspeed.utils.pin_memory",
    "deepspeed.comm.mori",
    "torch._subclasses.schema_check_mode",
    "autotune.backends.deepspeed_engine",
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


def stated(zero: Mapping[str, Any]) -> dict[str, Any]:
    """Return the bare knob names and values that a rendered ``zero_optimization`` states."""
    found = {key: value for key, value in zero.items() if key not in (*OFFLOADS, *_NO_KNOBS)}
    found["zero_stage"] = zero["stage"]
    for key in OFFLOADS:
        if key in zero:
            found[key] = zero[key]["device"]
            found[f"{key}_pin_memory"] = zero[key]["pin_memory"]
    return found


class DeepSpeedBackend:
    """DeepSpeed ZeRO; its stage is a knob."""

    name = "deepspeed"
    knobs = table.KNOBS
    preload = PRELOAD
    replicates = False
    placeholder = DEEPSPEED_JSON

    def validate(
        self, config: Mapping[str, Any], workload: Workload, topology: Topology
    ) -> Refusal | None:
        """See :func:`autotune.backends.deepspeed_refusals.refused`."""
        return deepspeed_refusals.refused(self.name, self.stage(config), config, workload, topology)

    def stage(self, config: Mapping[str, Any]) -> int:
        """Return the ZeRO stage of a configuration."""
        return int(config.get(f"{self.name}.zero_stage", 3))

    def anchors(self, workload: Workload) -> dict[str, dict[str, Any]]:
        """Raw defaults of each stage, Hugging Face's ``auto`` rule, opinions from experience."""
        hidden, _ = hidden_size(workload.model.config)
        return {
            name: {f"{self.name}.{key}": value for key, value in values.items()}
            for name, values in self._known(hidden).items()
        }

    def _known(self, hidden: int) -> dict[str, dict[str, Any]]:
        first, *others = [
            (name, {"zero_stage": 3, **values}) for name, values in _anchors(hidden).items()
        ]
        return dict((first, *_anchors_below_3(hidden).items(), *others))

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
        rendered: dict[str, Any] = {
            **batch_sizes(plan),
            **_optimizer(plan),
            **_precision(plan),
            "zero_optimization": {**self._zero_section(plan.config), **self._leaves(plan)},
            "steps_per_print": NEVER_PRINT,
            "wall_clock_breakdown": False,
        }
        if self.compiles(plan.config):
            rendered["compile"] = {"deepcompile": True}
        _merge_unverified(rendered, self.unverified(plan), path="")
        return rendered

    def compiles(self, config: Mapping[str, Any]) -> bool:
        """Whether the engine compiles the model (DeepCompile)."""
        return self.stage(config) == 3 and bool(config.get(f"{self.name}.deepcompile"))

    def _leaves(self, plan: Plan) -> dict[str, Any]:
        """Modules that stage 3 gathers as a whole: experts, whose order changes from step to step.

        The engine declares them itself, before it sets its hooks (``utils/z3_leaf_module.py``).
        """
        if isinstance(plan.workload, CommandWorkload) or self.stage(plan.config) != 3:
            return {}
        classes = family_of(plan.workload.model.family).leaf_classes
        return {"leaf_module": {"classes": list(classes)}} if classes else {}

    def _zero_section(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings that the engine reads at this stage."""
        stage = self.stage(config)
        prefix = f"{self.name}."
        own = {
            name.removeprefix(prefix): value
            for name, value in sorted(config.items())
            if name.startswith(prefix) and value is not None
        }
        offloaded = stage < 3 and own.get("offload_optimizer", "none") != "none"
        zero: dict[str, Any] = {"stage": stage}
        for key, value in own.items():
            if stage not in table.stages_of(key) or key in ("zero_stage", "deepcompile"):
                continue
            if key.removesuffix("_pin_memory") in OFFLOADS:
                if key in OFFLOADS and value != "none":
                    pinned = own.get(f"{key}_pin_memory", True)
                    zero[key] = {"device": value, "pin_memory": pinned}
            # Offload needs contiguous gradients below stage 3, whatever is asked for.
            elif key != "contiguous_gradients" or not offloaded:
                zero[key] = value
        return zero

    @staticmethod
    def unverified(plan: Plan) -> dict[str, Any]:
        """Return the keys that are passed through unknown, as they go into the JSON."""
        return dict(plan.unverified.get("deepspeed") or {})

    def build(self, plan: Plan, rank: RankContext) -> Engine:
        from autotune.backends.deepspeed_engine import build

        return build(as_run(self.render(plan)), plan, rank)

    def load_extension(self, name: str) -> str:
        from autotune.backends.deepspeed_extensions import load

        return load(name)


class Zero3Backend(DeepSpeedBackend):
    """DeepSpeed ZeRO stage 3: the same engine, without the choice."""

    name = "zero3"
    knobs = zero3.KNOBS

    def _known(self, hidden: int) -> dict[str, dict[str, Any]]:
        return _anchors(hidden)


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
        **adamw.arguments(plan),
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


def _anchors_below_3(hidden: int) -> dict[str, dict[str, Any]]:
    """The defaults of stages 2 and 1, and what is most often changed at stage 2.

    ``hf_auto``'s rule for the reduce bucket holds at every stage.
    """
    defaults: dict[str, Any] = {
        "reduce_bucket_size": 500_000_000,
        "reduce_scatter": True,
        "contiguous_gradients": True,
        "overlap_comm": False,
        "use_multi_rank_bucket_allreduce": True,
        "round_robin_gradients": False,
    }
    small = {"reduce_bucket_size": _hf_auto(hidden)["reduce_bucket_size"]}
    return {
        "stage_2": {"zero_stage": 2, **defaults},
        "stage_1": {"zero_stage": 1, **defaults},
        "stage_2_overlap": {"zero_stage": 2, **defaults, "overlap_comm": True},
        "stage_2_hf_auto": {"zero_stage": 2, **defaults, **small},
    }


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
    """Settings of stage 3 by anchor; what is not named stays at the engine's default."""
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
