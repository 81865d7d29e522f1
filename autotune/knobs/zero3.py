"""Knobs of DeepSpeed ZeRO stage 3: those that ``backend: zero3`` has.

``autotune.knobs.deepspeed`` makes the table of all stages from this one.

Defaults and bounds are those of ``DeepSpeedZeroConfig`` (``deepspeed/runtime/zero/config.py``,
0.19.8); a test compares them with the installed class. Where a setting is read back, and when it
is dead, comes from ``stage3.py``, ``parameter_offload.py`` and ``partition_parameters.py`` of the
same folder.
"""

from __future__ import annotations

import sys
from typing import Final

from autotune.knobs.knob import Knob, Need

_CONFIG: Final = "deepspeed/runtime/zero/config.py"
_QUANTIZER: Final = (Need(kind="device"), Need(kind="compiler", name="QuantizerBuilder"))
_DEEPCOMPILE: Final = (Need(kind="device"), Need(kind="compiler", name="DeepCompileBuilder"))
"""What DeepSpeed compiles at first use (``op_builder/quantizer.py``, ``op_builder/dc.py``)."""

_FETCH: Final = (
    Knob(
        owner="zero3",
        name="stage3_prefetch_bucket_size",
        type="int",
        default=50_000_000,
        low=0,
        unit="elements",
        numerics="neutral",
        # deepspeed/runtime/engine.py sets it to 1 itself in this case.
        dead_when="allgather_sequential == true",
        read_back="live",
        read_from="optimizer.parameter_offload param coordinator: __prefetch_bucket_sz",
        source=_CONFIG,
        meaning="Parameters fetched ahead of use; more hides latency and costs memory. 0 is off.",
        auto="9 · hidden_size² ÷ 10",
    ),
    Knob(
        owner="zero3",
        name="stage3_param_persistence_threshold",
        type="int",
        default=100_000,
        low=0,
        unit="elements",
        numerics="neutral",
        read_back="live",
        read_from="optimizer.parameter_offload.param_numel_persistence_threshold",
        source=_CONFIG,
        meaning="Smaller parameters stay whole on every rank; more saves messages, costs memory.",
        auto="10 · hidden_size",
    ),
    Knob(
        owner="zero3",
        name="stage3_model_persistence_threshold",
        type="int",
        default=sys.maxsize,
        low=0,
        unit="elements",
        numerics="neutral",
        # deepspeed/runtime/zero/parameter_offload.py, mark_persistent_parameters: no parameter
        # persists at a threshold of 0, so a limit on their sum limits nothing.
        dead_when="stage3_param_persistence_threshold == 0",
        read_back="live",
        read_from="optimizer.parameter_offload.model_persistence_threshold",
        source=_CONFIG,
        meaning="Upper bound on the sum of all parameters that stay whole.",
    ),
    Knob(
        owner="zero3",
        name="stage3_max_live_parameters",
        type="int",
        default=1_000_000_000,
        low=0,
        unit="elements",
        numerics="neutral",
        read_back="live",
        read_from="optimizer.parameter_offload param coordinator: __max_n_available_params",
        source=_CONFIG,
        meaning="Gathered parameters held per rank before release; more costs memory.",
    ),
    Knob(
        owner="zero3",
        name="stage3_max_reuse_distance",
        type="int",
        default=1_000_000_000,
        low=0,
        unit="elements",
        numerics="neutral",
        read_back="live",
        read_from="optimizer.parameter_offload param coordinator: __max_reuse_dist_in_numel",
        source=_CONFIG,
        meaning="A parameter needed again within this distance is kept; more costs memory.",
    ),
    Knob(
        owner="zero3",
        name="stage3_module_granularity_threshold",
        type="int",
        default=0,
        low=0,
        unit="elements",
        numerics="neutral",
        read_back="parsed",
        read_from="engine.zero_module_granularity_threshold()",
        source=_CONFIG,
        meaning="Modules with fewer parameters per descendant are fetched as one; 0 is off.",
    ),
    Knob(
        owner="zero3",
        name="allgather_sequential",
        type="bool",
        default=False,
        numerics="neutral",
        read_back="live",
        read_from="zero.Init.allgather_sequential",
        source=_CONFIG,
        meaning="Gathers parameters one by one without a bucket: less memory, more messages.",
    ),
    Knob(
        owner="zero3",
        name="stage3_use_all_reduce_for_fetch_params",
        type="bool",
        default=False,
        numerics="neutral",
        # deepspeed/runtime/zero/partition_parameters.py: only the bucketed path looks at it.
        dead_when="allgather_sequential == true",
        read_back="live",
        read_from="zero.Init.use_all_reduce_for_fetch_params",
        source=_CONFIG,
        meaning="Fetches by all-reduce of zero-filled buffers: less host work, twice the traffic.",
    ),
    Knob(
        owner="zero3",
        name="memory_efficient_linear",
        type="bool",
        default=True,
        numerics="neutral",
        read_back="effect",
        read_from="which function torch.nn.functional.linear is",
        source=_CONFIG,
        meaning="A linear function that saves no gathered weight; off relies on autograd's own.",
    ),
)

