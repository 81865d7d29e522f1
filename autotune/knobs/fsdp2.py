"""Knobs of FSDP2 (``torch.distributed.fsdp.fully_shard``).

Source: ``torch/distributed/fsdp/_fully_shard/`` of torch 2.13: ``_fully_shard.py`` (arguments and
setters), ``_fsdp_init.py`` (legal values of ``reshard_after_forward``), ``_fsdp_state.py`` and
``_fsdp_param_group.py`` (prefetching, reduction). A test compares the defaults with the signature.
Setters that not every supported torch has are looked up in the installed one.
"""

from __future__ import annotations

from typing import Final

from autotune.knobs.knob import Knob, Need

_FOLDER: Final = "torch/distributed/fsdp/_fully_shard/"

_UNITS: Final[tuple[Knob, ...]] = (
    Knob(
        owner="fsdp2",
        name="reshard_after_forward",
        type="int",
        # torch's None means true for every unit but the root, which it never reshards. The knob
        # speaks of the units below the root; the root keeps torch's rule.
        default=True,
        low=2,
        choices=(True, False),
        unit="processes",
        numerics="neutral",
        read_back="live",
        read_from="each unit's FSDPParamGroup.post_forward_mesh_info",
        source=_FOLDER + "_fully_shard.py",
        meaning="Frees gathered weights after forward; false keeps them (memory for one gather). "
        "A number reshards to groups of so many processes and must divide them.",
    ),
    Knob(
        owner="fsdp2",
        name="layers_per_unit",
        type="int",
        default=1,
        low=1,
        unit="layers",
        numerics="neutral",
        read_back="live",
        read_from="modules of each FSDPParamGroup",
        source=_FOLDER + "_fully_shard.py",
        meaning="Decoder layers gathered together; more means fewer, larger messages and memory.",
    ),
    Knob(
        owner="fsdp2",
        name="wrap_embeddings",
        type="bool",
        default=False,
        numerics="neutral",
        read_back="live",
        read_from="modules of each FSDPParamGroup",
        source=_FOLDER + "_fully_shard.py",
        meaning="Embedding and head become units of their own, so they are freed when not used.",
    ),
    Knob(
        owner="fsdp2",
        name="forward_prefetch",
        type="int",
        default=0,
        low=0,
        unit="units",
        numerics="neutral",
        read_back="live",
        read_from="each unit's FSDPState._states_to_forward_prefetch",
        source=_FOLDER + "_fsdp_state.py",
        meaning="Units gathered ahead in forward; 0 leaves it to torch. More costs memory.",
    ),
    Knob(
        owner="fsdp2",
        name="backward_prefetch",
        type="int",
        default=1,
        low=0,
        unit="units",
        numerics="neutral",
        # FSDPParamGroup.unshard returns at once when the unit was never resharded.
        dead_when="reshard_after_forward == false",
        read_back="live",
        read_from="each unit's FSDPState._states_to_backward_prefetch",
        source=_FOLDER + "_fsdp_param_group.py",
        meaning="Units gathered ahead in backward; 1 is torch's own rule. More costs memory.",
    ),
)

_BACKWARD: Final[tuple[Knob, ...]] = (
    Knob(
        owner="fsdp2",
        name="keep_last_unit",
        type="bool",
        default=False,
        numerics="neutral",
        dead_when="reshard_after_forward == false",
        read_back="live",
        read_from="the last unit's FSDPParamGroup.post_forward_mesh_info",
        source=_FOLDER + "_fully_shard.py",
        meaning="The last unit keeps its gathered weights after forward, for backward begins with "
        "them: one gather less for the memory of one unit.",
        later=True,
    ),
    Knob(
        owner="fsdp2",
        name="unshard_in_backward",
        type="bool",
        default=True,
        numerics="neutral",
        # Without a unit of its own the embedding lies with weights that backward needs.
        dead_when="wrap_embeddings == false",
        read_back="live",
        read_from="the embedding's FSDPParamGroup.unshard_in_backward",
        source=_FOLDER + "_fully_shard.py",
        meaning="Off: the input embedding is not gathered for backward, which does not read it.",
        needs=(Need(kind="torch_method", name="set_unshard_in_backward"),),
        later=True,
    ),
    Knob(
        owner="fsdp2",
        name="reshard_after_backward",
        type="bool",
        default=True,
        numerics="neutral",
        dead_when="micro_steps == 1",
        read_back="live",
        read_from="FSDPParamGroup.reshard_after_backward, set for a micro-step before the last",
        source=_FOLDER + "_fully_shard.py",
        meaning="Off: gathered weights stay until an iteration's last micro-step, so that forward "
        "need not gather them again; memory for all weights at once.",
        later=True,
    ),
    Knob(
        owner="fsdp2",
        name="gradient_sync",
        type="text",
        default="last",
        choices=("last", "each", "scatter"),
        numerics="order",
        dead_when="micro_steps == 1",
        read_back="live",
        read_from="FSDPParamGroup.reduce_grads and all_reduce_grads, set for a micro-step before "
        "the last",
        source=_FOLDER + "_fully_shard.py",
        meaning="last: gradients are held whole and reduced once an iteration; each: reduced after "
        "every micro-step, and held in parts; scatter: with replicate, scattered after every one "
        "and summed over the copies once.",
        later=True,
    ),
)

