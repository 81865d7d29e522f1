"""What cannot hold of activation checkpointing and groups, said by every engine: pure functions."""

from __future__ import annotations

from typing import Any

import pytest
from support_trials import make_plan

from autotune.backends.base import backend_of
from autotune.contract.plan import Topology
from autotune.knobs import environment

TWO = Topology(processes=2, device="cpu", devices_per_node=2)
FOUR = Topology(processes=4, device="cpu", devices_per_node=4)


def refusal(backend: str, config: dict[str, Any], place: Topology = TWO) -> str:
    return str(backend_of(backend).validate(config, make_plan(backend).training, place))


@pytest.mark.parametrize("backend", ["zero3", "deepspeed", "fsdp2", "ddp"])
@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"activation_checkpointing": "selective", "use_reentrant": True}, "cannot be selective"),
        ({"activation_checkpointing": "full", "checkpoint_every": 5}, "the model's 4 layers"),
        ({"activation_checkpointing": "full", "checkpoint_every": 4}, "None"),
        ({"activation_checkpointing": "full", "use_reentrant": True}, "None"),
        ({"activation_checkpointing": "none", "use_reentrant": True}, "None"),
        ({"activation_checkpointing": "none", "checkpoint_every": 5}, "None"),
    ],
)
def test_recomputation(backend: str, config: dict[str, Any], words: str) -> None:
    found = refusal(backend, {f"workload.{key}": value for key, value in config.items()})
    assert words in found if words != "None" else found == "None"


@pytest.mark.parametrize(
    ("backend", "config", "words"),
    [
        ("fsdp2", {"replicate": 3}, "replicate 3 does not divide the 4 processes"),
        ("fsdp2", {"replicate": 4, "reshard_after_forward": 2}, "does not divide the 1 processes"),
        ("fsdp2", {"replicate": 2, "reshard_after_forward": 2}, "on 2 processes is the same"),
        ("fsdp2", {"replicate": 2, "gradient_sync": "scatter"}, "None"),
        ("fsdp2", {"gradient_sync": "scatter"}, "needs copies to sum over"),
        ("fsdp2", {"keep_last_unit": True, "layers_per_unit": 4}, "a single unit"),
        ("fsdp2", {"keep_last_unit": True, "layers_per_unit": 2}, "None"),
        ("zero3", {"zero_hpz_partition_size": 3}, "does not divide the 4 processes"),
        ("zero3", {"zero_hpz_partition_size": 4}, "None"),
        ("zero3", {"zero_quantized_gradients": True}, "changes nothing on one node"),
        ("zero3", {"zero_quantized_gradients": False}, "None"),
        (
            "deepspeed",
            {"zero_stage": 3, "zero_quantized_gradients": True},
            "changes nothing on one node",
        ),
    ],
)
def test_groups_and_units(backend: str, config: dict[str, Any], words: str) -> None:
    found = refusal(backend, {f"{backend}.{key}": value for key, value in config.items()}, FOUR)
    assert words in found if words != "None" else found == "None"


@pytest.mark.parametrize(("backend", "stage"), [("zero3", {}), ("deepspeed", {"zero_stage": 3})])
def test_one_process_has_no_weights_to_quantise(backend: str, stage: dict[str, Any]) -> None:
    values = {f"{backend}.{name}": value for name, value in stage.items()}
    quantised = {**values, f"{backend}.zero_quantized_weights": True}
    one = Topology(processes=1, device="cuda", devices_per_node=1)
    assert "zero_quantized_weights changes nothing on one process" in refusal(
        backend, quantised, one
    )
    assert refusal(backend, quantised, FOUR) == "None"
    assert refusal(backend, values, one) == "None"


def test_gradients_are_quantised_between_nodes() -> None:
    nodes = Topology(processes=4, device="cuda", devices_per_node=2, nodes=2)
    assert refusal("zero3", {"zero3.zero_quantized_gradients": True}, nodes) == "None"


def test_fewest_blocks_above_most_are_a_contradiction() -> None:
    least, most = "env.NCCL_MIN_CTAS", "env.NCCL_MAX_CTAS"
    assert environment.contradiction({least: 16, most: 8}) == (
        least,
        "NCCL_MIN_CTAS 16 is above NCCL_MAX_CTAS 8",
    )
    for fine in ({least: 8, most: 8}, {least: None, most: 8}, {most: 4}, {}):
        assert environment.contradiction(fine) is None


def test_the_optimizers_way_is_told_to_each_engine() -> None:
    for backend, path in (("fsdp2", ("optimizer",)), ("zero3", ("optimizer", "params"))):
        for way, said in (
            (None, {"fused": False}),
            ("fused", {"fused": True}),
            ("foreach", {"fused": False, "foreach": True}),
            ("loop", {"fused": False, "foreach": False}),
        ):
            changes = {} if way is None else {"kernel.adamw": way}
            found: Any = backend_of(backend).render(make_plan(backend, changes=changes))
            for key in path:
                found = found[key]
            assert {key: found[key] for key in ("fused", "foreach") if key in found} == said
