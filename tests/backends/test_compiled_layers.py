"""Where compiled layers cannot be."""

from __future__ import annotations

import pytest
from support_trials import make_plan

from autotune.backends.base import backend_of


@pytest.mark.parametrize(
    ("backend", "changes", "refused"),
    [
        ("zero3", {}, True),
        ("deepspeed", {"deepspeed.zero_stage": 3}, True),
        ("deepspeed", {"deepspeed.zero_stage": 2}, False),
        ("fsdp2", {}, False),
        ("ddp", {}, False),
    ],
)
def test_layers_with_hooks_of_zero3_are_not_compiled(backend, changes, refused) -> None:
    plan = make_plan(backend, changes={"kernel.compile": "layer", **changes})
    found = backend_of(backend).validate(plan.config, plan.workload, plan.topology)
    assert (found is not None) is refused
    if found is not None:
        assert found.about == "kernel.compile"
