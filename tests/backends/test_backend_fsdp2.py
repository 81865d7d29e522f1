"""What FSDP2 is told, what cannot hold, and its anchors: pure functions."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from typing import Any

import pytest
from support_trials import BF16, make_plan

from autotune.backends.fsdp2 import Fsdp2Backend
from autotune.contract.plan import Topology, Workload

BACKEND = Fsdp2Backend()


def _topology(processes: int) -> Topology:
    return Topology(processes=processes, device="cpu", devices_per_node=processes)


def _workload(*, tied: bool = True) -> Workload:
    return make_plan("fsdp2", tied=tied).workload


@pytest.mark.parametrize(
    ("changes", "processes", "words"),
    [
        ({"reshard_after_forward": 3}, 4, "divide"),
        ({"reshard_after_forward": 4}, 4, "true"),
        ({"reshard_after_forward": 1}, 4, "false"),
        ({"layers_per_unit": 5}, 2, "4 layers"),
        ({"wrap_embeddings": True}, 2, "ties"),
        ({"forward_prefetch": 4}, 2, "forward_prefetch 4"),
        ({"layers_per_unit": 2, "backward_prefetch": 2}, 2, "backward_prefetch 2"),
    ],
)
def test_what_cannot_hold_is_said(changes: dict[str, Any], processes: int, words: str) -> None:
    config = {f"fsdp2.{key}": value for key, value in changes.items()}
    assert words in str(BACKEND.validate(config, _workload(), _topology(processes)))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"reshard_after_forward": 2},
        {"reshard_after_forward": True},
        {"layers_per_unit": 4},
        {"forward_prefetch": 3, "backward_prefetch": 3},
        {"layers_per_unit": 4, "forward_prefetch": 1},
    ],
)
def test_what_can_hold_is_allowed(changes: dict[str, Any]) -> None:
    config = {f"fsdp2.{key}": value for key, value in changes.items()}
    assert BACKEND.validate(config, _workload(), _topology(4)) is None


def test_untied_embeddings_may_be_units() -> None:
    config = {"fsdp2.wrap_embeddings": True}
    assert BACKEND.validate(config, _workload(tied=False), _topology(2)) is None


def test_accumulation_in_another_format_is_refused() -> None:
    precision = dataclasses.replace(BF16, reduce="bf16")
    workload = dataclasses.replace(_workload(), precision=precision)
    assert "accumulate" in str(BACKEND.validate({}, workload, _topology(2)))


@pytest.mark.parametrize(
    ("sync", "master", "rows", "refused"),
    [
        ("each", "bf16", 2, True),
        ("each", "bf16", None, True),  # by tokens: there may be several
        ("each", "bf16", 8, False),  # one micro-step of 16 samples on two processes
        ("last", "bf16", 2, False),
        ("each", "fp32", 2, False),
    ],
)
def test_sums_in_another_format_than_the_workloads_are_refused(
    sync: str, master: Any, rows: int | None, refused: bool
) -> None:
    """Reduced after every micro-step, a gradient has the weights' format before it is added."""
    precision = dataclasses.replace(BF16, master=master)
    workload = dataclasses.replace(_workload(), precision=precision)
    config = {"fsdp2.gradient_sync": sync, "workload.micro_batch": rows}
    found = BACKEND.validate(config, workload, _topology(2))
    assert ("accumulate fp32" in str(found)) == refused


def test_anchors_are_valid_and_start_from_the_defaults() -> None:
    defaults = {knob.full_name: knob.default for knob in BACKEND.knobs}
    for tied in (True, False):
        workload = _workload(tied=tied)
        anchors = BACKEND.anchors(workload)
        assert anchors["engine_defaults"] == defaults
        for values in anchors.values():
            assert BACKEND.validate(values, workload, _topology(2)) is None


def test_rendering_is_explicit() -> None:
    rendered = BACKEND.render(make_plan("fsdp2", precision=BF16, clipping=0.5))
    assert rendered["mixed_precision"]["param_dtype"] == "bf16"
    assert rendered["mixed_precision"]["reduce_dtype"] == "fp32"
    assert rendered["master_dtype"] == "fp32"
    assert rendered["gradient_clipping"] == 0.5
    assert rendered["fully_shard"]["layers_per_unit"] == 1


def test_the_coordinator_can_use_backends_without_their_engines() -> None:
    program = (
        "import sys\n"
        "from autotune import registry\n"
        "for name in ('zero3', 'deepspeed', 'fsdp2', 'ddp'):\n"
        "    backend = registry.load('backends', name)()\n"
        "    assert backend.knobs and backend.preload and backend.name == name\n"
        "print(sorted({'torch', 'deepspeed', 'transformers'} & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
