"""Planted in ranks: a setting that needs DeepSpeed's CPU Adagrad.

Any machine can compile it, and it has one source.
"""

from __future__ import annotations

import dataclasses

KNOB = "zero3.allgather_sequential"


def plant(rank: int) -> None:
    """Say so in the knob table."""
    del rank
    from autotune.backends.deepspeed import Zero3Backend
    from autotune.knobs.knob import Need

    need = Need(kind="compiler", name="CPUAdagradBuilder")
    Zero3Backend.knobs = tuple(
        dataclasses.replace(knob, needs=(need,)) if knob.full_name == KNOB else knob
        for knob in Zero3Backend.knobs
    )
