"""The DeepSpeed JSON of each ZeRO stage, what is refused, and the anchors: pure functions."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from support_trials import make_plan

from autotune.backends.deepspeed import DeepSpeedBackend, Zero3Backend, as_run, stated
from autotune.contract.plan import Topology

CPU = Topology(processes=2, device="cpu", devices_per_node=2)
BACKEND = DeepSpeedBackend()
BUCKETS = {"reduce_bucket_size", "reduce_scatter", "contiguous_gradients"}


def _zero(stage: int, **own: Any) -> dict[str, Any]:
    changes = {f"deepspeed.{key}": value for key, value in {"zero_stage": stage, **own}.items()}
    section = BACKEND.render(make_plan("deepspeed", changes=changes))["zero_optimization"]
    assert isinstance(section, dict)
    return section


def test_each_stage_has_its_own_settings_and_no_others() -> None:
    for stage in (1, 2):
        assert _zero(stage).keys() == BUCKETS | {
            "stage",
            "use_multi_rank_bucket_allreduce",
            "round_robin_gradients",
        }
        assert _zero(stage)["stage"] == stage
    third = _zero(3)
    assert third["stage"] == 3
    assert third.keys() > BUCKETS | {"stage3_prefetch_bucket_size", "sub_group_size"}
    assert not third.keys() & {"round_robin_gradients", "use_multi_rank_bucket_allreduce"}
    for zero in (_zero(1), third):
        assert not zero.keys() & {"zero_stage", "allgather_bucket_size", "allgather_partitions"}


def test_stage_3_is_what_zero3_renders() -> None:
    own = {"stage3_param_persistence_threshold": 7, "overlap_comm": True}
    alias = make_plan("zero3", changes={f"zero3.{key}": value for key, value in own.items()})
    mine = {f"deepspeed.{key}": value for key, value in own.items()}
    assert BACKEND.render(make_plan("deepspeed", changes=mine)) == Zero3Backend().render(alias)


def test_offload_becomes_sections_and_keeps_torchs_adam() -> None:
    assert not _zero(2, offload_optimizer="none").keys() & {"offload_optimizer", "offload_param"}
    own = {"offload_optimizer": "cpu", "offload_param": "cpu", "offload_param_pin_memory": False}
    third = _zero(3, **own)
    assert third["offload_optimizer"] == {"device": "cpu", "pin_memory": True}
    assert third["offload_param"] == {"device": "cpu", "pin_memory": False}
    second = _zero(2, **own, contiguous_gradients=False)
    assert second["offload_optimizer"] == {"device": "cpu", "pin_memory": True}
    # Only stage 3 splits the weights; below it offload needs contiguous gradients.
    assert not second.keys() & {"offload_param", "contiguous_gradients"}
    changes = {"deepspeed.offload_optimizer": "cpu"}
    optimizer = BACKEND.render(make_plan("deepspeed", changes=changes))["optimizer"]
    assert optimizer["params"]["torch_adam"] is True


def test_what_is_stated_reads_back_as_knobs() -> None:
    assert stated(_zero(1))["zero_stage"] == 1
    found = stated(_zero(3, offload_param="cpu", reduce_bucket_size=9))
    assert found["offload_param"] == "cpu"
    assert found["offload_param_pin_memory"] is True
    assert found["reduce_bucket_size"] == 9
    names = {knob.name for knob in BACKEND.knobs}
    assert found.keys() <= names


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_the_engines_own_parser_takes_every_stage(stage: int) -> None:
    program = (
        "import json, sys\n"
        "from deepspeed.runtime.zero.config import get_zero_config\n"
        "parsed = get_zero_config(json.load(sys.stdin))\n"
        "offload = parsed.offload_optimizer\n"
        "values = int(parsed.stage), parsed.overlap_comm, offload.device, offload.pin_memory\n"
        "print(json.dumps(values))\n"
    )
    changes = {"deepspeed.zero_stage": stage, "deepspeed.offload_optimizer": "cpu"}
    running = as_run(BACKEND.render(make_plan("deepspeed", changes=changes)))
    done = subprocess.run(
        [sys.executable, "-c", program],
        input=json.dumps(running),
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout.splitlines()[-1]) == [stage, stage == 3, "cpu", True]


def test_anchors_try_each_stage_first() -> None:
    workload = make_plan("deepspeed").workload
    anchors = BACKEND.anchors(workload)
    stages = [values["deepspeed.zero_stage"] for values in anchors.values()]
    assert stages[:3] == [3, 2, 1]
    knobs = {knob.full_name: knob for knob in BACKEND.knobs}
    for name in ("engine_defaults", "stage_2", "stage_1"):
        assert anchors[name].keys() <= knobs.keys()
        for key, value in anchors[name].items():
            if key not in ("deepspeed.zero_stage", "deepspeed.overlap_comm"):
                assert value == knobs[key].default
    assert anchors["stage_2"]["deepspeed.overlap_comm"] is False
    assert anchors["engine_defaults"]["deepspeed.overlap_comm"] is True
    assert anchors["stage_2_hf_auto"]["deepspeed.reduce_bucket_size"] == 128 * 128
    own = {name.replace("zero3.", "deepspeed.") for name in Zero3Backend().anchors(workload)}
    assert own <= anchors.keys()


def test_a_refusal_of_stage_3_holds_at_stage_3_only() -> None:
    plan = make_plan("deepspeed")
    key = "deepspeed.stage3_module_granularity_threshold"
    for stage, refused in ((1, False), (2, False), (3, True)):
        config = plan.config | {key: 10, "deepspeed.zero_stage": stage}
        refusal = BACKEND.validate(config, plan.workload, CPU)
        assert (refusal is not None) is refused
        assert refusal is None or refusal.about == key