_COMMUNICATION: Final[tuple[Knob, ...]] = (
    Knob(
        owner="fsdp2",
        name="replicate",
        type="int",
        default=1,
        low=1,
        unit="copies",
        numerics="order",
        read_back="live",
        read_from="each FSDPParamGroup's mesh_info",
        source=_FOLDER + "_fully_shard.py",
        meaning="Hybrid sharding: so many copies of the weights, each sharded over the rest of the "
        "processes, which it must divide. Gathers cross fewer processes; more memory.",
        later=True,
    ),
    Knob(
        owner="fsdp2",
        name="force_sum_reduction",
        type="bool",
        default=False,
        numerics="order",
        read_back="live",
        read_from="FSDPParamGroup.force_sum_reduction_for_comms",
        source=_FOLDER + "_fully_shard.py",
        meaning="Reduces by sums and divides apart, which NCCL's zero-copy transfers need.",
        needs=(Need(kind="torch_method", name="set_force_sum_reduction_for_comms"),),
        later=True,
    ),
    Knob(
        owner="fsdp2",
        name="allocate_from_process_group",
        type="bool",
        default=False,
        numerics="order",
        dead_when="device == 'cpu'",
        read_back="live",
        read_from="class of each FSDPParamGroup's _all_gather_comm and _reduce_scatter_comm",
        source=_FOLDER + "_fsdp_param_group.py",
        meaning="Buffers of gathers and reductions come from NCCL, which can then move them "
        "without a copy.",
        needs=(
            Need(kind="device"),
            Need(kind="torch_method", name="set_allocate_memory_from_process_group_for_comm"),
        ),
        later=True,
    ),
    Knob(
        owner="fsdp2",
        name="separate_reduce_scatter_group",
        type="bool",
        default=False,
        numerics="neutral",
        dead_when="device == 'cpu'",
        read_back="live",
        read_from="reduce_scatter_process_group of each FSDPParamGroup's mesh_info",
        source=_FOLDER + "_fsdp_param_group.py",
        meaning="Reductions have a communicator of their own and can run beside gathers; its "
        "buffers cost memory.",
        needs=(
            Need(kind="device"),
            Need(kind="torch_method", name="set_separate_reduce_scatter_group"),
        ),
        later=True,
    ),
    Knob(
        owner="fsdp2",
        name="reduce_scatter_input_buffers",
        type="int",
        default=1,
        low=1,
        unit="buffers",
        numerics="neutral",
        dead_when="device == 'cpu'",
        read_back="live",
        read_from="FSDPParamGroup.reduce_scatter_max_input_buffers",
        source=_FOLDER + "_fsdp_param_group.py",
        meaning="Reductions that may be under way before backward waits for the first; each costs "
        "the memory of a unit's gradients.",
        needs=(
            Need(kind="device"),
            Need(kind="torch_method", name="set_reduce_scatter_max_input_buffers"),
        ),
        later=True,
    ),
)

KNOBS: Final[tuple[Knob, ...]] = _UNITS + _BACKWARD + _COMMUNICATION

REFUSED: Final[dict[str, str]] = {
    "mp_policy": "it changes the numbers: workload.precision says it",
    "offload_policy": "offload is not offered by this version",
    "mesh": "replicate says how many copies there are",
    "symm_mem": "symmetric memory depends on multicast settings of the site, which stay as they "
    "are",
}
"""Settings that FSDP2 has and a space file may not name, with the reason."""