_HIERARCHY: Final = (
    Knob(
        owner="zero3",
        name="zero_hpz_partition_size",
        type="int",
        default=1,
        low=1,
        unit="processes",
        # Its history has wrong gradients: the numerics gate decides.
        numerics="order",
        read_back="live",
        read_from="zero.Init.num_ranks_in_param_group, where it has a group",
        source=_CONFIG,
        meaning="A second copy of the weights in groups of so many processes, from which backward "
        "gathers (ZeRO++); it must divide them. Fewer messages between groups, more memory.",
        later=True,
    ),
    Knob(
        owner="zero3",
        name="zero_quantized_weights",
        type="bool",
        default=False,
        numerics="rounding",
        read_back="live",
        read_from="zero.Init.quantized_weights",
        source=_CONFIG,
        meaning="Weights cross processes as 8-bit numbers (ZeRO++): half the traffic, rounded each "
        "time.",
        needs=_QUANTIZER,
        later=True,
    ),
    Knob(
        owner="zero3",
        name="zero_quantized_gradients",
        type="bool",
        default=False,
        numerics="rounding",
        read_back="live",
        read_from="optimizer.all2all_process_group",
        source="deepspeed/runtime/zero/stage3.py",
        meaning="Between nodes gradients go as 4-bit and 8-bit numbers (ZeRO++): a quarter of the "
        "traffic, rounded each time. On one node it changes nothing and is refused.",
        needs=_QUANTIZER,
        later=True,
    ),
    Knob(
        owner="zero3",
        name="deepcompile",
        type="bool",
        default=False,
        numerics="order",
        dead_when="device == 'cpu'",
        read_back="live",
        read_from="engine.is_deepcompile_active()",
        source="deepspeed/compile/config.py",
        meaning="The whole model by torch.compile, with gathers and reductions placed in its graph "
        "(DeepCompile); its first steps take minutes.",
        needs=_DEEPCOMPILE,
        later=True,
    ),
)

_REDUCE: Final = (
    Knob(
        owner="zero3",
        name="sub_group_size",
        type="int",
        default=1_000_000_000,
        low=0,
        unit="elements",
        numerics="neutral",
        read_back="live",
        read_from="optimizer.sub_group_size",
        source=_CONFIG,
        meaning="Parameters per optimizer tile; smaller bounds the step's memory, costs launches.",
    ),
    Knob(
        owner="zero3",
        name="reduce_bucket_size",
        type="int",
        default=500_000_000,
        low=1,
        unit="elements",
        numerics="order",
        read_back="live",
        read_from="optimizer.reduce_bucket_size",
        source=_CONFIG,
        meaning="Gradients reduced at a time; stage 3 allocates one buffer of this size a dtype.",
        auto="hidden_size²",
    ),
    Knob(
        owner="zero3",
        name="reduce_scatter",
        type="bool",
        default=True,
        numerics="order",
        read_back="live",
        read_from="optimizer.reduce_scatter",
        source=_CONFIG,
        meaning="Averages gradients by reduce-scatter; off uses all-reduce.",
    ),
    Knob(
        owner="zero3",
        name="contiguous_gradients",
        type="bool",
        default=True,
        numerics="order",
        read_back="live",
        read_from="optimizer.contiguous_gradients",
        source=_CONFIG,
        meaning="Copies gradients into one buffer as they appear: less fragmentation, one copy.",
    ),
    Knob(
        owner="zero3",
        name="overlap_comm",
        type="bool",
        # The class says None; its validator makes that true at stage 3.
        default=True,
        numerics="order",
        # There are no streams on the CPU: both settings run the same code.
        dead_when="device == 'cpu'",
        read_back="parsed",
        read_from="engine.zero_overlap_comm()",
        source=_CONFIG,
        meaning="Reduction and all-gather on streams of their own; off makes prefetch useless.",
    ),
)


