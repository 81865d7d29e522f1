"""Knobs of DDP (``torch.nn.parallel.DistributedDataParallel``).

Source: ``torch/nn/parallel/distributed.py`` of torch 2.13 (arguments, ``_BucketCapacityConfig``)
and the reducer behind it (``torch/csrc/distributed/c10d/reducer.cpp``). A test compares the
defaults with the signature.
"""

from __future__ import annotations

from typing import Final

from autotune.knobs.knob import Knob

_SOURCE: Final = "torch/nn/parallel/distributed.py"

KNOBS: Final[tuple[Knob, ...]] = (
    Knob(
        owner="ddp",
        name="bucket_cap_mb",
        type="int",
        # torch's None means 25 MiB with a first bucket of 1 MiB; a number holds for all buckets.
        default=25,
        low=1,
        unit="MiB",
        # Where a bucket ends decides how the ranks' sums are split.
        numerics="order",
        read_back="live",
        read_from="the reducer's logged bucket_cap_bytes",
        source=_SOURCE,
        meaning="Gradients reduced by one message; small ones start earlier, large ones are fewer. "
        "25 is torch's own rule, whose first bucket is 1 MiB.",
    ),
    Knob(
        owner="ddp",
        name="gradient_as_bucket_view",
        type="bool",
        default=False,
        numerics="neutral",
        read_back="live",
        read_from="the reducer's logged gradient_as_bucket_view",
        source=_SOURCE,
        meaning="Gradients lie in the buckets themselves: the memory of one copy of them less.",
    ),
    Knob(
        owner="ddp",
        name="static_graph",
        type="bool",
        default=False,
        numerics="neutral",
        read_back="live",
        read_from="the reducer's logged static_graph",
        source=_SOURCE,
        meaning="The reducer takes the first backward for all later ones. Only with one micro-step "
        "an iteration.",
    ),
)

REFUSED: Final[dict[str, str]] = {
    "find_unused_parameters": "every weight of these models takes part in every step, so it would "
    "only cost a walk through the graph",
    "comm_hook": "communication hooks change the numbers and are not offered by this version",
    "broadcast_buffers": "the buffers of these models are constants; torch's default is kept",
    "forward_sync_buffers": "the buffers of these models are constants; torch's default is kept",
    "bucket_cap_mb_list": "it is not offered by this version: bucket_cap_mb holds for all buckets",
    "device_ids": "each process has the one device of its local rank",
}
"""Settings that DDP has and a space file may not name, with the reason."""
