from __future__ import annotations

import re
from pathlib import Path

from autotune.contract.plan import Topology
from autotune.knobs import deepspeed, fsdp2, workload
from autotune.space.keys import KEYS
from autotune.space.loader import parse_space
from autotune.space.model import IntRange

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "space-file.md"


def test_the_example_of_the_reference_loads() -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 1
    space = parse_space(blocks[0], file="example.yaml")
    space = space.on(Topology(processes=2, device="cpu", devices_per_node=2))
    assert [param.name for param in space.params] == [
        "reduce_bucket_size",
        "stage3_param_persistence_threshold",
        "micro_batch",
        "activation_checkpointing",
        "stage3_prefetch_bucket_size",
    ]
    assert [item.param for item in space.dropped] == ["fsdp2.reshard_after_forward"]
    assert space.params[0].domain == IntRange(low=100_000, high=500_000_000, log=True)
    assert len(space.constraints) == 1
    assert space.fixed == {"zero3.overlap_comm": True}


def test_the_reference_names_every_key_and_every_live_knob() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for keys in KEYS.values():
        for key in keys:
            assert re.search(rf"\b{key}\b", text), key
    for table in (deepspeed.KNOBS, fsdp2.KNOBS, workload.KNOBS):
        for knob in table:
            assert knob.always_dead or f"`{knob.name}`" in text, knob.name
