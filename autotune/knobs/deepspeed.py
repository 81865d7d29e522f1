"""Knobs of DeepSpeed ZeRO with its stage as a knob; ``zero3`` is the same at stage 3.

Which stage reads which setting was read in DeepSpeed 0.19.8: ``runtime/engine.py``
(``_configure_zero_optimizer`` and ``_do_optimizer_sanity_check``),
``runtime/zero/stage_1_and_2.py``, ``runtime/zero/stage3.py`` and ``runtime/bf16_optimizer.py``.
A setting of another stage is dead: it is not written, not read back, and no part of a
configuration's key.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Final

from autotune.knobs import zero3
from autotune.knobs.knob import Knob

STAGES: Final = (1, 2, 3)

_CONFIG: Final = "deepspeed/runtime/zero/config.py"
_BY_BUCKETS: Final = frozenset(
    {"reduce_bucket_size", "reduce_scatter", "contiguous_gradients", "overlap_comm"}
)
_AT_EVERY_STAGE: Final = _BY_BUCKETS | {
    "zero_stage",
    "offload_optimizer",
    "offload_optimizer_pin_memory",
}
_AT_1_AND_2: Final = frozenset({"use_multi_rank_bucket_allreduce", "round_robin_gradients"})
_AT_NONE: Final = {
    "allgather_partitions": "Nothing reads it in this DeepSpeed.",
    "allgather_bucket_size": "Where torch has all_gather_into_tensor (any that is supported), the "
    "updated weights are gathered whole (runtime/utils.py, all_gather_dp_groups).",
    "ignore_unused_parameters": "Every weight of these models takes part in every step.",
}
WITHOUT_BUCKETS: Final = (
    "zero_stage == 1 and compute == 'bf16' and accumulate == 'fp32' and offload_optimizer == 'none'"
)
"""Stage 1 then runs ``BF16_Optimizer``, which reduces all gradients at once at the last
micro-step (``runtime/engine.py``, ``_do_optimizer_sanity_check``)."""


def stages_of(name: str) -> tuple[int, ...]:
    """Return the stages at which the engine reads the setting ``name``."""
    if name in _AT_NONE:
        return ()
    if name in _AT_1_AND_2:
        return (1, 2)
    return STAGES if name in _AT_EVERY_STAGE else (3,)


def _any(*conditions: str | None) -> str | None:
    given = [condition for condition in conditions if condition]
    return " or ".join(f"({one})" for one in given) if len(given) > 1 else "".join(given) or None


def _at_all_stages(knob: Knob) -> Knob:
    """Return a knob of stage 3 as the backend with a choice of stages has it."""
    stages = stages_of(knob.name)
    dead = knob.dead_when
    changes: dict[str, Any] = {}
    if knob.name in _AT_NONE:
        changes = {"meaning": _AT_NONE[knob.name]}
    elif stages == (3,):
        dead = _any("zero_stage != 3", dead)
    if knob.name == "contiguous_gradients":
        # stage_1_and_2.py: offload needs them, whatever is asked for.
        dead = _any("zero_stage != 3 and offload_optimizer == 'cpu'", WITHOUT_BUCKETS)
    elif knob.name == "overlap_comm":
        # On the CPU it still reduces from hooks, and into a second bucket, at stages 1 and 2.
        dead = _any("zero_stage == 3 and device == 'cpu'", WITHOUT_BUCKETS)
        changes = {
            "default": None,
            "read_back": "live",
            "read_from": "optimizer.overlap_comm, at stage 3 engine.zero_overlap_comm()",
            "default_where": (("zero_stage == 3", True), ("zero_stage != 3", False)),
            "meaning": "Reduction on a stream of its own, at stage 3 all-gather too; a second "
            "bucket at stages 1 and 2.",
        }
    elif knob.name in _BY_BUCKETS:
        dead = _any(WITHOUT_BUCKETS)
    return dataclasses.replace(knob, owner="deepspeed", dead_when=dead, **changes)


_STAGE: Final = Knob(
    owner="deepspeed",
    name="zero_stage",
    type="int",
    # DeepSpeed's own default of 0 is no ZeRO at all.
    default=3,
    low=1,
    high=3,
    numerics="order",
    read_back="live",
    read_from="which optimizer the engine made, and its partition_gradients",
    source=_CONFIG,
    meaning="What is split over the processes: 1 Adam's moments and master weights, 2 gradients "
    "too, 3 weights too. Unset it is 3, which fits wherever any stage does.",
)

_BUCKETS_1_AND_2: Final = (
    Knob(
        owner="deepspeed",
        name="use_multi_rank_bucket_allreduce",
        type="bool",
        default=True,
        numerics="order",
        dead_when=_any("zero_stage == 3", "reduce_scatter == false", WITHOUT_BUCKETS),
        read_back="live",
        read_from="optimizer.use_multi_rank_bucket_allreduce",
        source=_CONFIG,
        meaning="One all-reduce a bucket; off sends each process's part to it by a reduce.",
    ),
    Knob(
        owner="deepspeed",
        name="round_robin_gradients",
        type="bool",
        default=False,
        numerics="order",
        dead_when=_any("zero_stage == 3", WITHOUT_BUCKETS),
        read_back="live",
        read_from="optimizer.round_robin_gradients",
        source=_CONFIG,
        meaning="Deals the weights to the processes in turns, so that all copy gradients at once.",
    ),
)

KNOBS: Final[tuple[Knob, ...]] = (
    _STAGE,
    *(_at_all_stages(knob) for knob in zero3.KNOBS if knob.name not in _AT_1_AND_2),
    *_BUCKETS_1_AND_2,
)

REFUSED: Final[dict[str, str]] = {**zero3.REFUSED, "stage": "zero_stage says it"}
"""Settings that DeepSpeed has and a space file may not name, with the reason."""