_OFFLOAD: Final = "deepspeed/runtime/zero/offload_config.py"


def _offload(name: str, what: str, *, read_from: str, meaning: str) -> tuple[Knob, Knob]:
    """Return the knobs of one section of the engine's configuration: device and pinning.

    ``none`` is the engine without the section, so it leaves no trace in a configuration's key:
    studies from before these knobs keep theirs.
    """
    device = Knob(
        owner="zero3",
        name=name,
        type="text",
        default="none",
        choices=("none", "cpu"),
        numerics="rounding",
        dead_when=f"{name} == 'none'",
        read_back="live",
        read_from=read_from,
        source=_OFFLOAD,
        meaning=meaning,
    )
    pinned = Knob(
        owner="zero3",
        name=f"{name}_pin_memory",
        type="bool",
        default=True,
        numerics="neutral",
        # accelerator/cpu_accelerator.py: there is nothing to pin for without a device.
        dead_when=f"{name} == 'none' or device == 'cpu'",
        read_back="live",
        read_from=f"{read_from}_pin_memory",
        source=_OFFLOAD,
        meaning=f"Page-locked host memory for {what}: faster copies; it cannot be paged out.",
    )
    return device, pinned


_OFFLOADED: Final = (
    *_offload(
        "offload_optimizer",
        "master weights and Adam's moments",
        read_from="optimizer.offload_optimizer",
        meaning="Master weights and Adam's moments in host memory; torch's AdamW steps there.",
    ),
    *_offload(
        "offload_param",
        "the weights",
        read_from="optimizer.offload_param",
        meaning="Each process's part of the weights in host memory, copied over when gathered.",
    ),
)


def _dead(name: str, kind: str, default: object, meaning: str) -> Knob:
    return Knob(
        owner="zero3",
        name=name,
        type="int" if kind == "int" else "bool",
        default=default,
        low=0 if kind == "int" else None,
        unit="elements" if kind == "int" else "",
        numerics="neutral",
        dead_when="true",
        read_back="parsed",
        read_from=f"engine.config zero_config.{name}",
        source=_CONFIG,
        meaning=meaning,
    )


_OF_OTHER_STAGES: Final = (
    _dead("allgather_partitions", "bool", True, "Stages 1 and 2 only."),
    _dead("allgather_bucket_size", "int", 500_000_000, "Stages 1 and 2 only."),
    _dead("round_robin_gradients", "bool", False, "Stages 1 and 2 only."),
    _dead("ignore_unused_parameters", "bool", True, "Stage 2 only."),
    _dead("use_multi_rank_bucket_allreduce", "bool", True, "Stages 1 and 2 only."),
)

KNOBS: Final[tuple[Knob, ...]] = _FETCH + _HIERARCHY + _REDUCE + _OFFLOADED + _OF_OTHER_STAGES

REFUSED: Final[dict[str, str]] = {
    "zero_quantized_nontrainable_weights": "DeepSpeed 0.19 keeps frozen weights so in float16 only",
    "leaf_module": "the model's family says which modules are gathered as a whole",
    "stage": "the backend zero3 is stage 3, and under the backend deepspeed zero_stage says it",
    "compute_grad_norm": "without the norm no trial can be checked",
    "zenflow": "it delays updates, which changes the numbers, and compiles an extension",
    "hybrid_engine": "it compiles kernels for generating text, which no trial does",
}
"""Settings that DeepSpeed has and a space file may not name, with the reason."""

RESERVED_KEYS: Final[dict[str, str]] = {
    "train_batch_size": "the workload's global_batch says it",
    "train_micro_batch_size_per_gpu": "the knob micro_batch says it",
    "gradient_accumulation_steps": "global_batch, micro_batch and the processes say it",
    "gradient_clipping": "workload.optimizer.gradient_clipping says it",
    "optimizer": "workload.optimizer says it",
    "scheduler": "a schedule of learning rates changes the work",
    "fp16": "workload.precision says it",
    "bf16": "workload.precision says it",
    "amp": "workload.precision says it",
    "torch_autocast": "workload.precision says it",
    "data_types": "workload.precision says it",
    "communication_data_type": "workload.precision says it",
    "prescale_gradients": "it changes how gradients are scaled",
    "gradient_predivide_factor": "it changes how gradients are scaled",
}
"""Keys of the engine's configuration that ``unverified`` may not set, with the reason."""
