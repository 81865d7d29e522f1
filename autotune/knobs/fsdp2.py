"""Knobs of FSDP2 (``torch.distributed.fsdp.fully_shard``).

Source: ``torch/distributed/fsdp/_fully_shard/`` of torch 2.13: ``_fully_shard.py`` (arguments),
``_fsdp_init.py`` (legal values of ``reshard_after_forward``), ``_fsdp_state.py`` and
``_fsdp_param_group.py`` (prefetching). A test compares the defaults with the signature.
"""

from __future__ import annotations

from typing import Final

from autotune.knobs.knob import Knob

_FOLDER: Final = "torch/distributed/fsdp/_fully_shard/"

KNOBS: Final[tuple[Knob, ...]] = (
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

REFUSED: Final[dict[str, str]] = {
    "mp_policy": "it changes the numbers: workload.precision says it",
    "offload_policy": "offload is not offered by this version",
    "mesh": "hybrid sharding is not offered by this version",
}
"""Settings that FSDP2 has and a space file may not name, with the reason."""
