"""What is read back of an engine, and what of it counts."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from support_trials import make_plan

from autotune.models.family import family_of
from autotune.worker.attestation import read_engine


class Holder:
    """What ``read_engine`` asks of an engine: the live model, and two values beside it."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.module = module

    def read_back(self) -> dict[str, Any]:
        return {
            "fsdp2.backward_prefetch": (7, "live"),
            "fsdp2.reshard_after_forward": (False, "live"),
        }


def test_a_dead_setting_is_no_difference() -> None:
    plan = make_plan("fsdp2", changes={"fsdp2.reshard_after_forward": False})
    family = family_of(plan.training.model.family)
    module = family.build(plan.training.model, dtype=torch.float32, kernels=plan.kernels)
    engine: Any = Holder(module)

    live = read_engine(plan, engine)
    dead = read_engine(dataclasses.replace(plan, dead=("fsdp2.backward_prefetch",)), engine)

    assert not live["fsdp2.backward_prefetch"].in_effect
    assert "fsdp2.backward_prefetch" not in dead
    assert dead["fsdp2.reshard_after_forward"].in_effect
